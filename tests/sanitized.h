/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What tests do otherwise under the sanitizers: they repeat less, as a check without sanitizers has the full number,
 * what only prepares or judges a test's own memory is not instrumented, and of long memory ThreadSanitizer sees a
 * sample.
 */
#ifndef FERRY_TESTS_SANITIZED_H
#define FERRY_TESTS_SANITIZED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

/** How often a test repeats: `often`, under a sanitizer `seldom`. */
#define REPEATS(often, seldom) (SANITIZED ? (seldom) : (often))

/** Hides a function's accesses from the sanitizers. They must be to memory that no other thread uses meanwhile. */
#define UNSEEN __attribute__((no_sanitize("thread"), no_sanitize("address"), no_sanitize("undefined")))

#ifdef __SANITIZE_THREAD__
void __tsan_read1(void *byte);
void __tsan_write1(void *byte);
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);
#endif

/*
 * ThreadSanitizer looks at each byte that memcpy touches, which took up to a third of a suite's time. A long copy
 * that races with another access still meets it in a sampled byte. A race within less than a KiB may go unseen, of a
 * copy of more than 64 KiB one within less than 16 KiB: each page of its record costs a page fault, which took half of
 * what was left.
 */

/** Reports to ThreadSanitizer an access to the first byte, the last, and that at each multiple of one or 16 KiB. */
static inline void sample(const void *memory, size_t bytes, bool written)
{
#ifdef __SANITIZE_THREAD__
	uintptr_t step = bytes > 65536 ? 16384 : 1024;
	char *first = (char *)memory, *end = first + bytes;
	char *next = (char *)(((uintptr_t)first | (step - 1)) + 1);
	for (char *at = first; at < end; at = at == end - 1 ? end : next < end ? next : end - 1, next += step)
		if (written)
			__tsan_write1(at);
		else
			__tsan_read1(at);
#endif
	(void)memory, (void)bytes, (void)written;
}

/** Begins what ThreadSanitizer does not see of this thread; ends it. */
static inline void unseen(bool begins)
{
#ifdef __SANITIZE_THREAD__
	if (begins) {
		AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
		AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
	} else {
		AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
		AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
	}
#endif
	(void)begins;
}

/** memset, memmove, and whether memory is the same, of samples. */
static inline void sampled_set(void *to, int value, size_t bytes)
{
	sample(to, bytes, true);
	unseen(true);
	memset(to, value, bytes);
	unseen(false);
}

static inline void sampled_copy(void *to, const void *from, size_t bytes)
{
	sample(from, bytes, false);
	sample(to, bytes, true);
	unseen(true);
	memmove(to, from, bytes);
	unseen(false);
}

static inline bool sampled_same(const void *one, const void *other, size_t bytes)
{
	sample(one, bytes, false);
	sample(other, bytes, false);
	unseen(true);
	bool same = !memcmp(one, other, bytes);
	unseen(false);
	return same;
}

#endif
