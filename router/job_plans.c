/* SPDX-License-Identifier: Apache-2.0 */
/* The plans that a job was handed: checked, with every pointer found and the parts of slices dealt out, replaced and freed. */
#include "router/job.h"

#include "ipc/error.h"

#include <stdlib.h>
#include <string.h>

#define PART_LEAST (32u << 10)         /* where workers must be woken */
#define PART_LEAST_LOOKING (16u << 10) /* where they look all the time */
#define PART_MOST_LOOKING (64u << 10)  /* smaller is more to claim, larger takes longer from one who is late */
#define PART_LONG (32u << 10)          /* takes some ten microseconds: to look at all queues before it costs little of that */

static void plan_free(struct ferry_job_plan *entry)
{
	free(entry->plan);
	free(entry->memory);
	free(entry);
}

void ferry_job_free_retired(struct ferry_job *job)
{
	struct ferry_job_plan **link = &job->retired;
	while (*link) {
		struct ferry_job_plan *entry = *link;
		bool running = false;
		for (uint32_t bank = 0; bank < FERRY_BANKS; bank++)
			running |= atomic_load(&job->runs[bank].seq) && atomic_load(&job->runs[bank].plan) == entry;
		if (running) {
			link = &entry->next_retired;
			continue;
		}
		*link = entry->next_retired;
		plan_free(entry);
	}
}

void ferry_job_free_plans(struct ferry_job *job)
{
	for (uint32_t i = 0; i < FERRY_MAX_PLANS; i++) {
		struct ferry_job_plan *entry = atomic_exchange(&job->plans[i], NULL);
		if (entry)
			plan_free(entry);
	}
	for (uint32_t bank = 0; bank < FERRY_BANKS; bank++)
		atomic_store(&job->runs[bank].seq, 0);
	ferry_job_free_retired(job);
}

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
	*share = between(1, plan->slice / (plan->flags & FERRY_PLAN_DMA ? PART_LEAST_LOOKING : PART_LEAST), job->workers);
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

static void resolve(struct ferry_job *job, const struct ferry_plan *plan, const struct ferry_instr *instr, uint32_t bank,
                    struct ferry_work *work, char **memory)
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

ferryResult_t ferry_job_add_plan(struct ferry_job *job, uint32_t plan_id, const void *blob, uint64_t bytes)
{
	struct ferry_plan_limits limits = {.nranks = job->shared.nranks,
	                                   .ndomains = job->shared.ndomains,
	                                   .rank_domain = job->shared.rank_domain};
	if (!atomic_load_explicit(&job->ready, memory_order_acquire))
		return ferry_fail(ferryInvalidUsage, "plan %u before the job was ready", plan_id);
	for (uint32_t domain = 0; domain < limits.ndomains; domain++) {
		limits.staging[domain] = job->shared.arenas[domain].staging_bytes;
		limits.counters[domain] = job->shared.arenas[domain].ncounters;
	}
	struct ferry_plan *plan = malloc(bytes);
	if (!plan)
		return ferry_fail(ferrySystemError, "no memory for a plan of %llu bytes", (unsigned long long)bytes);
	memcpy(plan, blob, bytes);
	ferryResult_t result = ferry_plan_validate(plan, bytes, &limits);
	if (result) {
		free(plan);
		return result;
	}
	struct ferry_job_plan *entry = plan_install(job, plan);
	if (!entry) {
		result = ferry_fail(ferrySystemError, "no memory to prepare a plan of %u instructions", plan->ninstrs);
		free(plan);
		return result;
	}
	struct ferry_job_plan *old = atomic_exchange_explicit(&job->plans[plan_id], entry, memory_order_acq_rel);
	if (old) {
		old->next_retired = job->retired;
		job->retired = old;
	}
	return ferrySuccess;
}
