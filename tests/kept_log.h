/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The messages that Ferry logs while a test keeps them: by this process, and by those that it starts meanwhile, for
 * suites that ask whether a rank or router has given up waiting for copies. That is logged, so no clock is needed.
 */
#ifndef FERRY_TESTS_KEPT_LOG_H
#define FERRY_TESTS_KEPT_LOG_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define GAVE_UP " for 10 s" /* in the messages of copy_quiesce.c, put_gate.c and put_targets.c */

static int kept_log = -1, kept_stderr = -1;
static size_t printed_log; /* bytes */

static inline const char *log_text(void)
{
	static char text[1 << 16];
	ssize_t length = pread(kept_log, text, sizeof text - 1, 0);
	text[length > 0 ? length : 0] = '\0';
	return text;
}

static inline bool log_has(const char *words)
{
	return strstr(log_text(), words);
}

static inline void log_print(void)
{
	const char *text = log_text();
	size_t length = strlen(text);
	if (length > printed_log)
		fputs(text + printed_log, stderr);
	printed_log = length;
}

/* stderr is what it was, and has the log so far. Processes that were started meanwhile go on with the log. */
static inline void log_release(void)
{
	if (kept_stderr >= 0) {
		dup2(kept_stderr, STDERR_FILENO);
		close(kept_stderr);
		kept_stderr = -1;
	}
	if (kept_log >= 0)
		log_print();
}

/* From now on stderr is the log, which starts empty, unless a test has failed since the last time. */
static inline void log_keep(void)
{
	if (kept_stderr >= 0)
		return;
	setenv("FERRY_LOG", "warn", 1);
	if (kept_log >= 0)
		log_print();
	else {
		kept_log = memfd_create("log", MFD_CLOEXEC);
		fcntl(kept_log, F_SETFL, O_APPEND);
		atexit(log_release); /* of a test that fails meanwhile */
	}
	(void)!ftruncate(kept_log, 0);
	printed_log = 0;
	kept_stderr = dup(STDERR_FILENO);
	dup2(kept_log, STDERR_FILENO);
}

#endif
