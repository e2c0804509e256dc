/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/call/ranges.h"

#include <pthread.h>
#include <stdlib.h>

struct range {
	uint64_t start, end;
	struct ferry_holders *holders;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct range *ranges; /* unordered; under the lock, as are `places` and writes of `count` */
static uint32_t places;
static _Atomic uint32_t count;

void ferry_ranges_add(uint64_t start, uint64_t end, struct ferry_holders *holders)
{
	pthread_mutex_lock(&lock);
	uint32_t used = atomic_load_explicit(&count, memory_order_relaxed);
	if (used == places) {
		struct range *grown = realloc(ranges, (2 * places + 32) * sizeof *grown);
		if (grown) {
			ranges = grown;
			places = 2 * places + 32;
		}
	}
	if (used < places) {
		ranges[used] = (struct range){start, end, holders};
		atomic_store_explicit(&count, used + 1, memory_order_relaxed);
	}
	pthread_mutex_unlock(&lock);
}

void ferry_ranges_remove(uint64_t start, uint64_t end, struct ferry_holders *holders)
{
	pthread_mutex_lock(&lock);
	uint32_t used = atomic_load_explicit(&count, memory_order_relaxed), at = 0;
	while (at < used && !(ranges[at].start == start && ranges[at].end == end && ranges[at].holders == holders))
		at++;
	if (at < used) {
		ranges[at] = ranges[used - 1];
		atomic_store_explicit(&count, used - 1, memory_order_relaxed);
	}
	pthread_mutex_unlock(&lock);
}

static bool has(struct ferry_holders *const *found, uint32_t nfound, const struct ferry_holders *holders)
{
	for (uint32_t i = 0; i < nfound; i++)
		if (found[i] == holders)
			return true;
	return false;
}

/* Relaxed suffices for the first look: memory is freed after the call that named it, by the program's own order. */
uint32_t ferry_ranges_find(uint64_t start, uint64_t end, struct ferry_holders **found, uint32_t most)
{
	uint32_t nfound = 0;
	if (!atomic_load_explicit(&count, memory_order_relaxed))
		return 0;
	pthread_mutex_lock(&lock);
	uint32_t used = atomic_load_explicit(&count, memory_order_relaxed);
	for (uint32_t at = 0; at < used && nfound < most; at++)
		if (ranges[at].start < end && start < ranges[at].end && !has(found, nfound, ranges[at].holders) &&
		    ferry_holders_join(ranges[at].holders))
			found[nfound++] = ranges[at].holders;
	pthread_mutex_unlock(&lock);
	return nfound;
}

void ferry_ranges_before_fork(void)
{
	pthread_mutex_lock(&lock);
}

void ferry_ranges_after_fork(bool in_child)
{
	if (in_child)
		atomic_store_explicit(&count, 0, memory_order_relaxed);
	pthread_mutex_unlock(&lock);
}
