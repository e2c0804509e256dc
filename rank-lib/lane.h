/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Between lane.c, watch.c, run.c and pair.c: what a lane does for the runs of calls and for point-to-point transfers, and what those need
 * of a lane. Called by the lane's own thread only.
 */
#ifndef FERRY_RANK_LIB_LANE_H
#define FERRY_RANK_LIB_LANE_H

#include "ipc/environment.h"
#include "rank-lib/comm.h"

#define FERRY_LIVENESS_US 50000 /* how long a lane with unfinished calls sleeps before it looks whether the routers live */

/** Around each call of the device, which may keep the thread for ever (docs/architecture.md, "CUDA devices"). */
static inline void ferry_lane_drive(struct ferry_lane *lane)
{
	atomic_store_explicit(&lane->driving, atomic_load_explicit(&lane->driving, memory_order_relaxed) + 1, memory_order_relaxed);
}

/** Whether the lane has a call that its stream has not reached, or may reach again. */
bool ferry_lane_awaits_start(const struct ferry_lane *lane);

/** watch.c: now and then, while calls are under way: do the routers live, does the device, does the other lane come out of it? */
void ferry_lane_watch(struct ferry_lane *lane, uint64_t now);

/** Starts the copy of one slice; false if the device refused (the communicator has failed then). */
bool ferry_lane_copy(struct ferry_lane *lane, struct ferry_call *call, struct ferry_transfer *transfer, void *destination,
                     const void *source, uint64_t bytes, bool crosses);

/** Starts the next slice of a send or receive if its slot, or its data, is there. */
bool ferry_pair_issue(struct ferry_lane *lane, struct ferry_call *call, struct ferry_transfer *transfer);

/** A slice of a send or receive has been copied. */
void ferry_pair_publish(struct ferry_lane *lane, struct ferry_transfer *transfer);

/** The whole message has: the next one between these ranks may go. */
void ferry_pair_done(struct ferry_lane *lane, const struct ferry_transfer *transfer);

/** ferry_ticket.on_start and on_forget of every call. Any thread. */
void ferry_call_started(struct ferry_ticket *ticket);
void ferry_call_forgotten(struct ferry_ticket *ticket);

/* ---- run.c: D2H lane only, where nothing else is said ---- */

/** The number of the run that the call is in; 0: none (a call whose number rank 0 decides). */
static inline uint64_t ferry_run_number(const struct ferry_call *call)
{
	return atomic_load_explicit(&call->seq, memory_order_relaxed);
}

/** The stream has reached a call whose number rank 0 decides: true once it has one, and its bank is free. */
bool ferry_run_begin(struct ferry_lane *lane, struct ferry_call *call);

/** Whether the call before in this one's bank, and call `after` (0: none), are over on all ranks and in the routers that had work. */
bool ferry_run_may_begin(struct ferryComm *comm, uint64_t seq, uint64_t after);

/** The call before this one that is not over, so that this one may not begin; 0: none. *ranks: bit r: rank r has not finished it; 0: a router. */
uint64_t ferry_run_blocked_by(struct ferryComm *comm, const struct ferry_call *call, uint64_t *ranks);

/** Tells the other ranks and the routers. */
void ferry_run_submit(struct ferry_call *call);
/** Bit r: rank r has not submitted the call. Either lane. */
uint64_t ferry_run_missing(struct ferryComm *comm, const struct ferry_call *call);

/** True once all ranks have submitted the same call; a difference ends the communicator. */
bool ferry_run_agreed(struct ferry_call *call);

/** This lane is done with the run; the second to say so ends it. */
void ferry_run_end_half(struct ferry_call *call);

/** call.c: readies the call for its run in this bank. */
void ferry_call_arm(struct ferry_call *call, uint32_t bank);

/**
 * Bytes per slice of a message between two ranks whose slots have so many bytes: ends that agree on its length agree on this, and those
 * that do not learn it from the first slot.
 */
uint32_t ferry_pair_slice(uint32_t slot_bytes, uint64_t length);

#endif
