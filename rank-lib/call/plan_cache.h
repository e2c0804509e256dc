/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The plans that a communicator keeps, found by their key in a table that grows. A plan stays while calls refer to it
 * and a while longer. The cache offers idle plans beyond FERRY_IDLE_PLANS to its owner, the least recently used first;
 * the owner removes one when no router needs it any more.
 *
 * Everything happens under the communicator's lock, except giving a reference back, which any thread may do at any
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
	bool no_adds; /* a sum that no kernel beside the call may make: it is captured, or others were */
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
	struct ferry_plan_entry *oldest, *newest;    /* by last use; a reference found when the entry is looked at
	                                                counts as a use */
	_Atomic uint32_t busy; /* entries with references, or more: the thread that drops the last reference
	                          subtracts after that */
};

/** Returns the plan of this key, or NULL; valid while the caller holds the lock. Does not count as a use. */
const struct ferry_plan_entry *ferry_plan_cache_look(const struct ferry_plan_cache *cache,
                                                     const struct ferry_plan_key *key);

/** Returns the plan of this key with one more reference, or NULL. */
struct ferry_plan_entry *ferry_plan_cache_take(struct ferry_plan_cache *cache, const struct ferry_plan_key *key);

/** Adds a plan whose key is not there, with one reference. Error: ferrySystemError; it is not added then. */
ferryResult_t ferry_plan_cache_add(struct ferry_plan_cache *cache, struct ferry_plan_entry *entry);

/** Gives a reference back; the caller must not touch the entry any more. Any thread. */
void ferry_plan_cache_give_back(struct ferry_plan_cache *cache, struct ferry_plan_entry *entry);

/**
 * Returns the idle plan that was unused for longest, if there are too many idle ones or as many plans as routers take;
 * else NULL.
 */
struct ferry_plan_entry *ferry_plan_cache_surplus(struct ferry_plan_cache *cache);

/** Removes an entry without references. */
void ferry_plan_cache_remove(struct ferry_plan_cache *cache, struct ferry_plan_entry *entry);

/** Whether the cache has a plan of that hash. Two keys can share a plan: two user programs may be equal. */
bool ferry_plan_cache_has(const struct ferry_plan_cache *cache, uint64_t hash);

/** Returns the plan of that hash, or NULL; valid while the caller holds the lock. */
const struct ferry_plan *ferry_plan_cache_of_hash(const struct ferry_plan_cache *cache, uint64_t hash);

/**
 * Removes and returns an entry, even with references, or returns NULL: then the cache is empty and owns nothing. For
 * the end.
 */
struct ferry_plan_entry *ferry_plan_cache_empty(struct ferry_plan_cache *cache);

#endif
