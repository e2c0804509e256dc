/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Cache placement: moves lines of staging that a core writes or reads out of its private cache, which copy engines are
 * slow to read from.
 */
#ifndef FERRY_ROUTER_REDUCE_CACHE_H
#define FERRY_ROUTER_REDUCE_CACHE_H

#include <stddef.h>
#include <stdint.h>

#define FERRY_CACHE_LINE 64
#define FERRY_KEPT_PART 16 /* of what arrives in a slot, see ferry_keep_part */

/**
 * Sends lines from this core's private cache to the last-level cache. A hint: CPUs without cldemote run it as a no-op.
 */
static inline void ferry_demote(const char *lines, size_t bytes)
{
#if defined(__x86_64__)
	for (size_t at = 0; at < bytes; at += FERRY_CACHE_LINE)
		__asm__ volatile("cldemote %0" : : "m"(lines[at]));
#else
	(void)lines;
	(void)bytes;
#endif
}

/** Reads lines and demotes them: from then on the last-level cache keeps them as it keeps lines that cores use. */
static inline void ferry_keep_cached(const char *lines, size_t bytes)
{
	for (size_t at = 0; at < bytes; at += FERRY_CACHE_LINE)
		(void)*(const volatile char *)(lines + at);
	ferry_demote(lines, bytes);
}

/**
 * As ferry_keep_cached for a sixteenth of the `bytes` that have arrived in a slot, another sixteenth each lap. Bytes
 * behind them are not touched: the slots of alltoallv may be far longer than its messages.
 */
static inline void ferry_keep_part(const char *slot, uint64_t bytes, uint64_t lap)
{
	uint64_t part = bytes / FERRY_KEPT_PART / FERRY_CACHE_LINE * FERRY_CACHE_LINE;
	ferry_keep_cached(slot + lap % FERRY_KEPT_PART * part, part);
}

#endif
