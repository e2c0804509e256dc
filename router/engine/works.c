/* SPDX-License-Identifier: Apache-2.0 */
#include "router/engine/works.h"

#include "ipc/error.h"

#include <stdlib.h>
#include <string.h>

#define PART_LEAST (32u << 10)         /* bytes: a smaller part is not worth waking a worker */
#define PART_LEAST_LOOKING (16u << 10) /* the same where workers spin */
#define PART_MOST (64u << 10)         /* bytes: parts of other jobs wait for the end of one */
#define PART_MOST_LOOKING (64u << 10)  /* smaller parts cost more claims, larger ones wait longer for a late worker */
/* bytes: such a part takes some ten microseconds, and checking all queues first little of that */
#define PART_LONG (32u << 10)

static bool is_mine(const struct ferry_instr *instr, uint32_t domain)
{
	return ferry_opcode_is_work(instr->opcode) && instr->owner == domain;
}

static uint32_t between(uint32_t least, uint32_t value, uint32_t most)
{
	return value > most ? most : value < least ? least : value;
}

/* Small slices are not worth splitting between workers. Parts of one queue lie side by side. */
static void divide(const struct ferry_plan *plan, uint32_t workers, uint32_t *nqueues, uint32_t *share)
{
	if (plan->flags & FERRY_PLAN_DMA && plan->workers) {
		*nqueues = between(1, plan->slice / PART_LEAST_LOOKING, between(1, plan->workers, workers));
		*share = between(1, plan->slice / *nqueues / PART_MOST_LOOKING, FERRY_MAX_RANKS);
		return;
	}
	*nqueues = 1;
	uint32_t least = plan->flags & FERRY_PLAN_DMA ? PART_LEAST_LOOKING : PART_LEAST;
	*share = between(1, plan->slice / least, workers);
	if (*share < plan->slice / PART_MOST)
		*share = plan->slice / PART_MOST;
}

static size_t up_to_apart(size_t bytes)
{
	return (bytes + FERRY_APART - 1) / FERRY_APART * FERRY_APART;
}

/* The bytes that a work needs beside itself. */
static size_t work_bytes(const struct ferry_plan *plan, const struct ferry_instr *instr, uint32_t nqueues)
{
	return up_to_apart(nqueues * sizeof(struct ferry_queue) + plan->window * sizeof(struct ferry_slot) +
	                   instr->nedges * sizeof(struct ferry_gate) + instr->nsources * sizeof(char *));
}

/* work->nqueues and share are there already. */
static void resolve(const struct ferry_job_arenas *shared, const struct ferry_plan *plan,
                    const struct ferry_instr *instr, uint32_t parity, struct ferry_work *work, char **memory)
{
	const struct ferry_instr *instrs = ferry_plan_instrs(plan);
	const struct ferry_edge *edges = ferry_plan_edges(plan) + instr->first_edge;
	const struct ferry_source *sources = ferry_plan_sources(plan) + instr->first_source;
	const struct ferry_arena *arenas = shared->arenas;

	work->instr = instr;
	work->counter = &arenas[instr->domain].counters[parity][instr->counter];
	work->window = arenas[instr->window_domain].staging[parity] + instr->window_offset;
	work->oldest_first = work->nqueues > 1 && plan->slice / ferry_parts_of(work) >= PART_LONG;
	work->queues = (struct ferry_queue *)*memory;
	work->slots = (struct ferry_slot *)(work->queues + work->nqueues);
	work->gates = (struct ferry_gate *)(work->slots + plan->window);
	work->sources = (const char **)(work->gates + instr->nedges);
	*memory += work_bytes(plan, instr, work->nqueues);
	for (uint32_t i = 0; i < instr->nedges; i++) {
		const struct ferry_instr *producer = &instrs[edges[i].instr];
		work->gates[i].counter = &arenas[producer->domain].counters[parity][producer->counter];
		work->gates[i].lag = edges[i].lag;
		work->gates[i].nslices = producer->nslices;
	}
	for (uint32_t i = 0; i < instr->nsources; i++)
		work->sources[i] = arenas[sources[i].domain].staging[parity] + sources[i].window_offset;
}

