/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Stall: a call that makes no progress: since when, which rank or router is the blocker, and whether that one can still
 * come. A lane checks now and then while its lane ranks have calls. It names the blocker after FERRY_TIMEOUT, and ends
 * the job, where FERRY_ON_TIMEOUT says so. It ends the job at once where the blocker has left the communicator, as the
 * call would wait for ever. By the lane's thread, where nothing else is said. What rank-lib/failover/watchdog.h says of
 * the rank's own router is found here, too.
 */
#ifndef FERRY_ROUTER_ENGINE_STALL_H
#define FERRY_ROUTER_ENGINE_STALL_H

#include "router/engine/member.h"

#define FERRY_STALL_LOOK_US 50000 /* so often, at most; a lane with unfinished calls sleeps no longer than this */

/** Whether it is time to check again; *checked: when the lane last did, nanoseconds. */
static inline bool ferry_stall_due(uint64_t *checked, uint64_t now)
{
	if (now - *checked < FERRY_STALL_LOOK_US * 1000ull)
		return false;
	*checked = now;
	return true;
}

/** A lane rank with calls that does not get on: what there is to say of it, and whether its routers live. */
void ferry_stall_watch_lane_rank(struct ferry_lane_rank *lane_rank, uint64_t now);

/**
 * A lane rank with calls, none of which gets on: true if one waits for a rank that has left (ipc/publish.h) without
 * making it, and the job has been ended, with that rank's name. Calls that the rank did make end before the job does.
 */
bool ferry_stall_end_departed(struct ferry_lane_rank *lane_rank);

/* The instruction that all others of a call wait for. */
struct ferry_stalled {
	const struct ferry_instr *instr; /* of the plan */
	uint32_t slice, nslices;         /* the one that is missing, from 0 */
	bool router;                     /* true: the router of domain `number` is to run it; false: rank `number` */
	uint32_t number;
};

/**
 * Finds the instruction that blocks call `seq` of the plan, which all ranks have submitted and which has made no
 * progress for long. Of all instructions whose gates are open it is the one that is least far, as a rank or router that
 * works runs such an instruction at once. Returns false if all that counters record is done. Of alltoallv, whose
 * lengths come with the call, it considers only instructions that have begun. Any thread; nothing is written.
 */
bool ferry_stall_find(const struct ferry_job_arenas *shared, const struct ferry_plan *plan, uint64_t seq,
                      struct ferry_stalled *stalled);

#endif
