/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plans a communicator keeps: found by what was asked, else synthesized or replaced, compiled, and given to the
 * routers.
 */
#include "rank-lib/comm.h"
#include "rank-lib/mapped.h"

#include <stdlib.h>

#define FORGET_AT_ONCE 4 /* more than come at a time; each is a message to the routers, for which the caller waits */

static void entry_free(struct ferry_plan_entry *entry)
{
	if (!entry)
		return;
	free(entry->plan);
	ferry_steps_free(&entry->steps);
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

/*
 * Every rank checks what a router would: a plan that some router refuses must fail on all ranks, not hang those without
 * it.
 */
static ferryResult_t validate(struct ferryComm *comm, const struct ferry_plan *plan)
{
	struct ferry_plan_room limits = {.nranks = (uint32_t)comm->nranks,
	                                   .ndomains = comm->ndomains,
	                                   .rank_domain = comm->shared.rank_domain};
	for (uint32_t domain = 0; domain < comm->ndomains; domain++) {
		limits.staging[domain] = comm->shared.arenas[domain].staging_bytes;
		limits.counters[domain] = comm->shared.arenas[domain].ncounters;
	}
	return ferry_plan_validate(plan, plan->bytes, &limits);
}

/* Whom the rank gives its plans to: rank 0 the routers that have work in it; who moves its data, in any case. */
static uint32_t keepers_of(const struct ferryComm *comm, const struct ferry_plan_entry *entry)
{
	return (comm->rank == 0 ? entry->steps.domains : 0) | (comm->mapped ? 1u << comm->domain : 0);
}

static ferryResult_t upload(struct ferryComm *comm, const struct ferry_plan_entry *entry)
{
	for (uint32_t domain = 0; domain < comm->ndomains; domain++) {
		struct ferry_attach_message message = {.kind = FERRY_ATTACH_PLAN, .payload = entry->plan->bytes};
		if (!(keepers_of(comm, entry) >> domain & 1))
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
		if (!(keepers_of(comm, entry) >> domain & 1))
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
	        "ferry plan: %s of %llu %s, %s, %u ranks in %u domains%s: %u instructions, slice %u bytes, window %u "
	        "slots, workers %u%s, staging",
	        ferry_collective_name(plan->collective), (unsigned long long)plan->count, ferry_type_name(plan->type),
	        ferry_redop_name(plan->redop), plan->nranks, plan->ndomains,
	        entry->key.program ? ", user's program" : "", plan->ninstrs, plan->slice, plan->window, plan->workers,
	        plan->workers ? "" : " (all)");
	for (uint32_t domain = 0; domain < plan->ndomains; domain++)
		fprintf(stderr, " %llu", (unsigned long long)plan->staging[domain]);
	fprintf(stderr, " bytes%s", plan->flags & FERRY_PLAN_ALONE ? ", alone in it" : "");
	if (plan->flags & FERRY_PLAN_DMA)
		fprintf(stderr, ", a slice costs %u ns and moves at %u GB/s (%s)", comm->costs.issue_ns,
		        comm->costs.link, comm->costs.measured ? "ferry-perf limits" : "not measured here");
	fprintf(stderr, ", hash %016llx\n", (unsigned long long)plan->hash);
}

static bool routers_finished(const struct ferryComm *comm, const struct ferry_plan_entry *entry)
{
	if (comm->mapped && !ferry_mapped_is_taken(comm))
		return false;
	/* Who moves the data numbers calls once some were captured: then all must be over. */
	if (comm->mapped && atomic_load_explicit(&comm->member.order.fixed, memory_order_relaxed) != UINT64_MAX &&
	    !ferry_mapped_is_idle(comm))
		return false;
	uint64_t last = atomic_load_explicit(&entry->steps.last_seq, memory_order_relaxed);
	for (uint32_t domain = 0; domain < comm->ndomains; domain++)
		if (entry->steps.domains >> domain & 1 &&
		    atomic_load_explicit(&comm->shared.arenas[domain].header->finished[last % FERRY_BANKS],
		                         memory_order_acquire) < last)
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
		if (!ferry_plan_cache_has(&comm->plans, entry->plan->hash))
			result = drop(comm, entry);
		entry_free(entry);
	}
	return result;
}

/* Gives it to the routers. What goes wrong there goes wrong for all ranks, which would wait for this one. */
static ferryResult_t keep(struct ferryComm *comm, struct ferry_plan_entry *entry)
{
	ferryResult_t result = forget(comm);
	if (!result)
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
		result = ferry_steps_find(&entry->steps, entry->plan, &comm->shared, (uint32_t)comm->rank);
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
