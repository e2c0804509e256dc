/* SPDX-License-Identifier: Apache-2.0 */
#include "router/awaited.h"

#include <stdio.h>

#define UNKNOWN UINT32_MAX

static struct ferry_counter *counter_of(const struct ferry_job_arenas *shared, const struct ferry_instr *instr,
                                        uint64_t seq)
{
	return &shared->arenas[instr->domain].counters[seq % FERRY_BANKS][instr->counter];
}

/* Of alltoallv, who sends tells the length with the call; who receives has as much. */
static uint32_t slices_of(const struct ferry_job_arenas *shared, const struct ferry_plan *plan,
                          const struct ferry_instr *instr, uint64_t seq)
{
	const struct ferry_edge *edges = ferry_plan_edges(plan) + instr->first_edge;
	if (!(plan->flags & FERRY_PLAN_VARIABLE))
		return instr->nslices;
	for (uint32_t i = 0; instr->opcode == FERRY_H2D && i < instr->nedges; i++)
		if (!edges[i].lag)
			instr = &ferry_plan_instrs(plan)[edges[i].instr];
	struct ferry_counter *counter = counter_of(shared, instr, seq);
	uint64_t value = atomic_load_explicit(&counter->value, memory_order_acquire);
	if ((uint32_t)(value >> 32) != (uint32_t)seq)
		return UNKNOWN;
	uint64_t length = atomic_load_explicit(&counter->length, memory_order_relaxed);
	return (uint32_t)((length + plan->slice - 1) / plan->slice);
}

static uint32_t published(const struct ferry_job_arenas *shared, const struct ferry_instr *instr, uint64_t seq)
{
	uint64_t value = atomic_load_explicit(&counter_of(shared, instr, seq)->value, memory_order_acquire);
	return ferry_counter_slices(value, seq);
}

static bool may_run(const struct ferry_job_arenas *shared, const struct ferry_plan *plan,
                    const struct ferry_instr *instr, uint64_t seq, uint32_t slice)
{
	const struct ferry_edge *edges = ferry_plan_edges(plan) + instr->first_edge;
	for (uint32_t i = 0; i < instr->nedges; i++) {
		const struct ferry_instr *other = &ferry_plan_instrs(plan)[edges[i].instr];
		uint32_t nslices = slices_of(shared, plan, other, seq);
		uint32_t wanted = slice < nslices ? slice + 1 : nslices;
		if ((uint64_t)published(shared, other, seq) + edges[i].lag < wanted)
			return false;
	}
	return true;
}

/* What ends without a counter, COPY and LAND, nobody waits for but its own rank's call. */
static bool is_counted(const struct ferry_instr *instr)
{
	return instr->opcode != FERRY_COPY && instr->opcode != FERRY_LAND;
}

static void name_owner(const struct ferry_job_arenas *shared, struct ferry_awaited *awaited)
{
	uint32_t owner = awaited->instr->owner;
	awaited->router = ferry_opcode_is_work(awaited->instr->opcode);
	awaited->who = owner;
	if (awaited->router || atomic_load_explicit(&ferry_rank_line(shared, owner)->mover, memory_order_acquire) !=
	                               FERRY_MOVER_ROUTER)
		return;
	awaited->router = true;
	awaited->who = shared->rank_domain[owner];
}

bool ferry_awaited_find(const struct ferry_job_arenas *shared, const struct ferry_plan *plan, uint64_t seq,
                        struct ferry_awaited *awaited)
{
	bool found = false;
	for (uint32_t i = 0; i < plan->ninstrs; i++) {
		const struct ferry_instr *instr = &ferry_plan_instrs(plan)[i];
		uint32_t nslices = slices_of(shared, plan, instr, seq), slice = published(shared, instr, seq);
		bool over = !is_counted(instr) || nslices == UNKNOWN || slice >= nslices;
		if (over || (found && slice >= awaited->slice) || !may_run(shared, plan, instr, seq, slice))
			continue;
		*awaited = (struct ferry_awaited){.instr = instr, .slice = slice, .nslices = nslices};
		found = true;
	}
	if (found)
		name_owner(shared, awaited);
	return found;
}

const char *ferry_awaited_print(const struct ferry_job_arenas *shared, const struct ferry_awaited *awaited,
                                char text[FERRY_AWAITED_TEXT])
{
	char who[96];
	bool moves = awaited->router && !ferry_opcode_is_work(awaited->instr->opcode);
	uint32_t process = awaited->router ? 0
	                                   : atomic_load_explicit(&ferry_rank_line(shared, awaited->who)->process,
	                                                          memory_order_relaxed);
	if (moves)
		snprintf(who, sizeof who, "the router of domain %u, which moves the data of rank %u,", awaited->who,
		         awaited->instr->owner);
	else if (awaited->router)
		snprintf(who, sizeof who, "the router of domain %u", awaited->who);
	else if (process)
		snprintf(who, sizeof who, "rank %u (process %u)", awaited->who, process);
	else
		snprintf(who, sizeof who, "rank %u", awaited->who);
	snprintf(text, FERRY_AWAITED_TEXT, "%s to run %s, slice %u of %u", who,
	         ferry_opcode_name(awaited->instr->opcode), awaited->slice + 1, awaited->nslices);
	return text;
}
