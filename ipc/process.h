/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Processes as others know them: by a number, and by when the process of that number was started, as numbers are given
 * again. Both are worth something only to who knows processes by the same numbers (ferry_process_names).
 */
#ifndef FERRY_IPC_PROCESS_H
#define FERRY_IPC_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/** When it was started, in the kernel's ticks; 0: there is no such process, or it cannot be seen. */
uint64_t ferry_process_start(pid_t process);

/** Whose numbers this process knows processes by (its pid name space); 0: that cannot be seen. */
uint64_t ferry_process_names(void);

/** False once it has ended; where that cannot be told it is taken to live. start: as ferry_process_start told. */
bool ferry_process_lives(pid_t process, uint64_t start);

/**
 * A descriptor of a process, above 2, that can be read once it has ended, with all its threads and all that it had
 * open; -1, with errno: an old kernel, or no such process.
 */
int ferry_process_open(pid_t process);

/** Of such a descriptor: whether the process has ended. */
bool ferry_process_has_ended(int descriptor);

#endif
