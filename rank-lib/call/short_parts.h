/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What a short collective does with its rank's part, which it puts down in the staging of the call's parity, and with
 * those of the others. By the thread that runs the call.
 */
#ifndef FERRY_RANK_LIB_CALL_SHORT_PARTS_H
#define FERRY_RANK_LIB_CALL_SHORT_PARTS_H

#include "router/engine/member.h"

struct ferry_short_parts {
	const char *send;
	char *receive;
	uint64_t place; /* bytes of a rank's place in the staging */
};

/** Whether the rank takes nothing of the others': the root of a Broadcast or Scatter, others of a Reduce or Gather. */
bool ferry_short_parts_only_sends(const struct ferry_call *call);

/** Before the descriptor: copies what others take of this rank into its place. */
void ferry_short_parts_put_down(const struct ferry_call *call, const struct ferry_short_parts *parts);

/** All parts that the rank takes are there: sums them, or copies them into the receive buffer. */
void ferry_short_parts_conclude(const struct ferry_call *call, const struct ferry_short_parts *parts);

#endif
