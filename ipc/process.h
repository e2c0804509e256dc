/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Processes: how one process identifies another, and the limits of this one. A process is identified by its number and
 * the time when it was started, as the kernel reuses numbers. Both are valid only within one pid namespace
 * (ferry_process_names). Messages name this process's limits (ulimit), so that a user knows which to raise. Descriptors
 * 0 to 2 are standard input, output and error: a process that was started without them (`>&-`, some service managers)
 * would get a socket under such a number, and the next printf would write into that. Commands open them first thing in
 * main; libferry keeps its own descriptors above them. This header keeps no state.
 */
#ifndef FERRY_IPC_PROCESS_H
#define FERRY_IPC_PROCESS_H

#include "ipc/ferry_types.h"

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/** Returns when a process was started, in the kernel's ticks; 0: there is no such process, or it cannot be seen. */
uint64_t ferry_process_start(pid_t process);

/** Returns a process's parent; 0: it has none in this namespace, or that cannot be seen. */
pid_t ferry_process_parent(pid_t process);

/** Whether a process's command has one of these names, which end with NULL. The kernel keeps 15 bytes of a name. */
bool ferry_process_is(pid_t process, const char *const *names);

/**
 * Returns the environment that a process was started with, for ferry_process_variable; the caller frees it. NULL: it
 * cannot be seen (another user's process), is empty, or the process has written its title over it.
 */
char *ferry_process_environment(pid_t process);

/** Returns the value of a variable in an environment as above; NULL: it has none, or an empty one. */
const char *ferry_process_variable(const char *environment, const char *name);

/** Returns the pid namespace by which this process numbers processes; 0: that cannot be seen. */
uint64_t ferry_process_names(void);

/** False once the process has ended; true where that is unknown. start: from ferry_process_start. */
bool ferry_process_lives(pid_t process, uint64_t start);

/**
 * Returns a descriptor of a process, above 2, that becomes readable once the process has ended, with all its threads,
 * and all its descriptors are closed; the caller closes it. -1, with errno: an old kernel, or no such process.
 */
int ferry_process_open(pid_t process);

/** Whether the process of that descriptor has ended. */
bool ferry_process_has_ended(int descriptor);

/**
 * Lets the calling thread, and what it starts, run on all CPUs that its control group allows, until
 * ferry_process_narrow gives it back its own mask. False: the kernel refuses that, and there is nothing to give back.
 */
bool ferry_process_widen(cpu_set_t *own);
void ferry_process_narrow(const cpu_set_t *own);

/**
 * Opens each of descriptors 0 to 2 that is closed on /dev/null, to read and to write; children inherit them. To be
 * called before any other descriptor is opened, and before any thread starts. Errors: ferrySystemError with the number.
 */
ferryResult_t ferry_descriptors_fill(void);

/**
 * Returns the descriptor if it is above 2; else closes it and returns a duplicate above 2 (close-on-exec). -1, with
 * errno: no duplicate could be made, or the descriptor was -1.
 */
int ferry_descriptor_above(int descriptor);

/**
 * Returns advice for an errno that says that there are no more descriptors: " (raise ulimit -n)"; "" for others. To be
 * appended to strerror's text.
 */
const char *ferry_descriptors_hint(int error);

/**
 * Returns advice for an errno of fork(2), posix_spawn(3) or pthread_create(3) that says that a limit is reached: the
 * limits; "" for others. To be appended to strerror's text.
 */
const char *ferry_ulimit_threads_hint(int error);

/** Returns advice for the errno of a mapping that failed: the limit to raise, or "". */
const char *ferry_ulimit_memory_hint(int error);

/**
 * To be called before a file, or shared memory, is extended to so many bytes: over the limit the kernel would end the
 * process by SIGXFSZ. Error: ferrySystemError with `what`, its size and the limit.
 */
ferryResult_t ferry_ulimit_check_file(const char *what, uint64_t bytes);

#endif
