/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/child_keys.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* The first part of a key: splits and shrinks have different keys. */
enum { SPLIT, SHRINK };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct ferry_nccl_key ferry_nccl_child_keys_split(struct ferry_nccl_comm *parent, int color)
{
	uint64_t nth = atomic_fetch_add_explicit(&parent->splits, 1, memory_order_relaxed);
	uint64_t facts[] = {SPLIT, nth, (uint64_t)color};
	return ferry_nccl_key(&parent->key, facts, sizeof facts);
}

void ferry_nccl_child_keys_unsplit(struct ferry_nccl_comm *parent)
{
	atomic_fetch_sub_explicit(&parent->splits, 1, memory_order_relaxed);
}

static int compare(const void *a, const void *b)
{
	int x = *(const int *)a, y = *(const int *)b;
	return (x > y) - (x < y);
}

static bool name_list(const int *excluded, int count, struct ferry_nccl_key *name)
{
	size_t bytes = (size_t)count * sizeof *excluded;
	int *sorted = excluded && count > 0 && count <= FERRY_MAX_RANKS ? malloc(bytes) : NULL; /* not checked yet */
	if (!sorted)
		return false;
	memcpy(sorted, excluded, bytes);
	qsort(sorted, (size_t)count, sizeof *sorted, compare);
	*name = ferry_nccl_key(NULL, sorted, bytes);
	free(sorted);
	return true;
}

/* Under the lock. NULL: no memory. */
static struct ferry_nccl_shrink *find_or_add(struct ferry_nccl_comm *parent, const struct ferry_nccl_key *excluded)
{
	struct ferry_nccl_shrink *at = parent->shrinks;
	while (at && memcmp(&at->excluded, excluded, sizeof *excluded))
		at = at->next;
	if (at || !(at = calloc(1, sizeof *at)))
		return at;
	at->excluded = *excluded;
	at->next = parent->shrinks;
	parent->shrinks = at;
	return at;
}

bool ferry_nccl_child_keys_shrink(struct ferry_nccl_comm *parent, const int *excluded, int count,
                                  struct ferry_nccl_key *key)
{
	struct ferry_nccl_key name;
	if (!name_list(excluded, count, &name))
		return false;
	pthread_mutex_lock(&lock);
	struct ferry_nccl_shrink *shrink = find_or_add(parent, &name);
	uint64_t nth = shrink ? shrink->times++ : 0;
	pthread_mutex_unlock(&lock);
	uint64_t facts[] = {SHRINK, nth, name.words[0], name.words[1]};
	*key = ferry_nccl_key(&parent->key, facts, sizeof facts);
	return shrink;
}

void ferry_nccl_child_keys_unshrink(struct ferry_nccl_comm *parent, const int *excluded, int count)
{
	struct ferry_nccl_key name;
	if (!name_list(excluded, count, &name))
		return;
	pthread_mutex_lock(&lock);
	struct ferry_nccl_shrink *shrink = find_or_add(parent, &name);
	if (shrink && shrink->times)
		shrink->times--;
	pthread_mutex_unlock(&lock);
}