ferryResult_t ferry_works_find(struct ferry_works *works, const struct ferry_plan *plan,
                               const struct ferry_job_arenas *shared, uint32_t domain, uint32_t workers)
{
	const struct ferry_instr *instrs = ferry_plan_instrs(plan);
	size_t bytes = 0;
	uint32_t nqueues, share;
	*works = (struct ferry_works){0};
	divide(plan, workers, &nqueues, &share);
	for (uint32_t i = 0; i < plan->ninstrs; i++)
		if (is_mine(&instrs[i], domain)) {
			works->nworks++;
			bytes += sizeof(struct ferry_work) + work_bytes(plan, &instrs[i], nqueues);
		}
	if (!bytes)
		return ferrySuccess;
	const struct ferry_instr *division = ferry_plan_division(plan);
	ferryResult_t result = division && is_mine(division, domain) ? ferry_division_open(plan, &works->division)
	                                                             : ferrySuccess;
	if (result)
		return result;
	works->memory = aligned_alloc(FERRY_APART, FERRY_PARITIES * bytes);
	if (!works->memory) {
		ferry_works_free(works);
		return ferry_fail(ferrySystemError, "no memory to prepare a plan of %u instructions", plan->ninstrs);
	}
	memset(works->memory, 0, FERRY_PARITIES * bytes);
	char *memory = works->memory;
	for (uint32_t parity = 0; parity < FERRY_PARITIES; parity++) {
		struct ferry_work *work = (struct ferry_work *)memory;
		memory += works->nworks * sizeof *work;
		works->works[parity] = work;
		for (uint32_t i = 0; i < plan->ninstrs; i++)
			if (is_mine(&instrs[i], domain)) {
				/* a DIVIDE is one part: two workers would plan in the same memory */
				bool divides = instrs[i].opcode == FERRY_DIVIDE;
				work->nqueues = divides ? 1 : nqueues;
				work->share = divides ? 1 : share;
				resolve(shared, plan, &instrs[i], parity, work++, &memory);
			}
	}
	return ferrySuccess;
}

void ferry_works_free(struct ferry_works *works)
{
	ferry_division_close(works->division);
	free(works->memory);
	works->memory = NULL;
	works->division = NULL;
}

/*
 * Slices of the call that are published already. Any process that shares the arena may have written any number there.
 */
static uint32_t published_before(const struct ferry_work *work, uint64_t seq)
{
	uint64_t value = atomic_load_explicit(&work->counter->value, memory_order_acquire);
	uint32_t slices = ferry_counter_slices(value, seq);
	return slices < work->instr->nslices ? slices : work->instr->nslices;
}

uint64_t ferry_works_arm(struct ferry_works *works, const struct ferry_plan *plan, uint32_t parity, uint64_t seq,
                         bool resumes)
{
	uint64_t parts = 0;
	for (uint32_t i = 0; i < works->nworks; i++) {
		struct ferry_work *work = &works->works[parity][i];
		uint32_t published = resumes ? published_before(work, seq) : 0;
		atomic_store_explicit(&work->published, published, memory_order_relaxed);
		for (uint32_t slot = 0; slot < plan->window; slot++)
			atomic_store_explicit(&work->slots[slot].done, 0, memory_order_relaxed);
		for (uint32_t q = 0; q < work->nqueues; q++) {
			uint32_t claimed = published * work->share;
			atomic_store_explicit(&work->queues[q].ready, ferry_counter_value(seq, published),
			                      memory_order_relaxed);
			atomic_store_explicit(&work->queues[q].next, ferry_counter_value(seq, claimed),
			                      memory_order_release);
		}
		parts += (uint64_t)(work->instr->nslices - published) * ferry_parts_of(work);
	}
	return parts;
}
