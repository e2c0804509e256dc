/* SPDX-License-Identifier: Apache-2.0 */
/** A call of Ferry's that is to succeed: a failed one fails the test with Ferry's message. */
#ifndef FERRY_TESTS_SUCCEEDS_H
#define FERRY_TESTS_SUCCEEDS_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "ferry.h"

#define OK(call)                                                                                                       \
	do {                                                                                                           \
		ferryResult_t result_ = (call);                                                                        \
		if (result_)                                                                                           \
			fail_msg("%s: %s: %s", #call, ferryGetErrorString(result_), ferryGetLastError(NULL));          \
	} while (0)

#endif
