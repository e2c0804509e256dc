/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Groups: calls between ferryGroupStart and ferryGroupEnd are kept and launched together by the outermost end. The
 * state is the calling thread's alone.
 */
#ifndef FERRY_RANK_LIB_GROUP_H
#define FERRY_RANK_LIB_GROUP_H

#include "rank-lib/request.h"

/** What a group of this thread's refuses with at its end, if one is open and nothing was refused before. Returns it. */
ferryResult_t ferry_group_refuse(ferryResult_t result);

/** Keeps the request, checked, if a group is open; *result: what the function of the API returns then. */
bool ferry_group_keep(const struct ferry_request *request, ferryResult_t *result);

#endif
