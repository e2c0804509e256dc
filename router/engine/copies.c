/* SPDX-License-Identifier: Apache-2.0 */
#include "router/engine/copies.h"

#include "ipc/error.h"
#include "router/engine/traffic.h"

static void drive(struct ferry_copies *copies)
{
	atomic_store_explicit(copies->driving, atomic_load_explicit(copies->driving, memory_order_relaxed) + 1,
	                      memory_order_relaxed);
}

ferryResult_t ferry_copies_open(struct ferry_copies *copies, struct ferry_copier *copier,
                                enum ferry_direction direction, _Atomic uint32_t *driving)
{
	copies->driving = driving;
	drive(copies);
	ferryResult_t result = copier->ops->queue_open(copier, direction, &copies->queue);
	drive(copies);
	return result;
}

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

bool ferry_copies_push(struct ferry_copies *copies, struct ferry_lane_rank *lane_rank, struct ferry_call *call,
                       struct ferry_transfer *transfer, const struct ferry_put_target *to, const void *source,
                       uint64_t bytes, uint32_t slices)
{
	const struct ferry_member_ops *ops = lane_rank->member->ops;
	if (!ferry_traffic_may_move(lane_rank))
		return false;
	if (ops->enter && !ops->enter(lane_rank->member, to->to))
		return false;
	drive(copies);
	ferryResult_t result = copies->queue.copier->ops->push(&copies->queue, to, source, bytes);
	drive(copies);
	if (ops->enter)
		ops->leave(lane_rank->member, to->to);
	if (refused(lane_rank, result))
		return false;
	keep(copies, lane_rank, call, transfer, bytes, slices);
	return true;
}

bool ferry_copies_start(struct ferry_copies *copies, struct ferry_lane_rank *lane_rank, struct ferry_call *call,
                        struct ferry_transfer *transfer, void *destination, const void *source, uint64_t bytes,
                        bool crosses)
{
	if (!ferry_traffic_may_move(lane_rank))
		return false;
	if (bytes) {
		drive(copies);
		ferryResult_t result = copies->queue.copier->ops->copy(&copies->queue, destination, source, bytes,
		                                                       transfer->length, crosses);
		drive(copies);
		if (refused(lane_rank, result))
			return false;
	}
	keep(copies, lane_rank, call, transfer, bytes, 1);
	return true;
}

uint64_t ferry_copies_finished(struct ferry_copies *copies)
{
	drive(copies);
	uint64_t finished = copies->queue.copier->ops->finished(&copies->queue);
	drive(copies);
	return finished;
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
	if (!ops->queue_check)
		return ferrySuccess;
	drive(copies);
	ferryResult_t result = ops->queue_check(&copies->queue);
	drive(copies);
	return result;
}
