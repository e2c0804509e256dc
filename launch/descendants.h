/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The processes below one, by /proc: what an mpiexec has started, which it alone knows of, and may be too ill to end.
 * Called by ferryrun when something has gone wrong; nothing is kept.
 */
#ifndef FERRY_LAUNCH_DESCENDANTS_H
#define FERRY_LAUNCH_DESCENDANTS_H

#include <sys/types.h>

/** Sends the signal to the process and to all below it: those that have a living parent up to it. */
void ferry_descendants_signal(pid_t pid, int number);

/** The threads of that process; 0: it is not known. */
unsigned ferry_descendants_threads(pid_t pid);

#endif
