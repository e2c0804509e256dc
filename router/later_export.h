/* SPDX-License-Identifier: Apache-2.0 */
/**
 * An export that is to be mapped later: what a rank has said of it, and descriptors of its own. The mapper's thread.
 */
#ifndef FERRY_ROUTER_LATER_EXPORT_H
#define FERRY_ROUTER_LATER_EXPORT_H

#include "ipc/export.h"
#include "ipc/ferry_types.h"

struct ferry_later_export {
	struct ferry_exported exported;
	int descriptors[FERRY_MOST_PIECES];
};

/** The descriptors stay the caller's. ferrySystemError: no memory, or no descriptors. */
ferryResult_t ferry_later_export_new(const struct ferry_exported *exported, const int *descriptors,
                                     struct ferry_later_export **made);

/** NULL: nothing. */
void ferry_later_export_free(struct ferry_later_export *later);

#endif
