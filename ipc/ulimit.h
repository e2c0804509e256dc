/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What a shell's ulimit refuses, named so that one knows which to raise. Called by whoever starts threads and processes
 * or makes memory files; nothing is kept. ipc/descriptors.h has what ulimit -n refuses.
 */
#ifndef FERRY_IPC_ULIMIT_H
#define FERRY_IPC_ULIMIT_H

#include "ipc/ferry_types.h"

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
