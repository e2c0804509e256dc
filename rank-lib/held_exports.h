/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What the router that moves a rank's data has mapped of it, as it was told, to be told to the next one: of what
 * submissions name that are not over, older generations too. Written under the communicator's lock, read by the keeper,
 * which asks no driver.
 */
#ifndef FERRY_RANK_LIB_HELD_EXPORTS_H
#define FERRY_RANK_LIB_HELD_EXPORTS_H

#include "ipc/export.h"
#include "ipc/ferry_types.h"
#include "ipc/submission.h"

#include <pthread.h>

struct ferry_held_export;

struct ferry_held_exports {
	pthread_mutex_t lock;
	struct ferry_held_export *first;
	const struct ferry_ring *ring; /* whose `over` tells what is needed no more; constant */
	/* 1: the list has what the index names now; the list's, under the lock; who names it looks without */
	_Atomic uint8_t has[FERRY_MOST_EXPORTS];
};

void ferry_held_exports_init(struct ferry_held_exports *held, const struct ferry_ring *ring);
void ferry_held_exports_end(struct ferry_held_exports *held);

/**
 * It has been mapped; the descriptors, of its pieces, are the list's from here on, or closed where there is no memory.
 */
void ferry_held_exports_add(struct ferry_held_exports *held, const struct ferry_exported *exported,
                            const int *descriptors);

/** The index names something else from now on, or nothing; the last submission that named it is that one. */
void ferry_held_exports_retire(struct ferry_held_exports *held, uint32_t index, uint64_t last);

/**
 * Calls `give` with all that submissions name that are not over, or that is pinned; older generations of an index
 * first. The result is that of the first call that fails.
 */
ferryResult_t ferry_held_exports_each(struct ferry_held_exports *held, const struct ferry_export_cell *cells,
                                      ferryResult_t (*give)(void *context, const struct ferry_exported *exported,
                                                            const int *descriptors),
                                      void *context);

/**
 * Now and then: lets go of the descriptors of what no submission names that is not over, as long as they would hold
 * memory that its owner has freed. Who names it again finds that it is not in the list:
 *
 *   who names it:  used = n;  fence;  h = has;   puts it into the list again, unless h
 *   here:          has = 0;   fence;  u = used;  has = 1 again, if u > over
 *
 * so one of the two sees the other. Keeper.
 */
void ferry_held_exports_sweep(struct ferry_held_exports *held, const struct ferry_export_cell *cells);

#endif
