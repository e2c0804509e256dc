/* SPDX-License-Identifier: Apache-2.0 */
#include "router/engine/copies.h"

#include "ipc/error.h"
#include "router/engine/traffic.h"

static void keep(struct ferry_copies *copies, struct ferry_lane_rank *lane_rank, struct ferry_call *call,
                 struct ferry_transfer *transfer, uint64_t bytes, uint32_t slices)
{
	copies->under_way[copies->tail++ % FERRY_MOST_COPIES] = (struct ferry_copying){lane_rank, call, transfer,
	                                                                               copies->queue.started, slices};
	ferry_traffic_moves(lane_rank, bytes);
	lane_rank->under_way++;
	transfer->issued += slices;
}

static bool refused(struct ferry_lane_rank *lane_rank, ferryResult_t result)
{
	if (result)
		lane_rank->member->ops->fail(lane_rank->member, result, ferry_last_message());
	return result;
}

bool ferry_copies_start(struct ferry_copies *copies, struct ferry_lane_rank *lane_rank, struct ferry_call *call,
                        struct ferry_transfer *transfer, void *destination, const void *source, uint64_t bytes,
                        bool crosses)
{
	if (!ferry_traffic_may_move(lane_rank))
		return false;
	if (bytes) {
		ferryResult_t result = copies->queue.copier->ops->copy(&copies->queue, destination, source, bytes,
		                                                       transfer->length, crosses);
		if (refused(lane_rank, result))
			return false;
	}
	keep(copies, lane_rank, call, transfer, bytes, 1);
	return true;
}

uint64_t ferry_copies_finished(struct ferry_copies *copies)
{
	return copies->queue.copier->ops->finished(&copies->queue);
}

bool ferry_copies_take(struct ferry_copies *copies, uint64_t finished, struct ferry_copying *copying)
{
	if (!ferry_copies_any(copies) || copies->under_way[copies->head % FERRY_MOST_COPIES].number > finished)
		return false;
	*copying = copies->under_way[copies->head++ % FERRY_MOST_COPIES];
	copying->lane_rank->under_way--;
	return true;
}

ferryResult_t ferry_copies_check(struct ferry_copies *copies)
{
	const struct ferry_copy_ops *ops = copies->queue.copier->ops;
	return ops->queue_check ? ops->queue_check(&copies->queue) : ferrySuccess;
}

/* ---- pushes ---- */

/* The queue of pushes to that rank. NULL, with a message: this copier has none, or cannot open one. */
static struct ferry_copies *queue_to(struct ferry_pushes *pushes, uint32_t rank)
{
	struct ferry_copier *copier = pushes->copier;
	uint32_t queue = rank % FERRY_PUSH_QUEUES;
	struct ferry_copies *copies = &pushes->queues[queue];
	if (pushes->open >> queue & 1)
		return copies;
	if (!copier->ops->push) {
		ferry_fail(ferryInvalidUsage, "%s devices push into no other", copier->ops->kind);
		return NULL;
	}
	if (copier->ops->queue_open(copier, FERRY_DIR_D2H, &copies->queue))
		return NULL;
	pushes->open |= 1u << queue;
	return copies;
}

bool ferry_pushes_start(struct ferry_pushes *pushes, struct ferry_lane_rank *lane_rank, struct ferry_call *call,
                        struct ferry_transfer *transfer, struct ferry_put_target to, const void *source, uint64_t bytes,
                        uint32_t slices)
{
	const struct ferry_member_ops *ops = lane_rank->member->ops;
	struct ferry_copies *copies = queue_to(pushes, to.to);
	if (!copies) {
		ops->fail(lane_rank->member, ferryUnhandledDeviceError, ferry_last_message());
		return false;
	}
	if (ferry_copies_full(copies) || !ferry_traffic_may_move(lane_rank))
		return false;
	if (ops->enter && !ops->enter(lane_rank->member, to.to))
		return false;
	to.shared_busy_until = ferry_member_shared_links(lane_rank->member);
	ferryResult_t result = copies->queue.copier->ops->push(&copies->queue, &to, source, bytes);
	if (ops->enter)
		ops->leave(lane_rank->member, to.to);
	if (refused(lane_rank, result))
		return false;
	keep(copies, lane_rank, call, transfer, bytes, slices);
	ferry_traffic_pushes(lane_rank, to.to, bytes);
	return true;
}

uint32_t ferry_pushes_under_way(const struct ferry_pushes *pushes)
{
	uint32_t count = 0;
	for (uint32_t left = pushes->open; left; left &= left - 1) {
		const struct ferry_copies *copies = &pushes->queues[__builtin_ctz(left)];
		count += copies->tail - copies->head;
	}
	return count;
}

int64_t ferry_pushes_wait_us(struct ferry_pushes *pushes, int64_t most)
{
	for (uint32_t left = pushes->open; left; left &= left - 1) {
		struct ferry_copies *copies = &pushes->queues[__builtin_ctz(left)];
		if (!ferry_copies_any(copies))
			continue;
		int64_t wait = copies->queue.copier->ops->wait_us(&copies->queue);
		most = most < 0 || wait < most ? wait : most;
	}
	return most;
}

ferryResult_t ferry_pushes_check(struct ferry_pushes *pushes)
{
	ferryResult_t result = ferrySuccess;
	for (uint32_t left = pushes->open; left && !result; left &= left - 1)
		result = ferry_copies_check(&pushes->queues[__builtin_ctz(left)]);
	return result;
}

void ferry_pushes_close(struct ferry_pushes *pushes)
{
	for (uint32_t left = pushes->open; left; left &= left - 1) {
		struct ferry_copy_queue *queue = &pushes->queues[__builtin_ctz(left)].queue;
		queue->copier->ops->queue_close(queue);
	}
	pushes->open = 0;
}
