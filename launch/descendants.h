/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The processes below one, by /proc: what an mpiexec has started, which it alone knows of, and may be too ill to end.
 * Called by ferryrun when something has gone wrong; nothing is kept.
 */
#ifndef FERRY_LAUNCH_DESCENDANTS_H
#define FERRY_LAUNCH_DESCENDANTS_H

#include <stddef.h>
#include <sys/types.h>

/**
 * Sends the signal to the processes and to all below them, those that have living parents up to one. They are stopped
 * for that, so that none starts another meanwhile, and then continued, who had been stopped before too: a signal other
 * than SIGKILL is taken by nobody before.
 */
void ferry_descendants_signal(const pid_t *tops, size_t ntops, int number);

/** Continues those that are stopped. */
void ferry_descendants_continue(const pid_t *tops, size_t ntops);

/** The threads of that process; 0: it is not known. */
unsigned ferry_descendants_threads(pid_t pid);

#endif
