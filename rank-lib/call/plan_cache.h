/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The plans that a communicator keeps: found by what was asked, in a table that grows, for as long as calls refer to
 * them and a while longer. Idle ones beyond FERRY_IDLE_PLANS are offered to whoever owns the cache, the least recently
 * used first; he forgets them when nobody else needs them any more.
 *
 * Everything happens under the communicator's lock, but for giving a reference back, which any thread may do at any
 * time. The cache neither makes plans nor frees them, and never waits.
 */
#ifndef FERRY_RANK_LIB_CALL_PLAN_CACHE_H
#define FERRY_RANK_LIB_CALL_PLAN_CACHE_H

#include "rank-lib/program/program.h"
#include "router/engine/steps.h"

#include <stdatomic.h>

#define FERRY_IDLE_PLANS 256

struct ferry_journal_entry;

struct ferry_plan_key {
	enum ferry_collective collective;
	ferryDataType_t type;
	ferryRedOp_t redop; /* ferryNumOps for every premulsum */
	uint64_t count;
	struct ferry_left_out left_out;
	uint32_t root;
	const struct ferry_program *program; /* a user's program, or NULL for the built-in one */
};

/* Constant once it is in the cache, where nothing else is said. */
struct ferry_plan_entry {
	struct ferry_plan_key key;
	struct ferry_plan *plan;
	struct ferry_journal_entry *journaled; /* the plan in the journal */
	struct ferry_steps steps;   /* this rank's; with `last_seq` */
	/* plan_cache.c's own */
	_Atomic uint32_t references; /* of calls; one more under the lock, one less by any thread */
	struct ferry_plan_entry *next_of_key, *next_of_hash, *older, *newer;
};

struct ferry_plan_cache {
	struct ferry_plan_entry **by_key, **by_hash; /* nbuckets each, a power of two */
	uint32_t nbuckets, nentries;
	struct ferry_plan_entry *oldest, *newest;    /* by last use; who refers to one when it is looked at uses it */
	_Atomic uint32_t busy; /* entries with references, or more: who lets the last one go counts it out after that */
};

/** The plan of this key, or NULL; for as long as the lock is held. It does not count as used. */
const struct ferry_plan_entry *ferry_plan_cache_look(const struct ferry_plan_cache *cache,
                                                     const struct ferry_plan_key *key);

/** The plan of this key with one more reference, or NULL. */
struct ferry_plan_entry *ferry_plan_cache_take(struct ferry_plan_cache *cache, const struct ferry_plan_key *key);

/** Puts in a plan whose key is not there, with one reference. Error: ferrySystemError; it is not in then. */
ferryResult_t ferry_plan_cache_add(struct ferry_plan_cache *cache, struct ferry_plan_entry *entry);

/** The caller does not touch the entry any more. Any thread. */
void ferry_plan_cache_give_back(struct ferry_plan_cache *cache, struct ferry_plan_entry *entry);

/**
 * The idle plan that was not used for longest, if there are too many idle ones, or as many plans as routers take; else
 * NULL.
 */
struct ferry_plan_entry *ferry_plan_cache_surplus(struct ferry_plan_cache *cache);

/** Takes an entry without references out. */
void ferry_plan_cache_remove(struct ferry_plan_cache *cache, struct ferry_plan_entry *entry);

/** Whether a plan of that hash is in. Two keys can have one plan: a user's program may say what another one says. */
bool ferry_plan_cache_has(const struct ferry_plan_cache *cache, uint64_t hash);

/** The plan of that hash, or NULL; for as long as the lock is held. */
const struct ferry_plan *ferry_plan_cache_of_hash(const struct ferry_plan_cache *cache, uint64_t hash);

/**
 * Takes an entry out, whatever refers to it, or returns NULL: then the cache is empty and owns nothing. For the end.
 */
struct ferry_plan_entry *ferry_plan_cache_empty(struct ferry_plan_cache *cache);

#endif
