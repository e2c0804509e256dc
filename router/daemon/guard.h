/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The guard: survives a rank that cuts its job's shared memory short. A rank holds a writable descriptor of that
 * memory. POSIX shared memory has no seals, so the rank can truncate it; touching a page that is gone raises SIGBUS.
 * With the guard installed, a page of an arena that has gone is replaced by an empty private one: the job computes
 * nonsense and ends, the router and its other jobs go on. For the daemon: a library does not take its host's signals.
 *
 * The connection thread and the job threads write the table, the handler reads it; a slot's base is stored last, with
 * release.
 */
#ifndef FERRY_ROUTER_DAEMON_GUARD_H
#define FERRY_ROUTER_DAEMON_GUARD_H

#include "ipc/arena.h"

/** Installs the SIGBUS handler. */
ferryResult_t ferry_guard_install(void);

/**
 * Adds or removes an arena's mapping; a sealed one needs no guard. Without a free slot the arena stays unguarded, with
 * a warning.
 */
void ferry_guard_add(const struct ferry_arena *arena);
void ferry_guard_remove(const struct ferry_arena *arena);

#endif
