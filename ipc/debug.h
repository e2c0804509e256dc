/* SPDX-License-Identifier: Apache-2.0 */
/** What FERRY_DEBUG asks for, beside the log, whatever that's level is: by ranks and routers. */
#ifndef FERRY_IPC_DEBUG_H
#define FERRY_IPC_DEBUG_H

#include "ipc/ferry_types.h"

#include <stdbool.h>
#include <stdint.h>

enum ferry_debug { FERRY_DEBUG_PLAN = 1, FERRY_DEBUG_TAKEOVER = 2 };

/** Reads it, again with each communicator. Error: ferryInvalidArgument, with its value. */
ferryResult_t ferry_debug_read(void);

bool ferry_debug_wants(enum ferry_debug what);

/** FERRY_DEBUG_TAKEOVER: a step of one, on standard error: how long after `since_ns` (ferry_now_ns), and what. */
void ferry_debug_takeover(uint64_t since_ns, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
