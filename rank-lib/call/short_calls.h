/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Short calls: collectives of ranks on host devices that a rank's callers run themselves, without a lane or a router. A
 * rank copies its part into its place in the staging of the call's parity, writes its descriptor, and takes the others'
 * parts from theirs once all ranks have written one. To the rest of Ferry it is a call like others, of an empty plan:
 * numbers, parities, disagreement, leaving and deaths are those of router/engine/order.h.
 *
 * The thread that makes a call begins it, if its stream is idle, and ends it if all is there. Else the call is left to
 * whoever waits for it, and the thread that waits spins, then sleeps. The lanes get it if it cannot begin, if nobody
 * has ended it by the communicator's next call, and if a thread has waited for long: they know what to say of ranks
 * that do not come. So a call that no thread waits for keeps no other rank waiting.
 */
#ifndef FERRY_RANK_LIB_CALL_SHORT_CALLS_H
#define FERRY_RANK_LIB_CALL_SHORT_CALLS_H

#include "rank-lib/call/direct.h"

struct short_call;

struct ferry_short_calls {
	struct ferry_direct *direct; /* constant */
	/* constant once it is open: bytes that a rank may put down for the others, and of a place; 0: no call fits */
	uint64_t most, place;
	struct ferry_plan plan; /* without instructions */
	struct ferry_steps steps;
	_Atomic(struct short_call *) spare; /* memory for the next call; any thread */
	_Atomic uint32_t yields_taken; /* by threads that wait, in a row: another thread ran meanwhile; relaxed */
	struct short_call *left; /* that no thread may wait for, with a reference; under the communicator's lock */
};

/** The arenas are mapped; before this no call fits. Errors: those of FERRY_SHORT. */
ferryResult_t ferry_short_calls_open(struct ferry_short_calls *shorts);

/** Whether the request is a short call: by collective, count, type, operation and root alone, so on all ranks alike. */
bool ferry_short_calls_fit(const struct ferry_short_calls *shorts, const struct ferry_request *request);

/** Makes a call that fits; under the communicator's lock. entry and stream of `call` are not used. */
ferryResult_t ferry_short_calls_make(struct ferry_short_calls *shorts, const struct ferry_collective_call *call);

void ferry_short_calls_free(struct ferry_short_calls *shorts);

/**
 * Ends the call that was left, or gives it to the lanes; before the next call is made. Under the communicator's lock.
 */
void ferry_short_calls_settle(struct ferry_short_calls *shorts);

#endif
