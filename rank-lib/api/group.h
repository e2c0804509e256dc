/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Groups: calls between ferryGroupStart and ferryGroupEnd are kept and launched together by the outermost end. The
 * state is the calling thread's alone.
 */
#ifndef FERRY_RANK_LIB_API_GROUP_H
#define FERRY_RANK_LIB_API_GROUP_H

#include "rank-lib/call/request.h"

/** Makes an open group of this thread return `result` at its end, unless it already has an error. Returns `result`. */
ferryResult_t ferry_group_refuse(ferryResult_t result);

/** Checks and keeps the request if a group is open. *result: what the function of the API then returns. */
bool ferry_group_keep(const struct ferry_request *request, ferryResult_t *result);

/** Calls of a group that are in their streams but for their ends (open_call.h). */
struct ferry_open_group {
	struct ferry_open_call *calls; /* NULL: none */
	uint32_t ncalls;
};

/**
 * Makes the thread's next call in a group leave this part of every block alone; the call's count and buffers remain
 * those of the whole block. All ranks must pass the same.
 */
void ferry_group_leave_out(const struct ferry_left_out *left_out);

/**
 * Ends the group as ferryGroupEnd does, but leaves all its calls open: work that the caller puts into their streams
 * before ferry_group_finish runs beside them. Whatever this returns, the same thread must then call ferry_group_finish.
 * Error: ferryInvalidUsage when no group is open, or when it lies within another group.
 */
ferryResult_t ferry_group_end_open(struct ferry_open_group *open);

/** Completes the calls, so that later work in the streams follows them. Returns the first error of all calls. */
ferryResult_t ferry_group_finish(struct ferry_open_group *open);

#endif
