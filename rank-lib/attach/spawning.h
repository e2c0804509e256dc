/* SPDX-License-Identifier: Apache-2.0 */
/** Router processes that a rank starts where none answers. Called by the threads that make communicators. */
#ifndef FERRY_RANK_LIB_ATTACH_SPAWNING_H
#define FERRY_RANK_LIB_ATTACH_SPAWNING_H

#include "ipc/ferry_types.h"

#include <stdbool.h>
#include <stddef.h>

/** Finds the router's program: FERRY_ROUTER_EXE, or beside this library, or on PATH. False: there is none. */
bool ferry_router_command(char *path, size_t bytes);

/**
 * Starts a router as a daemon for that domain, with its socket in `directory`. layout: as FERRY_LAYOUT; NULL: the
 * router finds its own, whatever the calling thread's affinity mask. Returns once it listens, or another one does.
 * Error: ferrySystemError.
 */
ferryResult_t ferry_router_spawn(const char *command, const char *directory, uint32_t domain, const char *layout);

#endif
