/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/child_keys.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

const struct ferry_nccl_key ferry_nccl_child_keys_split;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int compare(const void *a, const void *b)
{
	int x = *(const int *)a, y = *(const int *)b;
	return (x > y) - (x < y);
}

bool ferry_nccl_child_keys_shrink(const int *excluded, int count, struct ferry_nccl_key *way)
{
	size_t bytes = (size_t)count * sizeof *excluded;
	int *sorted = excluded && count > 0 && count <= FERRY_MAX_RANKS ? malloc(bytes) : NULL; /* not checked yet */
	if (!sorted)
		return false;
	memcpy(sorted, excluded, bytes);
	qsort(sorted, (size_t)count, sizeof *sorted, compare);
	*way = ferry_nccl_key(NULL, sorted, bytes);
	free(sorted);
	return true;
}

/*
 * Adds to how often a communicator was made in this way, and gives how often before. False: a count was missed for want
 * of memory, so that this rank's counts are not the others' any more.
 */
static bool add(struct ferry_nccl_comm *parent, const struct ferry_nccl_key *way, int by, uint64_t *before)
{
	pthread_mutex_lock(&lock);
	struct ferry_nccl_way *at = parent->ways;
	while (at && memcmp(&at->name, way, sizeof *way))
		at = at->next;
	if (!at && (at = calloc(1, sizeof *at))) {
		at->name = *way;
		at->next = parent->ways;
		parent->ways = at;
	}
	*before = at ? at->times : 0;
	if (by > 0 ? at != NULL : *before > 0)
		at->times += (uint64_t)by;
	parent->miscounted |= !at;
	bool right = !parent->miscounted;
	pthread_mutex_unlock(&lock);
	return right;
}

bool ferry_nccl_child_keys_count(struct ferry_nccl_comm *parent, const struct ferry_nccl_key *way, int color,
                                 struct ferry_nccl_key *key)
{
	uint64_t nth;
	bool counted = add(parent, way, 1, &nth);
	uint64_t facts[] = {way->words[0], way->words[1], nth, (uint64_t)color};
	*key = ferry_nccl_key(&parent->key, facts, sizeof facts);
	return counted;
}

void ferry_nccl_child_keys_uncount(struct ferry_nccl_comm *parent, const struct ferry_nccl_key *way)
{
	uint64_t before;
	add(parent, way, -1, &before);
}
