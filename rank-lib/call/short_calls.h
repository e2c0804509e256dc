/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Short calls of a communicator: which calls its callers run themselves (short_call.h), and how one is made. A
 * collective: a rank copies its part into its place in the staging of the call's parity, writes its descriptor, and
 * takes the others' parts from theirs. To the rest of Ferry it is a call like others, of an empty plan: numbers,
 * parities, disagreement, leaving and deaths are those of router/engine/order.h. Messages go through the windows of
 * their pairs as they do by lanes, so that either end may have either (router/engine/pair.h). All functions but
 * ferry_short_calls_open under the communicator's lock.
 */
#ifndef FERRY_RANK_LIB_CALL_SHORT_CALLS_H
#define FERRY_RANK_LIB_CALL_SHORT_CALLS_H

#include "rank-lib/call/short_call.h"

/** The arenas are mapped; before this no call fits. Errors: those of FERRY_SHORT. */
ferryResult_t ferry_short_calls_open(struct ferry_short_calls *shorts);

/** Whether the request is a short call: by collective, count, type, operation and root alone, so on all ranks alike. */
bool ferry_short_calls_fit(const struct ferry_short_calls *shorts, const struct ferry_request *request);

/** Makes a call that fits. entry and stream of `call` are not used. */
ferryResult_t ferry_short_calls_make(struct ferry_short_calls *shorts, const struct ferry_collective_call *call);

/**
 * Whether these messages are a short call here: as long as lanes have none, and none is long or pushed (`fabrics` as
 * for ferry_direct_pairs). The call before has been settled.
 */
bool ferry_short_messages_fit(const struct ferry_short_calls *shorts, const struct ferry_request *requests,
                              uint32_t nrequests, const struct ferry_fabrics *fabrics);

/** Makes a call of messages that fit. */
ferryResult_t ferry_short_messages_make(struct ferry_short_calls *shorts, const struct ferry_request *requests,
                                        uint32_t nrequests, const struct ferry_fabrics *fabrics);

#endif
