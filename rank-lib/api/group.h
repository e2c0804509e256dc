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

/**
 * Makes a call of the API. If this thread has a group open, checks the call and keeps it until the group ends. A
 * request may leave out a part of every block (left_out), the same on all ranks.
 */
ferryResult_t ferry_group_call(const struct ferry_request *request);

/** Calls of a group whose streams do not wait for their ends yet (rank-lib/call/open_call.h). */
struct ferry_open_group {
	struct ferry_open_call *calls; /* NULL: none */
	uint32_t ncalls;
};

/**
 * Ends the group as ferryGroupEnd does, but leaves all its calls open: work that the caller puts into their streams
 * before ferry_group_finish runs beside them. The same thread must then call ferry_group_finish, also after an error.
 * Error: ferryInvalidUsage when no group is open, or when it lies within another group.
 */
ferryResult_t ferry_group_end_open(struct ferry_open_group *open);

/** Completes the calls, so that later work in the streams follows them. Returns the first error of all calls. */
ferryResult_t ferry_group_finish(struct ferry_open_group *open);

#endif
