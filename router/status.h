/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What a router tells of itself (ferry-stat asks): lines of "name=value" words. By the connection thread; what it reads
 * of others' is counters that nobody acts on.
 */
#ifndef FERRY_ROUTER_STATUS_H
#define FERRY_ROUTER_STATUS_H

#include "router/jobs.h"

/**
 * The line that a STATUS message asks for (ipc/attach.h): of the router, or of its first job, GPU or line
 * of shares from a number on.
 * Empty where there is none. A tenant's user sees its own jobs and its own tenant alone. ferryInvalidArgument: of what
 * else.
 */
ferryResult_t ferry_status_print(struct ferry_jobs *jobs, const struct ferry_standing *standing,
                                 const struct ferry_attach_message *message, char *text, size_t bytes);

#endif
