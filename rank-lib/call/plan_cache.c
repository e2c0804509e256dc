/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/call/plan_cache.h"

#include "ipc/attach.h"
#include "ipc/error.h"

#include <stdlib.h>

#define BUCKETS_LEAST 64

static uint64_t mix(uint64_t hash, uint64_t value)
{
	hash = (hash ^ value) * 0xff51afd7ed558ccdull;
	return hash ^ hash >> 32;
}

static uint64_t key_hash(const struct ferry_plan_key *key)
{
	uint64_t what = (uint64_t)key->collective << 32 | (uint64_t)key->type << 16 | (uint64_t)key->redop;
	uint64_t left_out = key->left_out.count << 2 | key->left_out.mirrored << 1 | key->left_out.packed;
	uint64_t block = mix(mix(what, key->count), left_out);
	return mix(mix(block, key->root), (uintptr_t)key->program);
}

static bool same_key(const struct ferry_plan_key *a, const struct ferry_plan_key *b)
{
	return a->collective == b->collective && a->type == b->type && a->redop == b->redop && a->count == b->count &&
	       a->left_out.count == b->left_out.count && a->left_out.mirrored == b->left_out.mirrored &&
	       a->left_out.packed == b->left_out.packed &&
	       a->root == b->root && a->no_adds == b->no_adds && a->program == b->program;
}

static struct ferry_plan_entry **bucket_of_key(const struct ferry_plan_cache *cache, const struct ferry_plan_key *key)
{
	return &cache->by_key[key_hash(key) & (cache->nbuckets - 1)];
}

static struct ferry_plan_entry **bucket_of_hash(const struct ferry_plan_cache *cache, uint64_t hash)
{
	return &cache->by_hash[hash & (cache->nbuckets - 1)];
}

/* ---- the order of use ---- */

static void put_newest(struct ferry_plan_cache *cache, struct ferry_plan_entry *entry)
{
	entry->newer = NULL;
	entry->older = cache->newest;
	*(cache->newest ? &cache->newest->newer : &cache->oldest) = entry;
	cache->newest = entry;
}

static void take_from_order(struct ferry_plan_cache *cache, struct ferry_plan_entry *entry)
{
	*(entry->newer ? &entry->newer->older : &cache->newest) = entry->older;
	*(entry->older ? &entry->older->newer : &cache->oldest) = entry->newer;
}

static void refer(struct ferry_plan_cache *cache, struct ferry_plan_entry *entry)
{
	if (atomic_fetch_add_explicit(&entry->references, 1, memory_order_relaxed) == 0)
		atomic_fetch_add_explicit(&cache->busy, 1, memory_order_relaxed);
}

void ferry_plan_cache_give_back(struct ferry_plan_cache *cache, struct ferry_plan_entry *entry)
{
	/* Release: from here on a thread that finds no reference may free the plan that this thread has read. */
	if (atomic_fetch_sub_explicit(&entry->references, 1, memory_order_acq_rel) == 1)
		atomic_fetch_sub_explicit(&cache->busy, 1, memory_order_relaxed);
}

struct ferry_plan_entry *ferry_plan_cache_surplus(struct ferry_plan_cache *cache)
{
	uint32_t busy = atomic_load_explicit(&cache->busy, memory_order_relaxed);
	if (cache->nentries <= busy + FERRY_IDLE_PLANS && cache->nentries < FERRY_MAX_PLANS)
		return NULL;
	for (uint32_t i = 0; i < cache->nentries; i++) {
		struct ferry_plan_entry *entry = cache->oldest;
		if (!atomic_load_explicit(&entry->references, memory_order_acquire))
			return entry;
		take_from_order(cache, entry); /* in use: moved, so that the next search does not begin with it */
		put_newest(cache, entry);
	}
	return NULL;
}

/* ---- the table ---- */

