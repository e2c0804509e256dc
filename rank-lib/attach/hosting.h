/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The routers that this process hosts (FERRY_ROUTER=embedded). The first rank to claim a domain's socket name hosts
 * that domain's router; the name is abstract, so it dies with the host. By the threads that make and end communicators.
 */
#ifndef FERRY_RANK_LIB_ATTACH_HOSTING_H
#define FERRY_RANK_LIB_ATTACH_HOSTING_H

#include "ipc/ferry_types.h"
#include "ipc/layout.h"

#include <stdbool.h>

/** One more communicator of this process uses routers of that name. Error: ferryInvalidUsage if there are too many. */
ferryResult_t ferry_hosting_join(const char *prefix);

/**
 * This process leaves a communicator. The last one to leave ends the routers that this process hosts: once the other
 * ranks have detached, also from communicators made out of theirs meanwhile, or at once with `abort`.
 */
void ferry_hosting_leave(const char *directory, const char *prefix, bool abort);

/** Hosts the router of that domain, which listens on `path`. Error: ferryInvalidUsage if another process hosts it. */
ferryResult_t ferry_hosting_start(const struct ferry_layout *layout, uint32_t domain, const char *directory,
                                  const char *prefix, const char *path);

/** Whether this process hosts a router. */
bool ferry_hosting_any(void);

/** Around a fork: no other thread holds the lock. A child keeps the descriptors of a router hosted here. */
void ferry_hosting_before_fork(void);
void ferry_hosting_after_fork(void);

#endif
