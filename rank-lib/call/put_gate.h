/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The door to a host device's memory, which other ranks' lanes put into by themselves: who puts goes in and out by it,
 * and its owner shuts it when the job has failed, before its streams go on and its memory is the application's again.
 * Until then a call ends behind all that others put, so nobody is inside. In the ranks' lines (ipc/arena.h):
 *
 *   who puts:  putting |= owner;  fence;  s = shut;  put, unless s;  putting &= ~owner;  fence;  ring, if shut
 *   owner:     shut = 1;  fence;  p = putting of all;  the streams go on, if no p has the owner; else look again
 *
 * If the owner's load does not see the bit, then its fence is before that of who puts, which therefore sees `shut` and
 * puts nothing. If it sees the bit, the memory stays the call's until the bit is gone, and the bit goes, with release,
 * behind the last byte. Nor does a wake-up get lost: who has put and does not see `shut` has taken its bit away before
 * the owner looks. `putting` has one writer, the D2H lane of the rank that puts. Both lanes of the owner store `shut`,
 * as either may be the one that ends a call, and each does all of what the owner does here: it becomes 1, and stays.
 *
 * A bit whose process has ended is nobody's: no system call of that process is under way any more once its pidfd is
 * readable. Numbers of processes come again, so a line has also when its process was started.
 * docs/models/door.pml checks this.
 */
#ifndef FERRY_RANK_LIB_CALL_PUT_GATE_H
#define FERRY_RANK_LIB_CALL_PUT_GATE_H

#include "rank-lib/failover/rank.h"

/* What one of an owner's lanes knows of its door. */
struct ferry_put_gate {
	uint64_t shut_ns; /* ferry_now_ns when the lane shut it; 0: it has not */
	bool given_up;    /* somebody has been inside for too long */
};

/** Whether all ranks, who have told, know each other's processes by the same numbers. */
bool ferry_put_gates_are_near(const struct ferry_rank *rank);

/** Whether that rank's process has ended; false also where that cannot be told, as it has numbers of its own. */
bool ferry_put_gate_has_ended(const struct ferry_rank *rank, uint32_t other);

/** False: it is shut, as the job has failed, and nothing is to be put. D2H lane, around each copy. */
bool ferry_put_gate_enter(struct ferry_rank *rank, uint32_t owner);
void ferry_put_gate_leave(struct ferry_rank *rank, uint32_t owner);

/**
 * The job has failed: shuts the rank's door. True once nobody is inside; who goes out rings the lanes. A process that
 * is stopped in there is told of after ten seconds, and not waited for any more. Each lane, before it ends a call.
 */
bool ferry_put_gate_shut(struct ferry_put_gate *put_gate, struct ferry_rank *rank);

#endif
