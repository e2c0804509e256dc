/* SPDX-License-Identifier: Apache-2.0 */
/* The plans a communicator keeps: found by what was asked, else synthesized or replaced, compiled, and given to the routers. */
#include "rank-lib/comm.h"

#include <stdlib.h>

#define FORGET_AT_ONCE 4 /* more than come at a time; each is a message to the routers, for which the caller waits */

/* ---- a compiled plan, with this rank's pointers found ---- */

static bool is_mine(const struct ferryComm *comm, const struct ferry_instr *instr, enum ferry_direction direction)
{
	if (instr->opcode == FERRY_REDUCE || instr->opcode == FERRY_H2H || instr->owner != comm->rank)
		return false;
	return (instr->opcode == FERRY_D2H) == (direction == FERRY_UP);
}

static void resolve(struct ferryComm *comm, const struct ferry_plan *plan, const struct ferry_instr *instr, uint32_t bank,
                    struct ferry_step *step, struct ferry_gate **gates)
{
	const struct ferry_instr *instrs = ferry_plan_instrs(plan);
	const struct ferry_edge *edges = ferry_plan_edges(plan) + instr->first_edge;
	struct ferry_arena *arenas = comm->shared.arenas;
	step->instr = instr;
	step->counter = &arenas[instr->domain].counters[bank][instr->counter];
	uint32_t staging = ferry_plan_staging_bank(plan, bank);
	step->window = instr->opcode == FERRY_COPY ? NULL : arenas[instr->window_domain].staging[staging] + instr->window_offset;
	step->gates = *gates;
	step->ngates = instr->nedges;
	*gates += instr->nedges;
	for (uint32_t i = 0; i < instr->nedges; i++) {
		const struct ferry_instr *other = &instrs[edges[i].instr];
		if (edges[i].lag && instr->opcode == FERRY_D2H && !instr->wakes_domains)
			step->only_passes_on = true;
		step->gates[i] = (struct ferry_gate){&arenas[other->domain].counters[bank][other->counter], edges[i].lag,
		                                     other->nslices};
		if (instr->opcode == FERRY_H2D && edges[i].lag == 0 && other->opcode == FERRY_D2H &&
		    other->window_domain == instr->window_domain && other->window_offset == instr->window_offset) {
			step->producer = step->gates[i].counter;
			step->producer_rank = other->owner;
		}
	}
}

static ferryResult_t entry_fill(struct ferryComm *comm, struct ferry_plan_entry *entry)
{
	const struct ferry_plan *plan = entry->plan;
	const struct ferry_instr *instrs = ferry_plan_instrs(plan);
	size_t nsteps = 0, ngates = 0;
	for (uint32_t i = 0; i < plan->ninstrs; i++)
		for (enum ferry_direction direction = FERRY_UP; direction <= FERRY_DOWN; direction++)
			if (is_mine(comm, &instrs[i], direction)) {
				entry->nsteps[direction]++;
				nsteps++;
				ngates += instrs[i].nedges;
			}
	for (uint32_t i = 0; i < plan->ninstrs; i++)
		if (instrs[i].opcode == FERRY_REDUCE || instrs[i].opcode == FERRY_H2H)
			entry->domains |= 1u << instrs[i].owner;
	entry->memory = calloc(FERRY_BANKS, nsteps * sizeof(struct ferry_step) + ngates * sizeof(struct ferry_gate) + 1);
	if (!entry->memory)
		return ferry_fail(ferrySystemError, "no memory for a plan of %u instructions", plan->ninstrs);
	struct ferry_step *step = entry->memory;
	struct ferry_gate *gates = (struct ferry_gate *)(step + FERRY_BANKS * nsteps);
	for (uint32_t bank = 0; bank < FERRY_BANKS; bank++)
		for (enum ferry_direction direction = FERRY_UP; direction <= FERRY_DOWN; direction++) {
			entry->steps[direction][bank] = step;
			for (uint32_t i = 0; i < plan->ninstrs; i++)
				if (is_mine(comm, &instrs[i], direction))
					resolve(comm, plan, &instrs[i], bank, step++, &gates);
		}
	return ferrySuccess;
}

static void entry_free(struct ferry_plan_entry *entry)
{
	if (!entry)
		return;
	free(entry->plan);
	free(entry->memory);
	free(entry);
}

static ferryResult_t compile(struct ferryComm *comm, const struct ferry_plan_key *key, struct ferry_plan **plan)
{
	struct ferry_program *synthesized = NULL;
	const struct ferry_program *program = key->program;
	struct ferry_compile_options options = {.count = key->count,
	                                        .type = key->type,
	                                        .redop = key->redop,
	                                        .slice = (uint32_t)comm->slice,
	                                        .window = (uint32_t)comm->window,
	                                        .direct = comm->device->copier->ops->direct_memory_access,
	                                        .core_cache = comm->core_cache,
	                                        .sharing = comm->topology.together ? comm->ndomains : 1,
	                                        .costs = comm->costs};
	for (uint32_t domain = 0; domain < comm->ndomains; domain++)
		options.staging[domain] = comm->shared.arenas[domain].staging_bytes;
	ferryResult_t result = ferrySuccess;
	if (!program) {
		result = ferry_program_synthesize(key->collective, &comm->topology, key->root, &synthesized);
		program = synthesized;
	}
	if (!result)
		result = ferry_program_compile(program, &options, plan);
	ferry_program_free(synthesized);
	return result;
}

