/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The copies that a lane has under way in one queue, in the order in which it started them; and the queues by which a
 * D2H lane pushes into other devices. Its thread alone uses them.
 */
#ifndef FERRY_ROUTER_ENGINE_COPIES_H
#define FERRY_ROUTER_ENGINE_COPIES_H

#include "router/engine/call.h"

#define FERRY_MOST_COPIES 64 /* copies that a lane may have started and not finished */

struct ferry_lane_rank;

struct ferry_copying {
	struct ferry_lane_rank *lane_rank;
	struct ferry_call *call;
	struct ferry_transfer *transfer;
	uint64_t number; /* of the copy in the queue */
	uint32_t slices; /* that it moves */
};

struct ferry_copies {
	struct ferry_copy_queue queue;
	struct ferry_copying under_way[FERRY_MOST_COPIES];
	uint32_t head, tail;
};

static inline bool ferry_copies_any(const struct ferry_copies *copies)
{
	return copies->head != copies->tail;
}

static inline bool ferry_copies_full(const struct ferry_copies *copies)
{
	return copies->tail - copies->head == FERRY_MOST_COPIES;
}

/** Starts the copy of the transfer's next slice; false if the device refused (the lane rank's job has failed then). */
bool ferry_copies_start(struct ferry_copies *copies, struct ferry_lane_rank *lane_rank, struct ferry_call *call,
                        struct ferry_transfer *transfer, void *destination, const void *source, uint64_t bytes,
                        bool crosses);

/** How many copies have finished by now: an upper bound of the numbers that ferry_copies_take accepts. */
uint64_t ferry_copies_finished(struct ferry_copies *copies);

/** Removes the oldest copy if it is among the finished ones. */
bool ferry_copies_take(struct ferry_copies *copies, uint64_t finished, struct ferry_copying *copying);

/** Whether the device still works for this queue; if not, none of the copies will finish. */
ferryResult_t ferry_copies_check(struct ferry_copies *copies);

#define FERRY_PUSH_QUEUES 8u

/**
 * One queue for the ranks that share a number modulo FERRY_PUSH_QUEUES, so that links to several devices work at once.
 * Opened when they are first used.
 */
struct ferry_pushes {
	struct ferry_copier *copier; /* constant */
	struct ferry_copies queues[FERRY_PUSH_QUEUES];
	uint32_t open; /* bit q: queues[q] is open */
};

/**
 * As ferry_copies_start, for the next `slices` slices, into the memory of rank to.to. False also where the queue is
 * full, or that rank's memory is shut, as the job has failed.
 */
bool ferry_pushes_start(struct ferry_pushes *pushes, struct ferry_lane_rank *lane_rank, struct ferry_call *call,
                        struct ferry_transfer *transfer, struct ferry_put_target to, const void *source, uint64_t bytes,
                        uint32_t slices);

/** Pushes that have been started and not taken, in all queues. */
uint32_t ferry_pushes_under_way(const struct ferry_pushes *pushes);

/** As wait_us of copiers, over all queues with copies under way; `most` (-1: for ever) where none is sooner. */
int64_t ferry_pushes_wait_us(struct ferry_pushes *pushes, int64_t most);

/** As ferry_copies_check, for all queues. */
ferryResult_t ferry_pushes_check(struct ferry_pushes *pushes);

void ferry_pushes_close(struct ferry_pushes *pushes);

#endif
