/* SPDX-License-Identifier: Apache-2.0 */
/**
 * For suites of bad input: a call must fail with this code and a message that says these words. Included by one file
 * each.
 */
#ifndef FERRY_TESTS_REFUSED_H
#define FERRY_TESTS_REFUSED_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "ferry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The call fails with this code, and its message has each of these words. Words: NULL-terminated. */
static void expect(const char *call, ferryResult_t result, ferryResult_t code, const char *message, ...)
{
	va_list words;
	if (result != code)
		fail_msg("%s: %s instead of %s: %s", call, ferryGetErrorString(result), ferryGetErrorString(code),
		         message);
	va_start(words, message);
	for (const char *word; (word = va_arg(words, const char *));)
		if (!strstr(message, word))
			fail_msg("%s: \"%s\" does not say \"%s\"", call, message, word);
	va_end(words);
}

#define REFUSED(code, call, ...)                                                                                       \
	do {                                                                                                           \
		ferryResult_t result_ = (call);                                                                        \
		expect(#call, result_, code, ferryGetLastError(NULL), __VA_ARGS__, NULL);                              \
	} while (0)

#endif
