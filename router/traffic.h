/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What a seat's lane tells of itself in the rank's line of the arena, for ferry-stat (router/status.h reads it): calls,
 * bytes, and whom it waits for. By the lane's thread, the one writer of that line's part: a load and a store in a cache
 * line of its own, per copy and per call.
 */
#ifndef FERRY_ROUTER_TRAFFIC_H
#define FERRY_ROUTER_TRAFFIC_H

#include "router/member.h"

static inline struct ferry_traffic *ferry_traffic_of(const struct ferry_seat *seat)
{
	return &ferry_member_line(seat->member)->traffic[seat->direction];
}

static inline void ferry_traffic_add(_Atomic uint64_t *field, uint64_t more)
{
	atomic_store_explicit(field, atomic_load_explicit(field, memory_order_relaxed) + more, memory_order_relaxed);
}

/** A copy of so many bytes has been started. */
static inline void ferry_traffic_moves(const struct ferry_seat *seat, uint64_t bytes)
{
	ferry_traffic_add(&ferry_traffic_of(seat)->bytes, bytes);
}

/** The lane's half of a call is over. */
static inline void ferry_traffic_ends_call(const struct ferry_seat *seat)
{
	ferry_traffic_add(&ferry_traffic_of(seat)->calls, 1);
}

/** Since then (nanoseconds) nothing has moved, for want of these ranks; 0: none, or something moves. */
static inline void ferry_traffic_awaits(struct ferry_seat *seat, uint64_t ranks, uint64_t since)
{
	struct ferry_traffic *traffic = ferry_traffic_of(seat);
	atomic_store_explicit(&traffic->since, since, memory_order_relaxed);
	atomic_store_explicit(&traffic->awaits, ranks, memory_order_relaxed);
	seat->awaiting = ranks;
}

/**
 * Before each copy: false: none may begin, as the job has failed. Who is about to leave, with the job failed, looks at
 * `moves` (rank-lib/mover.h): each side stores, then looks, with a full fence between, so that one sees the other's.
 */
static inline bool ferry_traffic_may_move(struct ferry_seat *seat)
{
	_Atomic uint32_t *moves = &ferry_traffic_of(seat)->moves;
	if (seat->moves)
		return true;
	atomic_store_explicit(moves, 1, memory_order_relaxed);
	ferry_full_fence();
	if (seat->member->ops->failed(seat->member)) {
		atomic_store_explicit(moves, 0, memory_order_relaxed);
		return false;
	}
	seat->moves = true;
	return true;
}

/** The lane is about to sleep: release, behind the last bytes of its copies. */
static inline void ferry_traffic_rests(struct ferry_seat *seat)
{
	if (!seat->moves || seat->under_way)
		return;
	seat->moves = false;
	atomic_store_explicit(&ferry_traffic_of(seat)->moves, 0, memory_order_release);
}

#endif
