/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The put gate of a host device's memory, into which other ranks' lanes copy themselves. A lane enters the gate before
 * it puts and leaves it afterwards. The owner shuts the gate when the job has failed, before its streams go on and its
 * memory is the application's again. Before a failure a call ends only after all puts of others, so no lane is inside.
 * In the ranks' lines (ipc/arena.h):
 *
 *   putter:  putting |= owner;  fence;  s = shut;  put, unless s;  putting &= ~owner;  fence;  ring, if shut
 *   owner:   shut = 1;  fence;  p = putting of all;  the streams go on, if no p has the owner; else look again
 *
 * If the owner's load does not see the bit, its fence comes before the putter's, so the putter sees `shut` and puts
 * nothing. If it sees the bit, the memory stays the call's until the bit is cleared, which happens with release after
 * the last byte. No wake-up is lost: a putter that does not see `shut` has cleared its bit before the owner looks.
 * `putting` has one writer, the D2H lane of the rank that puts. Both lanes of the owner store `shut`, as either may end
 * a call, and each takes all steps of the owner; `shut` becomes 1 and stays.
 *
 * A bit is void if the process of its rank has ended: once the pidfd is readable no system call of that process is
 * under way. Process numbers are reused, so a line also has the time when its process was started.
 * docs/models/put_gate.pml checks this.
 */
#ifndef FERRY_RANK_LIB_CALL_PUT_GATE_H
#define FERRY_RANK_LIB_CALL_PUT_GATE_H

#include "rank-lib/failover/rank.h"

/* What one of an owner's lanes knows of its gate. */
struct ferry_put_gate {
	uint64_t shut_ns; /* ferry_now_ns when the lane shut it; 0: it has not */
	bool given_up;    /* another lane has been inside for too long */
};

/** Returns false if the gate is shut, as the job has failed: then nothing may be put. D2H lane, around each copy. */
bool ferry_put_gate_enter(struct ferry_rank *rank, uint32_t owner);
void ferry_put_gate_leave(struct ferry_rank *rank, uint32_t owner);

/**
 * Shuts the rank's gate after the job has failed. Returns true once no lane is inside; a lane that leaves rings the
 * owner's lanes. If a stopped process stays inside for ten seconds, logs it and waits no longer. Each lane, before it
 * ends a call.
 */
bool ferry_put_gate_shut(struct ferry_put_gate *put_gate, struct ferry_rank *rank);

#endif
