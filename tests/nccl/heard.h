/* SPDX-License-Identifier: Apache-2.0 */
/** What this process says on standard error between two moments, for tests of lines of the log. By its main thread. */
#ifndef FERRY_TESTS_NCCL_HEARD_H
#define FERRY_TESTS_NCCL_HEARD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int heard, said_to;

static inline void listen_to_all(void)
{
	char path[] = "/tmp/ferry-heard-XXXXXX";
	fflush(stderr);
	heard = mkstemp(path);
	said_to = dup(STDERR_FILENO);
	assert_true(heard >= 0 && said_to >= 0);
	unlink(path);
	dup2(heard, STDERR_FILENO);
}

/** The end of it: the words were said so many times. */
static inline void must_have_said(const char *words, int times)
{
	static char said[1 << 16];
	int count = 0;
	dup2(said_to, STDERR_FILENO);
	close(said_to);
	ssize_t length = pread(heard, said, sizeof said - 1, 0);
	close(heard);
	said[length > 0 ? length : 0] = '\0';
	for (const char *at = said; (at = strstr(at, words)); at++)
		count++;
	if (count != times)
		fail_msg("\"%s\" was said %d times, not %d: %s", words, count, times, said);
}

#endif
