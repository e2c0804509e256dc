/* SPDX-License-Identifier: Apache-2.0 */
/* The plans that a job was handed: checked, made ready to run, kept by hash, dropped and freed. */
#include "router/job.h"

#include "ipc/error.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define PART_LEAST (32u << 10)         /* where workers must be woken */
#define PART_LEAST_LOOKING (16u << 10) /* where they look all the time */
#define PART_MOST_LOOKING (64u << 10)  /* smaller is more to claim, larger takes longer from one who is late */
/* takes some ten microseconds: to look at all queues before it costs little of that */
#define PART_LONG (32u << 10)

static void plan_free(struct ferry_job_plan *entry)
{
	for (uint32_t rank = 0; rank < FERRY_MAX_RANKS; rank++)
		if (entry->steps[rank]) {
			ferry_steps_free(entry->steps[rank]);
			free(entry->steps[rank]);
		}
	free(entry->plan);
	free(entry->memory);
	free(entry);
}

/* ---- the table ---- */

/* Where the plan of that hash is linked in, or would be. Under the lock, or by the connection thread. */
static struct ferry_job_plan **place_of(const struct ferry_job_plans *plans, uint64_t hash)
{
	struct ferry_job_plan **link = &plans->buckets[hash & (plans->nbuckets - 1)];
	while (*link && (*link)->plan->hash != hash)
		link = &(*link)->next;
	return link;
}

struct ferry_job_plan *ferry_job_find_plan(struct ferry_job *job, uint64_t hash)
{
	struct ferry_job_plans *plans = &job->plans;
	pthread_mutex_lock(&plans->lock);
	struct ferry_job_plan *entry = plans->nbuckets ? *place_of(plans, hash) : NULL;
	pthread_mutex_unlock(&plans->lock);
	return entry;
}

struct ferry_job_plan *ferry_job_hold_plan(struct ferry_job *job, uint64_t hash, uint32_t rank,
                                           struct ferry_steps **steps)
{
	struct ferry_job_plans *plans = &job->plans;
	pthread_mutex_lock(&plans->lock);
	struct ferry_job_plan *entry = plans->nbuckets ? *place_of(plans, hash) : NULL;
	if (entry && !entry->steps[rank])
		entry = NULL;
	if (entry) {
		*steps = entry->steps[rank];
		atomic_fetch_add_explicit(&entry->calls, 1, memory_order_relaxed);
	}
	pthread_mutex_unlock(&plans->lock);
	return entry;
}

void ferry_job_release_plan(struct ferry_job_plan *plan)
{
	atomic_fetch_sub_explicit(&plan->calls, 1, memory_order_release);
}

/* Room for one more, at most as many as there are buckets. Those who look see the old array or the new one, whole. */
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

