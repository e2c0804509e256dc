/* SPDX-License-Identifier: Apache-2.0 */
#include "router/daemon/job_plans.h"

#include "ipc/attach.h"
#include "ipc/error.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static void plan_free(struct ferry_job_plan *entry)
{
	for (uint32_t rank = 0; rank < FERRY_MAX_RANKS; rank++)
		if (entry->steps[rank]) {
			ferry_steps_free(entry->steps[rank]);
			free(entry->steps[rank]);
		}
	free(entry->plan);
	ferry_works_free(&entry->works);
	free(entry);
}

/* ---- the table ---- */

/* The link to the plan of that hash, or the place for it. Under the lock, or by the connection thread. */
static struct ferry_job_plan **place_of(const struct ferry_job_plans *plans, uint64_t hash)
{
	struct ferry_job_plan **link = &plans->buckets[hash & (plans->nbuckets - 1)];
	while (*link && (*link)->plan->hash != hash)
		link = &(*link)->next;
	return link;
}

struct ferry_job_plan *ferry_job_plans_find(struct ferry_job_plans *plans, uint64_t hash)
{
	pthread_mutex_lock(&plans->lock);
	struct ferry_job_plan *entry = plans->nbuckets ? *place_of(plans, hash) : NULL;
	if (entry)
		atomic_fetch_add_explicit(&entry->users, 1, memory_order_relaxed);
	pthread_mutex_unlock(&plans->lock);
	return entry;
}

struct ferry_job_plan *ferry_job_plans_hold(struct ferry_job_plans *plans, uint64_t hash, uint32_t rank,
                                            struct ferry_steps **steps)
{
	pthread_mutex_lock(&plans->lock);
	struct ferry_job_plan *entry = plans->nbuckets ? *place_of(plans, hash) : NULL;
	if (entry && !entry->steps[rank])
		entry = NULL;
	if (entry) {
		*steps = entry->steps[rank];
		atomic_fetch_add_explicit(&entry->users, 1, memory_order_relaxed);
	}
	pthread_mutex_unlock(&plans->lock);
	return entry;
}

void ferry_job_release_plan(struct ferry_job_plan *plan)
{
	atomic_fetch_sub_explicit(&plan->users, 1, memory_order_release);
}

/*
 * Makes room for one more, at most as many as there are buckets. A thread that reads sees the old array or the new one,
 * whole.
 */
static bool grow(struct ferry_job_plans *plans)
{
	uint32_t nbuckets = plans->nbuckets ? 2 * plans->nbuckets : 64;
	if (plans->count < plans->nbuckets)
		return true;
	struct ferry_job_plan **buckets = calloc(nbuckets, sizeof *buckets), **old = plans->buckets;
	if (!buckets)
		return plans->nbuckets; /* longer chains, then */
	pthread_mutex_lock(&plans->lock);
	for (uint32_t i = 0; i < plans->nbuckets; i++)
		for (struct ferry_job_plan *entry = old[i], *next; entry; entry = next) {
			struct ferry_job_plan **bucket = &buckets[entry->plan->hash & (nbuckets - 1)];
			next = entry->next;
			entry->next = *bucket;
			*bucket = entry;
		}
	plans->buckets = buckets;
	plans->nbuckets = nbuckets;
	pthread_mutex_unlock(&plans->lock);
	free(old);
	return true;
}

ferryResult_t ferry_job_plans_drop(struct ferry_job_plans *plans, uint32_t rank, uint64_t hash, bool unheld_too)
{
	struct ferry_job_plan **link = plans->nbuckets ? place_of(plans, hash) : NULL, *entry = link ? *link : NULL;
	if (!entry || !(entry->holders >> rank & 1))
		return unheld_too ? ferrySuccess
		                  : ferry_fail(ferryInvalidUsage,
		                               "rank %u drops plan %016" PRIx64 ", which it does not hold", rank, hash);
	entry->holders &= ~(1ull << rank);
	if (entry->holders)
		return ferrySuccess;
	pthread_mutex_lock(&plans->lock);
	*link = entry->next;
	pthread_mutex_unlock(&plans->lock);
	plans->count--;
	entry->next = plans->retired;
	plans->retired = entry;
	return ferrySuccess;
}

void ferry_job_plans_free_retired(struct ferry_job_plans *plans)
{
	struct ferry_job_plan **link = &plans->retired;
	while (*link) {
		struct ferry_job_plan *entry = *link;
		if (atomic_load_explicit(&entry->users, memory_order_acquire)) {
			link = &entry->next;
			continue;
		}
		*link = entry->next;
		plan_free(entry);
	}
}

void ferry_job_plans_open(struct ferry_job_plans *plans, const struct ferry_job_arenas *shared, uint32_t domain,
                          uint32_t workers)
{
	*plans = (struct ferry_job_plans){.shared = shared, .domain = domain, .workers = workers,
	                                  .most = FERRY_MAX_PLANS};
	pthread_mutex_init(&plans->lock, NULL);
}

