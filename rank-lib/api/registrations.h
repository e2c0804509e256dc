/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Buffers that an application has registered on a communicator: their exports stay pinned until it deregisters them or
 * the communicator ends. Under the communicator's lock.
 */
#ifndef FERRY_RANK_LIB_API_REGISTRATIONS_H
#define FERRY_RANK_LIB_API_REGISTRATIONS_H

#include "rank-lib/call/exports.h"

struct ferry_registrations {
	struct ferry_registration *all;
};

/** exports: NULL if no router moves the rank's data. Errors: those of exporting; ferrySystemError without memory. */
ferryResult_t ferry_registrations_add(struct ferry_registrations *registrations, struct ferry_exports *exports,
                                      const void *buffer, size_t bytes, void **handle);

/** Errors: ferryInvalidArgument for a handle that ferry_registrations_add has not returned; the router's. */
ferryResult_t ferry_registrations_remove(struct ferry_registrations *registrations, struct ferry_exports *exports,
                                         void *handle);

/** Frees the registrations that are left. */
void ferry_registrations_free(struct ferry_registrations *registrations);

#endif
