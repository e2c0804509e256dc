/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A result code together with a message that carries the values. Every function that can fail returns a ferryResult_t
 * and, on failure, has called ferry_fail(), which keeps the message for the calling thread (ferryGetLastError reads
 * it). Thread-local: no other thread writes it.
 */
#ifndef FERRY_IPC_ERROR_H
#define FERRY_IPC_ERROR_H

#include "ipc/ferry_types.h"

#include <stdint.h>
#include <stdio.h>

/**
 * Keeps the message for this thread and returns code: `return ferry_fail(ferrySystemError, "mmap of %zu bytes: %s",
 * ...)`.
 */
ferryResult_t ferry_fail(ferryResult_t code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** Puts text in front of the message kept, for callers that know what was being attempted. Returns code. */
ferryResult_t ferry_fail_context(ferryResult_t code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** The last message kept by this thread; "" if none. Valid until the thread's next failure. */
const char *ferry_last_message(void);

/** For a caller whose attempt was allowed to fail: removes this thread's message. */
void ferry_forget_message(void);

/** The fixed sentence for a code ("invalid argument"); never NULL. */
const char *ferry_result_text(ferryResult_t code);

enum ferry_log_level { FERRY_LOG_ERROR, FERRY_LOG_WARN, FERRY_LOG_INFO, FERRY_LOG_DEBUG };

/** Messages up to this level go to stderr; set once at start (FERRY_LOG, --log). Default FERRY_LOG_WARN. */
void ferry_log_set_level(enum ferry_log_level level);

/** Parses "error", "warn", "info" or "debug" into *level. Returns 0 if it is none of them. */
int ferry_log_parse(const char *text, enum ferry_log_level *level);

/** One line on stderr: "ferry[pid] LEVEL: message". Async-signal-unsafe. */
void ferry_log(enum ferry_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define FERRY_LOG_BURST   30u /* lines about one user in so many seconds */
#define FERRY_LOG_BURST_S 10u

/**
 * As ferry_log, for a line that a user's process can cause as often as it likes: more than FERRY_LOG_BURST in
 * FERRY_LOG_BURST_S seconds are left out, and their number is logged before the next line. `user`: a uid; users whose
 * numbers are equal in their last six bits may share a limit.
 */
void ferry_log_limited(uint32_t user, enum ferry_log_level level, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#endif