ferryResult_t ferry_job_drop_plan(struct ferry_job *job, uint32_t rank, uint64_t hash)
{
	struct ferry_job_plans *plans = &job->plans;
	struct ferry_job_plan **link = plans->nbuckets ? place_of(plans, hash) : NULL, *entry = link ? *link : NULL;
	if (!entry || !(entry->holders >> rank & 1))
		return ferry_fail(ferryInvalidUsage, "rank %u drops plan %016" PRIx64 ", which it does not hold", rank,
		                  hash);
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

void ferry_job_free_retired(struct ferry_job *job)
{
	struct ferry_job_plan **link = &job->plans.retired;
	while (*link) {
		struct ferry_job_plan *entry = *link;
		bool running = atomic_load_explicit(&entry->calls, memory_order_acquire);
		for (uint32_t bank = 0; bank < FERRY_BANKS; bank++)
			running |= atomic_load(&job->runs[bank].seq) && atomic_load(&job->runs[bank].plan) == entry;
		if (running) {
			link = &entry->next;
			continue;
		}
		*link = entry->next;
		plan_free(entry);
	}
}

void ferry_job_free_plans(struct ferry_job *job)
{
	struct ferry_job_plans *plans = &job->plans;
	for (uint32_t i = 0; i < plans->nbuckets; i++)
		for (struct ferry_job_plan *entry = plans->buckets[i], *next; entry; entry = next) {
			next = entry->next;
			plan_free(entry);
		}
	free(plans->buckets);
	plans->buckets = NULL;
	plans->nbuckets = plans->count = 0;
	for (uint32_t bank = 0; bank < FERRY_BANKS; bank++)
		atomic_store(&job->runs[bank].seq, 0);
	ferry_job_free_retired(job);
}

/* ---- a plan ---- */

static bool is_mine(const struct ferry_job *job, const struct ferry_instr *instr)
{
	return (instr->opcode == FERRY_REDUCE || instr->opcode == FERRY_H2H) && instr->owner == job->domain;
}

static uint32_t between(uint32_t least, uint32_t value, uint32_t most)
{
	return value > most ? most : value < least ? least : value;
}

/* Small slices are not worth splitting between workers. Parts of one queue lie side by side. */
static void divide(const struct ferry_job *job, const struct ferry_plan *plan, uint32_t *nqueues, uint32_t *share)
{
	if (plan->flags & FERRY_PLAN_DMA && plan->workers) {
		uint32_t workers = between(1, plan->workers, job->workers);
		*nqueues = between(1, plan->slice / PART_LEAST_LOOKING, workers);
		*share = between(1, plan->slice / *nqueues / PART_MOST_LOOKING, FERRY_MAX_RANKS);
		return;
	}
	*nqueues = 1;
	uint32_t least = plan->flags & FERRY_PLAN_DMA ? PART_LEAST_LOOKING : PART_LEAST;
	*share = between(1, plan->slice / least, job->workers);
}

static size_t up_to_apart(size_t bytes)
{
	return (bytes + FERRY_APART - 1) / FERRY_APART * FERRY_APART;
}

/* What a work needs beside itself. */
static size_t work_bytes(const struct ferry_plan *plan, const struct ferry_instr *instr, uint32_t nqueues)
{
	return up_to_apart(nqueues * sizeof(struct ferry_queue) + plan->window * sizeof(struct ferry_slot) +
	                   instr->nedges * sizeof(struct ferry_gate) + instr->nsources * sizeof(char *));
}

static void resolve(struct ferry_job *job, const struct ferry_plan *plan, const struct ferry_instr *instr,
                    uint32_t bank, struct ferry_work *work, char **memory)
{
	const struct ferry_instr *instrs = ferry_plan_instrs(plan);
	const struct ferry_edge *edges = ferry_plan_edges(plan) + instr->first_edge;
	const struct ferry_source *sources = ferry_plan_sources(plan) + instr->first_source;
	struct ferry_arena *arenas = job->shared.arenas;

	work->instr = instr;
	work->counter = &arenas[instr->domain].counters[bank][instr->counter];
	uint32_t staging = ferry_plan_staging_bank(plan, bank);
	work->window = arenas[instr->window_domain].staging[staging] + instr->window_offset;
	divide(job, plan, &work->nqueues, &work->share);
	work->oldest_first = work->nqueues > 1 && plan->slice / ferry_parts_of(work) >= PART_LONG;
	work->queues = (struct ferry_queue *)*memory;
	work->slots = (struct ferry_slot *)(work->queues + work->nqueues);
	work->gates = (struct ferry_gate *)(work->slots + plan->window);
	work->sources = (const char **)(work->gates + instr->nedges);
	*memory += work_bytes(plan, instr, work->nqueues);
	for (uint32_t i = 0; i < instr->nedges; i++) {
		const struct ferry_instr *producer = &instrs[edges[i].instr];
		work->gates[i].counter = &arenas[producer->domain].counters[bank][producer->counter];
		work->gates[i].lag = edges[i].lag;
		work->gates[i].nslices = producer->nslices;
	}
	for (uint32_t i = 0; i < instr->nsources; i++)
		work->sources[i] = arenas[sources[i].domain].staging[staging] + sources[i].window_offset;
}

static struct ferry_job_plan *plan_install(struct ferry_job *job, struct ferry_plan *plan)
{
	const struct ferry_instr *instrs = ferry_plan_instrs(plan);
	struct ferry_job_plan *entry = calloc(1, sizeof *entry);
	size_t bytes = 0;
	uint32_t nqueues, share;
	if (!entry)
		return NULL;
	divide(job, plan, &nqueues, &share);
	for (uint32_t i = 0; i < plan->ninstrs; i++)
		if (is_mine(job, &instrs[i])) {
			entry->nworks++;
			bytes += sizeof(struct ferry_work) + work_bytes(plan, &instrs[i], nqueues);
		}
	if (bytes && !(entry->memory = aligned_alloc(FERRY_APART, FERRY_BANKS * bytes))) {
		free(entry);
		return NULL;
	}
	if (bytes)
		memset(entry->memory, 0, FERRY_BANKS * bytes);
	char *memory = entry->memory;
	for (uint32_t bank = 0; bank < FERRY_BANKS; bank++) {
		struct ferry_work *work = (struct ferry_work *)memory;
		memory += entry->nworks * sizeof *work;
		entry->works[bank] = work;
		for (uint32_t i = 0; i < plan->ninstrs; i++)
			if (is_mine(job, &instrs[i]))
				resolve(job, plan, &instrs[i], bank, work++, &memory);
	}
	entry->plan = plan;
	return entry;
}

/* A checked copy, ready to run. */
static ferryResult_t plan_take(struct ferry_job *job, const void *blob, uint64_t bytes, struct ferry_job_plan **taken)
{
	struct ferry_plan_room limits = {.nranks = job->shared.nranks,
	                                   .ndomains = job->shared.ndomains,
	                                   .rank_domain = job->shared.rank_domain};
	for (uint32_t domain = 0; domain < limits.ndomains; domain++) {
		limits.staging[domain] = job->shared.arenas[domain].staging_bytes;
		limits.counters[domain] = job->shared.arenas[domain].ncounters;
	}
	struct ferry_plan *plan = malloc(bytes);
	if (!plan)
		return ferry_fail(ferrySystemError, "no memory for a plan of %llu bytes", (unsigned long long)bytes);
	memcpy(plan, blob, bytes);
	ferryResult_t result = ferry_plan_validate(plan, bytes, &limits);
	if (!result && !(*taken = plan_install(job, plan)))
		result = ferry_fail(ferrySystemError, "no memory to prepare a plan of %u instructions", plan->ninstrs);
	if (result)
		free(plan);
	return result;
}

static bool is_same(const struct ferry_plan *plan, const void *blob, uint64_t bytes)
{
	return plan->bytes == bytes && !memcmp(plan, blob, bytes);
}

/* A rank whose data this router moves needs its steps. */
static ferryResult_t find_steps(struct ferry_job *job, struct ferry_job_plan *entry, uint32_t rank)
{
	if (!job->intakes[rank] || entry->steps[rank])
		return ferrySuccess;
	struct ferry_steps *steps = malloc(sizeof *steps);
	if (!steps)
		return ferry_fail(ferrySystemError, "no memory for the steps of a plan");
	ferryResult_t result = ferry_steps_find(steps, entry->plan, &job->shared, rank);
	if (result) {
		free(steps);
		return result;
	}
	pthread_mutex_lock(&job->plans.lock);
	entry->steps[rank] = steps;
	pthread_mutex_unlock(&job->plans.lock);
	return ferrySuccess;
}

ferryResult_t ferry_job_add_plan(struct ferry_job *job, uint32_t rank, const void *blob, uint64_t bytes)
{
	struct ferry_job_plans *plans = &job->plans;
	uint64_t hash = bytes < sizeof(struct ferry_plan) ? 0 : ((const struct ferry_plan *)blob)->hash;
	struct ferry_job_plan *entry = NULL, *there = plans->nbuckets ? *place_of(plans, hash) : NULL;
	if (!atomic_load_explicit(&job->ready, memory_order_acquire))
		return ferry_fail(ferryInvalidUsage, "plan %016" PRIx64 " before the job was ready", hash);
	if (there && is_same(there->plan, blob, bytes)) {
		ferryResult_t result = find_steps(job, there, rank);
		if (!result)
			there->holders |= 1ull << rank;
		return result;
	}
	if (plans->count >= FERRY_MAX_PLANS)
		return ferry_fail(ferryRefused,
		                  "the job has %u plans in domain %u and may have %d: no place for %016" PRIx64,
		                  plans->count, job->domain, FERRY_MAX_PLANS, hash);
	ferryResult_t result = plan_take(job, blob, bytes, &entry);
	if (result)
		return result;
	if (there)
		result = ferry_fail(ferryRefused,
		                    "the job has another plan %016" PRIx64 ": of %" PRIu64 " bytes, this has %" PRIu64,
		                    hash, there->plan->bytes, bytes);
	else if (!grow(plans))
		result = ferry_fail(ferrySystemError, "no memory for a table of plans");
	else
		result = find_steps(job, entry, rank);
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