/* Every rank checks what a router would: a plan that some router refuses must fail on all ranks, not hang those without it. */
static ferryResult_t validate(struct ferryComm *comm, const struct ferry_plan *plan)
{
	struct ferry_plan_limits limits = {.nranks = (uint32_t)comm->nranks,
	                                   .ndomains = comm->ndomains,
	                                   .rank_domain = comm->shared.rank_domain};
	for (uint32_t domain = 0; domain < comm->ndomains; domain++) {
		limits.staging[domain] = comm->shared.arenas[domain].staging_bytes;
		limits.counters[domain] = comm->shared.arenas[domain].ncounters;
	}
	return ferry_plan_validate(plan, plan->bytes, &limits);
}

static ferryResult_t upload(struct ferryComm *comm, const struct ferry_plan_entry *entry)
{
	for (uint32_t domain = 0; domain < comm->ndomains; domain++) {
		struct ferry_attach_message message = {.kind = FERRY_ATTACH_PLAN, .payload = entry->plan->bytes};
		if (!(entry->domains >> domain & 1))
			continue;
		ferryResult_t result = ferry_attach_call(comm->sockets[domain], &message, entry->plan, NULL);
		if (result)
			return ferry_fail_context(result, "giving a plan to the router of domain %u", domain);
	}
	return ferrySuccess;
}

static ferryResult_t drop(struct ferryComm *comm, const struct ferry_plan_entry *entry)
{
	for (uint32_t domain = 0; domain < comm->ndomains; domain++) {
		struct ferry_attach_message message = {.kind = FERRY_ATTACH_DROP, .hash = entry->plan->hash};
		if (!(entry->domains >> domain & 1))
			continue;
		ferryResult_t result = ferry_attach_call(comm->sockets[domain], &message, NULL, NULL);
		if (result)
			return ferry_fail_context(result, "taking a plan back from the router of domain %u", domain);
	}
	return ferrySuccess;
}

static void show(const struct ferryComm *comm, const struct ferry_plan_entry *entry)
{
	const struct ferry_plan *plan = entry->plan;
	if (!comm->show_plans || comm->rank)
		return;
	fprintf(stderr,
	        "ferry plan: %s of %llu %s, %s, %u ranks in %u domains%s: %u instructions, slice %u bytes, window %u slots, workers %u%s, staging",
	        ferry_collective_name(plan->collective), (unsigned long long)plan->count, ferry_type_name(plan->type),
	        ferry_redop_name(plan->redop), plan->nranks, plan->ndomains, entry->key.program ? ", user's program" : "",
	        plan->ninstrs, plan->slice, plan->window, plan->workers, plan->workers ? "" : " (all)");
	for (uint32_t domain = 0; domain < plan->ndomains; domain++)
		fprintf(stderr, " %llu", (unsigned long long)plan->staging[domain]);
	fprintf(stderr, " bytes%s", plan->flags & FERRY_PLAN_ALONE ? ", alone in it" : "");
	if (plan->flags & FERRY_PLAN_DMA)
		fprintf(stderr, ", a slice costs %u ns and moves at %u GB/s (%s)", comm->costs.issue_ns, comm->costs.link,
		        comm->costs.measured ? "ferry-perf limits" : "not measured here");
	fprintf(stderr, ", hash %016llx\n", (unsigned long long)plan->hash);
}

static bool routers_finished(const struct ferryComm *comm, const struct ferry_plan_entry *entry)
{
	uint64_t last = atomic_load_explicit(&entry->last_seq, memory_order_relaxed);
	for (uint32_t domain = 0; domain < comm->ndomains; domain++)
		if (entry->domains >> domain & 1 &&
		    atomic_load_explicit(&comm->shared.arenas[domain].header->finished[last % FERRY_BANKS], memory_order_acquire) < last)
			return false;
	return true;
}

/*
 * Lets some of the plans go that were not used for longest. A router may still be in the last call of one, though the
 * ranks are not: then it, and those used later, stay until another plan is made.
 */
static ferryResult_t forget(struct ferryComm *comm)
{
	ferryResult_t result = ferrySuccess;
	for (int i = 0; i < FORGET_AT_ONCE && !result; i++) {
		struct ferry_plan_entry *entry = ferry_plan_cache_surplus(&comm->plans);
		if (!entry || !routers_finished(comm, entry))
			return ferrySuccess;
		ferry_plan_cache_remove(&comm->plans, entry);
		if (comm->rank == 0 && !ferry_plan_cache_has(&comm->plans, entry->plan->hash))
			result = drop(comm, entry);
		entry_free(entry);
	}
	return result;
}

/* Rank 0 gives it to the routers. What goes wrong there goes wrong for all ranks, which would wait for this one. */
static ferryResult_t keep(struct ferryComm *comm, struct ferry_plan_entry *entry)
{
	ferryResult_t result = forget(comm);
	if (!result && comm->rank == 0)
		result = upload(comm, entry);
	if (result)
		ferry_comm_fail(comm, result, ferry_last_message());
	return result ? result : ferry_plan_cache_add(&comm->plans, entry);
}

ferryResult_t ferry_comm_plan(struct ferryComm *comm, const struct ferry_plan_key *key, struct ferry_plan_entry **found)
{
	if ((*found = ferry_plan_cache_take(&comm->plans, key)))
		return ferrySuccess;
	struct ferry_plan_entry *entry = calloc(1, sizeof *entry);
	if (!entry)
		return ferry_fail(ferrySystemError, "no memory for a plan");
	entry->key = *key;
	ferryResult_t result = compile(comm, key, &entry->plan);
	if (!result)
		result = validate(comm, entry->plan);
	if (!result)
		result = entry_fill(comm, entry);
	if (!result)
		result = keep(comm, entry);
	if (result) {
		entry_free(entry);
		return result;
	}
	show(comm, entry);
	*found = entry;
	return ferrySuccess;
}

void ferry_comm_free_plans(struct ferryComm *comm)
{
	for (struct ferry_plan_entry *entry; (entry = ferry_plan_cache_empty(&comm->plans));)
		entry_free(entry);
}
