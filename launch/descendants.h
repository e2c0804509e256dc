/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The processes below one, by /proc: those that an mpiexec has started, which it alone knows, and may be unable to end.
 * Called by ferryrun when something has gone wrong; nothing is kept.
 */
#ifndef FERRY_LAUNCH_DESCENDANTS_H
#define FERRY_LAUNCH_DESCENDANTS_H

#include <stddef.h>
#include <sys/types.h>

/**
 * Sends the signal to the processes and to all below them whose parents are alive. Stops all of them first, so that
 * none starts another meanwhile, and continues them afterwards, even those that had been stopped before: a stopped
 * process handles no signal but SIGKILL.
 */
void ferry_descendants_signal(const pid_t *tops, size_t ntops, int number);

/** Continues the processes and all below them. */
void ferry_descendants_continue(const pid_t *tops, size_t ntops);

/** Returns the number of threads of that process; 0: unknown. */
unsigned ferry_descendants_threads(pid_t pid);

#endif
