/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Traffic counters: what a lane writes about itself into its rank's line of the arena, for ferry-stat
 * (router/daemon/counter_pages.h reads it): calls, bytes, and the ranks that it waits for. The lane's thread is the one
 * writer of that part of the line: a load and a store in a cache line of its own, per copy and per call.
 */
#ifndef FERRY_ROUTER_ENGINE_TRAFFIC_H
#define FERRY_ROUTER_ENGINE_TRAFFIC_H

#include "router/engine/member.h"

static inline struct ferry_traffic *ferry_traffic_of(const struct ferry_lane_rank *lane_rank)
{
	return &ferry_member_line(lane_rank->member)->traffic[lane_rank->direction];
}

static inline void ferry_traffic_add(_Atomic uint64_t *field, uint64_t more)
{
	atomic_store_explicit(field, atomic_load_explicit(field, memory_order_relaxed) + more, memory_order_relaxed);
}

/** A copy of so many bytes has been started. */
static inline void ferry_traffic_moves(const struct ferry_lane_rank *lane_rank, uint64_t bytes)
{
	ferry_traffic_add(&ferry_traffic_of(lane_rank)->bytes, bytes);
}

/** A push of so many bytes into that rank's memory has been started. D2H lane. */
static inline void ferry_traffic_pushes(const struct ferry_lane_rank *lane_rank, uint32_t to, uint64_t bytes)
{
	ferry_traffic_add(&ferry_member_line(lane_rank->member)->pushed[to], bytes);
}

/** The lane's half of a call is over. */
static inline void ferry_traffic_ends_call(const struct ferry_lane_rank *lane_rank)
{
	ferry_traffic_add(&ferry_traffic_of(lane_rank)->calls, 1);
}

/** Since then (nanoseconds) nothing has moved, for want of these ranks; 0: none, or something moves. */
static inline void ferry_traffic_awaits(struct ferry_lane_rank *lane_rank, uint64_t ranks, uint64_t since)
{
	struct ferry_traffic *traffic = ferry_traffic_of(lane_rank);
	atomic_store_explicit(&traffic->since, since, memory_order_relaxed);
	atomic_store_explicit(&traffic->blockers, ranks, memory_order_relaxed);
	lane_rank->awaiting = ranks;
}

/**
 * To be called before each copy. Returns false if none may begin, as the job has failed. A rank that is about to leave
 * a failed job reads `moves` (rank-lib/failover/copy_quiesce.h): each side stores, then loads, with a full fence
 * between, so that one of them sees the other's store.
 */
static inline bool ferry_traffic_may_move(struct ferry_lane_rank *lane_rank)
{
	_Atomic uint32_t *moves = &ferry_traffic_of(lane_rank)->moves;
	if (lane_rank->moves)
		return true;
	atomic_store_explicit(moves, 1, memory_order_relaxed);
	ferry_full_fence();
	if (lane_rank->member->ops->failed(lane_rank->member)) {
		atomic_store_explicit(moves, 0, memory_order_relaxed);
		return false;
	}
	lane_rank->moves = true;
	return true;
}

/** The lane is about to sleep: release, behind the last bytes of its copies. */
static inline void ferry_traffic_rests(struct ferry_lane_rank *lane_rank)
{
	if (!lane_rank->moves || lane_rank->under_way)
		return;
	lane_rank->moves = false;
	atomic_store_explicit(&ferry_traffic_of(lane_rank)->moves, 0, memory_order_release);
}

#endif
