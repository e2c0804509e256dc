/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What jobs divide their calls into, as their routers tell (router/status.h): a table for people, or a line of JSON for
 * each line of it, of which many make the log that ferry-plot draws. Called by ferry-stat.
 */
#ifndef FERRY_LAUNCH_SHARE_LIST_H
#define FERRY_LAUNCH_SHARE_LIST_H

#include "ipc/ferry_types.h"

#include <stdbool.h>
#include <stdio.h>

/** Asks all routers, one after the other; of those that do not answer nothing. Errors: those of ferry_sockets_find. */
ferryResult_t ferry_share_list_print(bool json, FILE *out);

#endif
