/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Groups: calls between ferryGroupStart and ferryGroupEnd are kept and launched together by the outermost end. The
 * state is the calling thread's alone.
 */
#ifndef FERRY_RANK_LIB_GROUP_H
#define FERRY_RANK_LIB_GROUP_H

#include "rank-lib/request.h"

/** Keeps the request, checked, if a group is open; *result: what the function of the API returns then. */
bool ferry_group_keep(const struct ferry_request *request, ferryResult_t *result);

#endif
