/* SPDX-License-Identifier: Apache-2.0 */
/**
 * How a router survives a rank that cuts its job's shared memory short. A rank holds a writable descriptor of that
 * memory. POSIX shared memory has no seals, so the rank can truncate it; touching a page that is gone raises SIGBUS.
 * The handler puts an empty private page in its place: the job computes nonsense and ends, the router and its other
 * jobs go on. For the daemon: a library does not take its host's signals.
 *
 * The connection thread and the job threads write the table of arenas, the handler reads it; a slot's base is stored
 * last, with release.
 */
#ifndef FERRY_ROUTER_DAEMON_SIGBUS_H
#define FERRY_ROUTER_DAEMON_SIGBUS_H

#include "ipc/arena.h"

/** Installs the SIGBUS handler. */
ferryResult_t ferry_sigbus_install(void);

/**
 * Adds or removes an arena's mapping; a sealed one is left out. Without a free slot the arena is not covered, with a
 * warning.
 */
void ferry_sigbus_add(const struct ferry_arena *arena);
void ferry_sigbus_remove(const struct ferry_arena *arena);

#endif
