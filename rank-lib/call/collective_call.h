/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A collective with its plan and its place in the order of calls: what launch.c hands to mapped.c or direct.c. Used by
 * the application's thread that makes the call.
 */
#ifndef FERRY_RANK_LIB_CALL_COLLECTIVE_CALL_H
#define FERRY_RANK_LIB_CALL_COLLECTIVE_CALL_H

#include "ipc/export.h"
#include "ipc/submission.h"
#include "rank-lib/call/numbering.h"
#include "rank-lib/call/plan_cache.h"
#include "rank-lib/call/request.h"
#include "rank-lib/device/device.h"

struct ferry_collective_call {
	const struct ferry_request *request;
	/* with a reference, which the callee takes over once the call has its number, and gives back if it fails */
	struct ferry_plan_entry *entry;
	uint32_t shape; /* as in the descriptor */
	struct ferry_number number;
	struct ferry_redop factor; /* premulsum */
	struct ferry_stream_state stream;
	/* mapped: of the send and the receive buffer, and of the rank's device memory; generation 0: none is needed */
	struct ferry_buffer_name names[3];
	/* mapped: bounce buffers named instead of buffers that no router can map; NULL: the buffer itself */
	char *bounces[2];
	char *memory; /* mapped: the rank's device memory; NULL: the plan has no windows there */
	/* mapped: with its stream flag and turn, and what a graph that gets the call is to do at its end */
	struct ferry_submission head;
	struct ferry_stream_call in_stream;
};

#endif
