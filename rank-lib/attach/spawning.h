/* SPDX-License-Identifier: Apache-2.0 */
/** Router processes that a rank starts where none answers. By the threads that make communicators. */
#ifndef FERRY_RANK_LIB_ATTACH_SPAWNING_H
#define FERRY_RANK_LIB_ATTACH_SPAWNING_H

#include "ipc/ferry_types.h"

#include <stdbool.h>
#include <stddef.h>

/** The program: FERRY_ROUTER_EXE, or beside this library, or on PATH. False: there is none. */
bool ferry_router_command(char *path, size_t bytes);

/**
 * Starts it as a daemon for that domain, with its socket in `directory` and that layout (NULL: its own view, from which
 * the calling thread's affinity mask hides nothing). Returns once it listens, or another one does. Error:
 * ferrySystemError.
 */
ferryResult_t ferry_router_spawn(const char *command, const char *directory, uint32_t domain, const char *layout);

#endif
