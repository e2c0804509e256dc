/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The copies of a call that the user's stream makes itself: a rank's own block, from its send buffer to its receive
 * buffer.
 */
#ifndef FERRY_RANK_LIB_CALL_OWN_COPIES_H
#define FERRY_RANK_LIB_CALL_OWN_COPIES_H

#include "rank-lib/device/device.h"
#include "router/engine/call.h"

/** Fills in call->copies and ->ncopies; the copies are the caller's to free. Error: ferrySystemError. */
ferryResult_t ferry_own_copies(const struct ferry_steps *steps, const struct ferry_call_buffers *buffers,
                               struct ferry_stream_call *call);

/** Frees all copies of the call: the own blocks', and those to and from bounce buffers. */
void ferry_own_copies_free(const struct ferry_stream_call *call);

#endif
