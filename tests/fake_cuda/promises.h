/* SPDX-License-Identifier: Apache-2.0 */
/** What the suites of the double's own promises share: a call that must succeed, a pause, and words that streams reach.
 */
#ifndef FERRY_TESTS_PROMISES_H
#define FERRY_TESTS_PROMISES_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "tests/fake_cuda/fake_cuda.h"

#include <stdint.h>
#include <string.h>
#include <time.h>

#define CU(call) assert_int_equal((call), CUDA_SUCCESS)

static inline void doze(int milliseconds)
{
	nanosleep(&(struct timespec){milliseconds / 1000, milliseconds % 1000 * 1000000l}, NULL);
}

static inline CUstream open_stream(void)
{
	CUstream stream;
	CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	return stream;
}

static inline uint32_t *open_words(void)
{
	void *words;
	CU(cuMemHostAlloc(&words, 4096, 0));
	memset(words, 0, 4096);
	return words;
}

#endif
