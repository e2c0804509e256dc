/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What tests do otherwise under the sanitizers: they repeat less, as a check without sanitizers has the full number,
 * and what only prepares or judges a test's own memory is not instrumented for ThreadSanitizer.
 */
#ifndef FERRY_TESTS_SANITIZED_H
#define FERRY_TESTS_SANITIZED_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

/** How often a test repeats: `often`, under a sanitizer `seldom`. */
#define REPEATS(often, seldom) (SANITIZED ? (seldom) : (often))

/** A function whose accesses ThreadSanitizer does not see: of memory that no other thread has meanwhile. */
#ifdef __SANITIZE_THREAD__
#define UNSEEN __attribute__((no_sanitize("thread")))
#else
#define UNSEEN
#endif

#endif
