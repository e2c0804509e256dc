/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Processes: how others know one, and what this one may have. One is known by a number, and by when the process of that
 * number was started, as numbers are given again; both are worth something only to a process that knows processes by
 * the same numbers (ferry_process_names). This process's limits (ulimit) are named in messages, so that one knows which
 * to raise. Its descriptors 0 to 2 are standard input, output and error: one that was started without them (`>&-`, some
 * service managers) would get a socket under such a number, and the next printf would write into that. Commands fill
 * them, first thing in main; libferry keeps its own descriptors above them. Nothing is kept here.
 */
#ifndef FERRY_IPC_PROCESS_H
#define FERRY_IPC_PROCESS_H

#include "ipc/ferry_types.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/** When it was started, in the kernel's ticks; 0: there is no such process, or it cannot be seen. */
uint64_t ferry_process_start(pid_t process);

/** Whose numbers this process knows processes by (its pid name space); 0: that cannot be seen. */
uint64_t ferry_process_names(void);

/** False once the process has ended; true where that is unknown. start: from ferry_process_start. */
bool ferry_process_lives(pid_t process, uint64_t start);

/**
 * A descriptor of a process, above 2, that can be read once it has ended, with all its threads and all that it had
 * open; -1, with errno: an old kernel, or no such process.
 */
int ferry_process_open(pid_t process);

/** Of such a descriptor: whether the process has ended. */
bool ferry_process_has_ended(int descriptor);

/**
 * Opens each of descriptors 0 to 2 that is closed on /dev/null, to read and to write; children inherit them. To be
 * called before any other descriptor is opened, and before any thread starts. Errors: ferrySystemError with the number.
 */
ferryResult_t ferry_descriptors_fill(void);

/**
 * The descriptor, or, if it is one of 0 to 2, another one for the same in its stead (close-on-exec). -1, errno: there
 * is none, or it was -1.
 */
int ferry_descriptor_above(int descriptor);

/**
 * What to do about an errno that says that there is none: " (raise ulimit -n)"; "" for others. To be put behind
 * strerror's text.
 */
const char *ferry_descriptors_hint(int error);

/**
 * What to do about an errno of fork(2), posix_spawn(3) or pthread_create(3) that says that there may be no more: which
 * limits there are; "" for others. To be put behind strerror's text.
 */
const char *ferry_ulimit_threads_hint(int error);

/** For messages about a mapping that failed: what to raise, or nothing. */
const char *ferry_ulimit_memory_hint(int error);

/**
 * Before a file, or memory that is one, is made so long. Over the limit the kernel would not refuse it, but end the
 * process by SIGXFSZ. Errors: ferrySystemError with what it is for, its size and the limit.
 */
ferryResult_t ferry_ulimit_check_file(const char *what, uint64_t bytes);

#endif
