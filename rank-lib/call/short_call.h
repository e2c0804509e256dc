/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Short calls: those of a rank on a host device that the rank's callers run themselves. A collective: a rank copies its
 * part into its place in the staging of the call's parity, writes its descriptor, and takes the others' parts from
 * theirs. To the rest of Ferry it is a call like others, of an empty plan: numbers, parities, disagreement, leaving and
 * deaths are those of router/engine/order.h. Messages go through the windows of their pairs as they do by lanes, so
 * that one end may be a short call while lanes run the other (router/engine/pair.h).
 *
 * The thread that makes a call runs it as far as it gets, if its stream is idle. Else, and where it is not over then,
 * the call is left to whichever thread waits for it: that thread spins, then sleeps. The lanes get it if it cannot
 * begin, if no thread has ended it by the communicator's next call, and if a thread has waited for long: they know what
 * to say of ranks that do not come. They also get messages that another rank waits for and no thread of this rank does.
 */
#ifndef FERRY_RANK_LIB_CALL_SHORT_CALL_H
#define FERRY_RANK_LIB_CALL_SHORT_CALL_H

#include "rank-lib/call/direct.h"
#include "rank-lib/call/short_parts.h"

#define FERRY_SHORT_MESSAGES 2u /* of a call without memory of their own */

struct ferry_short_call {
	struct ferry_ticket ticket;   /* shared with the stream */
	struct ferry_call call;
	struct ferry_short_calls *shorts;
	struct ferry_short_parts parts; /* of a collective */
	_Atomic uint32_t runner;      /* enum runner; release and acquire: `call` goes with it */
	bool is_own;                  /* constant: of the communicator's `own` memory */
	bool shared;                  /* constant once a stream or the lanes have it */
	_Atomic uint64_t looked_at;   /* when a thread that does not wait first looked; 0: none did */
	struct ferry_transfer messages[2 * FERRY_SHORT_MESSAGES];
};

/* What a communicator has for them. */
struct ferry_short_calls {
	/* constant */
	struct ferry_direct *direct;
	pthread_mutex_t *lock; /* the communicator's */
	/* constant once it is open: bytes that a rank may put down for the others, and of a place; 0: no call fits */
	uint64_t most, place;
	struct ferry_plan plan; /* without instructions */
	struct ferry_steps steps;
	struct ferry_short_call *own; /* memory of the next call, if there is none in it; under the lock */
	_Atomic uint32_t own_used;    /* there is: to 1 under the lock; to 0 by the call's last holder, release */
	_Atomic uint32_t looks;        /* of a call's maker, at most; relaxed, as it only says how long to look */
	_Atomic uint32_t yields_taken; /* by threads that wait, in a row: another thread ran meanwhile; relaxed */
	struct ferry_short_call *left; /* that no thread may wait for, with a reference; under the lock */
};

/** The communicator has no call any more. */
void ferry_short_calls_free(struct ferry_short_calls *shorts);

/** The arenas are mapped; before this no call fits. Errors: those of FERRY_SHORT. */
ferryResult_t ferry_short_calls_open(struct ferry_short_calls *shorts);

/**
 * Whether the request is a short call: by collective, count, type, operation and root alone, so on all ranks alike.
 * Under the communicator's lock, as all below.
 */
bool ferry_short_calls_fit(const struct ferry_short_calls *shorts, const struct ferry_request *request);

/** Makes a call that fits, call number seq. shape, factor: as in struct ferry_collective_call. */
ferryResult_t ferry_short_calls_make(struct ferry_short_calls *shorts, const struct ferry_request *request,
                                     uint32_t shape, const struct ferry_redop *factor, uint64_t seq,
                                     ferryStream_t stream);

/**
 * Whether these messages are a short call here: as long as lanes have none, and none is long or pushed (`fabrics` as
 * for ferry_direct_pairs). The call before has been settled.
 */
bool ferry_short_messages_fit(const struct ferry_short_calls *shorts, const struct ferry_request *requests,
                              uint32_t nrequests, const struct ferry_fabrics *fabrics);

/** Makes a call of messages that fit; stream and fabrics as for ferry_direct_pairs. */
ferryResult_t ferry_short_messages_make(struct ferry_short_calls *shorts, const struct ferry_request *requests,
                                        uint32_t nrequests, ferryStream_t stream,
                                        const struct ferry_fabrics *fabrics);

/** No call is under way, and the rank makes no more: compares its last calls with the others' (ferry_order_hear). */
void ferry_short_calls_hear(struct ferry_short_calls *shorts);

/** Ends the call that was left, or gives it to the lanes; before the next call is made. */
void ferry_short_calls_settle(struct ferry_short_calls *shorts);

#endif
