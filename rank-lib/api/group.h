/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Groups: calls between ferryGroupStart and ferryGroupEnd are kept and launched together by the outermost end. The
 * state is the calling thread's alone.
 */
#ifndef FERRY_RANK_LIB_API_GROUP_H
#define FERRY_RANK_LIB_API_GROUP_H

#include "rank-lib/call/request.h"

/** What a group of this thread's refuses with at its end, if one is open and nothing was refused before. Returns it. */
ferryResult_t ferry_group_refuse(ferryResult_t result);

/** Keeps the request, checked, if a group is open; *result: what the function of the API returns then. */
bool ferry_group_keep(const struct ferry_request *request, ferryResult_t *result);

/** Calls of a group that are in their streams but for their ends (open_call.h). */
struct ferry_open_group {
	struct ferry_open_call *calls; /* NULL: none */
	uint32_t ncalls;
};

/** The thread's next call that a group keeps has this stamp, if the group is ended open (open_call.h). */
void ferry_group_stamp(uint32_t stamp);

/**
 * The thread's next call that a group keeps leaves so much of every block alone; its count and buffers are those of the
 * whole. All ranks say the same.
 */
void ferry_group_leave_out(const struct ferry_left_out *left_out);

/**
 * Ends the group as ferryGroupEnd does, but leaves all its calls open: what the caller puts into their streams until
 * ferry_group_finish runs beside them. Whatever it returns, ferry_group_finish is to be called then, by the same
 * thread. ferryInvalidUsage where the group is none, or lies within another.
 */
ferryResult_t ferry_group_end_open(struct ferry_open_group *open);

/** Calls of the streams come behind the group's again. The first error, of all calls. */
ferryResult_t ferry_group_finish(struct ferry_open_group *open);

#endif