static void free_list(struct ferry_job_plan *entry)
{
	for (struct ferry_job_plan *next; entry; entry = next) {
		next = entry->next;
		plan_free(entry);
	}
}

void ferry_job_plans_close(struct ferry_job_plans *plans)
{
	for (uint32_t i = 0; i < plans->nbuckets; i++)
		free_list(plans->buckets[i]);
	free_list(plans->retired);
	free(plans->buckets);
	pthread_mutex_destroy(&plans->lock);
}

/* ---- a plan ---- */

static ferryResult_t plan_check(const struct ferry_job_plans *plans, const struct ferry_plan *plan, uint64_t bytes)
{
	const struct ferry_job_arenas *shared = plans->shared;
	struct ferry_plan_room room = {.nranks = shared->nranks,
	                               .ndomains = shared->ndomains,
	                               .rank_domain = shared->rank_domain};
	for (uint32_t domain = 0; domain < room.ndomains; domain++) {
		room.staging[domain] = shared->arenas[domain].staging_bytes;
		room.counters[domain] = FERRY_MOST_COUNTERS;
	}
	ferryResult_t result = ferry_plan_validate(plan, bytes, &room);
	return result ? result : ferry_job_arenas_back(shared, plan);
}

/* A checked copy, ready to run. */
static ferryResult_t plan_take(const struct ferry_job_plans *plans, const void *blob, uint64_t bytes,
                               struct ferry_job_plan **taken)
{
	struct ferry_plan *plan = malloc(bytes);
	struct ferry_job_plan *entry = calloc(1, sizeof *entry);
	ferryResult_t result = ferrySuccess;
	if (!plan || !entry)
		result = ferry_fail(ferrySystemError, "no memory for a plan of %llu bytes", (unsigned long long)bytes);
	if (!result) {
		memcpy(plan, blob, bytes);
		result = plan_check(plans, plan, bytes);
	}
	if (!result)
		result = ferry_works_find(&entry->works, plan, plans->shared, plans->domain, plans->workers);
	if (result) {
		free(entry);
		free(plan);
		return result;
	}
	entry->plan = plan;
	*taken = entry;
	return ferrySuccess;
}

static bool is_same(const struct ferry_plan *plan, const void *blob, uint64_t bytes)
{
	return plan->bytes == bytes && !memcmp(plan, blob, bytes);
}

/* A rank whose data this router moves needs its steps. */
static ferryResult_t find_steps(struct ferry_job_plans *plans, struct ferry_job_plan *entry, uint32_t rank)
{
	if (entry->steps[rank])
		return ferrySuccess;
	struct ferry_steps *steps = malloc(sizeof *steps);
	if (!steps)
		return ferry_fail(ferrySystemError, "no memory for the steps of a plan");
	ferryResult_t result = ferry_steps_find(steps, entry->plan, plans->shared, rank);
	if (result) {
		free(steps);
		return result;
	}
	pthread_mutex_lock(&plans->lock);
	entry->steps[rank] = steps;
	pthread_mutex_unlock(&plans->lock);
	return ferrySuccess;
}

ferryResult_t ferry_job_plans_add(struct ferry_job_plans *plans, uint32_t rank, bool moved, const void *blob,
                                  uint64_t bytes)
{
	uint64_t hash = bytes < sizeof(struct ferry_plan) ? 0 : ((const struct ferry_plan *)blob)->hash;
	struct ferry_job_plan *entry = NULL, *there = plans->nbuckets ? *place_of(plans, hash) : NULL;
	if (there && is_same(there->plan, blob, bytes)) {
		ferryResult_t result = moved ? find_steps(plans, there, rank) : ferrySuccess;
		if (!result)
			there->holders |= 1ull << rank;
		return result;
	}
	if (plans->count >= plans->most)
		return ferry_fail(ferryRefused,
		                  "the job has %u plans in domain %u and may have %u: no place for %016" PRIx64,
		                  plans->count, plans->domain, plans->most, hash);
	ferryResult_t result = plan_take(plans, blob, bytes, &entry);
	if (result)
		return result;
	if (there)
		result = ferry_fail(ferryRefused,
		                    "the job has another plan %016" PRIx64 ": of %" PRIu64 " bytes, this has %" PRIu64,
		                    hash, there->plan->bytes, bytes);
	else if (!grow(plans))
		result = ferry_fail(ferrySystemError, "no memory for a table of plans");
	else if (moved)
		result = find_steps(plans, entry, rank);
	if (result) {
		plan_free(entry);
		return result;
	}
	struct ferry_job_plan **link = place_of(plans, hash);
	entry->holders = 1ull << rank;
	pthread_mutex_lock(&plans->lock);
	*link = entry;
	pthread_mutex_unlock(&plans->lock);
	plans->count++;
	return ferrySuccess;
}