static void link_in(struct ferry_plan_cache *cache, struct ferry_plan_entry *entry)
{
	struct ferry_plan_entry **bucket = bucket_of_key(cache, &entry->key);
	entry->next_of_key = *bucket;
	*bucket = entry;
	bucket = bucket_of_hash(cache, entry->plan->hash);
	entry->next_of_hash = *bucket;
	*bucket = entry;
}

/* Keeps at least as many buckets as entries. If there is no memory for more, chains get longer. */
static ferryResult_t grow(struct ferry_plan_cache *cache)
{
	uint32_t nbuckets = cache->nbuckets ? 2 * cache->nbuckets : BUCKETS_LEAST;
	if (cache->nentries < cache->nbuckets)
		return ferrySuccess;
	struct ferry_plan_entry **by_key = calloc(2 * (size_t)nbuckets, sizeof *by_key);
	if (!by_key)
		return cache->nbuckets ? ferrySuccess : ferry_fail(ferrySystemError, "no memory for a table of plans");
	free(cache->by_key);
	cache->by_key = by_key;
	cache->by_hash = by_key + nbuckets;
	cache->nbuckets = nbuckets;
	for (struct ferry_plan_entry *entry = cache->oldest; entry; entry = entry->newer)
		link_in(cache, entry);
	return ferrySuccess;
}

static struct ferry_plan_entry *find(const struct ferry_plan_cache *cache, const struct ferry_plan_key *key)
{
	struct ferry_plan_entry *entry = cache->nbuckets ? *bucket_of_key(cache, key) : NULL;
	while (entry && !same_key(&entry->key, key))
		entry = entry->next_of_key;
	return entry;
}

const struct ferry_plan_entry *ferry_plan_cache_look(const struct ferry_plan_cache *cache,
                                                     const struct ferry_plan_key *key)
{
	return find(cache, key);
}

struct ferry_plan_entry *ferry_plan_cache_take(struct ferry_plan_cache *cache, const struct ferry_plan_key *key)
{
	struct ferry_plan_entry *entry = find(cache, key);
	if (!entry)
		return NULL;
	refer(cache, entry);
	take_from_order(cache, entry);
	put_newest(cache, entry);
	return entry;
}

ferryResult_t ferry_plan_cache_add(struct ferry_plan_cache *cache, struct ferry_plan_entry *entry)
{
	ferryResult_t result = grow(cache);
	if (result)
		return result;
	link_in(cache, entry);
	put_newest(cache, entry);
	refer(cache, entry);
	cache->nentries++;
	return ferrySuccess;
}

void ferry_plan_cache_remove(struct ferry_plan_cache *cache, struct ferry_plan_entry *entry)
{
	struct ferry_plan_entry **link = bucket_of_key(cache, &entry->key);
	while (*link != entry)
		link = &(*link)->next_of_key;
	*link = entry->next_of_key;
	link = bucket_of_hash(cache, entry->plan->hash);
	while (*link != entry)
		link = &(*link)->next_of_hash;
	*link = entry->next_of_hash;
	take_from_order(cache, entry);
	cache->nentries--;
}

const struct ferry_plan *ferry_plan_cache_of_hash(const struct ferry_plan_cache *cache, uint64_t hash)
{
	const struct ferry_plan_entry *entry = cache->nbuckets ? *bucket_of_hash(cache, hash) : NULL;
	while (entry && entry->plan->hash != hash)
		entry = entry->next_of_hash;
	return entry ? entry->plan : NULL;
}

bool ferry_plan_cache_has(const struct ferry_plan_cache *cache, uint64_t hash)
{
	return ferry_plan_cache_of_hash(cache, hash);
}

struct ferry_plan_entry *ferry_plan_cache_empty(struct ferry_plan_cache *cache)
{
	struct ferry_plan_entry *entry = cache->oldest;
	if (entry) {
		ferry_plan_cache_remove(cache, entry);
		return entry;
	}
	free(cache->by_key);
	*cache = (struct ferry_plan_cache){0};
	return NULL;
}
