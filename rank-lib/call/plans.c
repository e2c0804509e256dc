/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/call/plans.h"

#include "rank-lib/failover/watchdog.h"

#include <stdio.h>
#include <stdlib.h>

#define FORGET_AT_ONCE 4 /* more than are made at a time; for each the caller waits for the routers */

static void entry_free(struct ferry_plan_entry *entry)
{
	if (!entry)
		return;
	free(entry->plan);
	ferry_steps_free(&entry->steps);
	free(entry);
}

/* The programs of a call, one for each fabric that carries a part of it. */
struct parts {
	struct ferry_program_part all[FERRY_OWN_FABRICS];
	struct ferry_program *made[FERRY_OWN_FABRICS]; /* to be freed; a user's program is not */
	uint32_t count;
	struct ferry_network *network; /* NULL: calls are not divided among paths */
};

static struct ferry_program **add_part(struct parts *parts, uint64_t first, uint64_t count)
{
	parts->all[parts->count] = (struct ferry_program_part){.first = first, .count = count};
	return &parts->made[parts->count++];
}

/* Elements of each block to be divided among fabrics. An alltoallv is not divided: its lengths come with each call. */
static uint64_t moved_of(const struct ferry_plan_key *key)
{
	return key->collective == FERRY_ALLTOALLV ? 1 : key->count - key->left_out.count;
}

/* Adds a program that uses every path. Adds none if there are only links, or no room for relays. */
static ferryResult_t synthesize_paths(const struct ferry_plans *plans, struct parts *parts, const uint64_t *staging)
{
	struct ferry_network *network = calloc(1, sizeof *network);
	struct ferry_program *program = NULL;
	if (!network)
		return ferry_fail(ferrySystemError, "no memory for a network");
	ferryResult_t result = ferry_fabrics_network(plans->fabrics, network)
	                               ? ferry_program_synthesize_paths(plans->topology, network, staging,
	                                                                plans->options.memory, &program)
	                               : ferrySuccess;
	if (program) {
		*add_part(parts, 0, 1) = program;
		parts->network = network;
	} else {
		free(network);
	}
	return result;
}

/* The host has the first elements of each block that are moved, the peers the rest. */
static ferryResult_t synthesize(const struct ferry_plans *plans, const struct ferry_plan_key *key,
                                const uint64_t *staging, struct parts *parts)
{
	bool copies = plans->rank->nranks == 1 && key->redop != ferryNumOps; /* a factor scales in a REDUCE */
	uint64_t host, moved = moved_of(key);
	if (copies)
		return ferry_program_copy(key->collective, plans->topology, key->root, add_part(parts, 0, moved));
	ferryResult_t result = ferry_fabrics_divide(plans->fabrics, key->collective, key->root, moved,
	                                            ferry_type_size(key->type), key->no_adds, &host);
	if (!result && (host || !moved))
		result = ferry_program_synthesize(key->collective, plans->topology, key->root,
		                                  add_part(parts, 0, host));
	if (!result && host < moved && key->collective == FERRY_ALLTOALLV)
		result = synthesize_paths(plans, parts, staging);
	if (!result && host < moved && !parts->network)
		result = ferry_program_synthesize_peer(key->collective, plans->topology, &plans->fabrics->links,
		                                       key->root, add_part(parts, host, moved - host));
	return result;
}

static ferryResult_t compile(const struct ferry_plans *plans, const struct ferry_plan_key *key,
                             struct ferry_plan **plan)
{
	struct parts parts = {.count = 0};
	struct ferry_compile_options options = plans->options;
	ferryResult_t result = ferrySuccess;
	options.count = key->count;
	options.left_out = key->left_out;
	options.type = key->type;
	options.redop = key->redop;
	for (uint32_t domain = 0; domain < plans->rank->ndomains; domain++)
		options.staging[domain] = plans->rank->shared.arenas[domain].staging_bytes;
	if (key->program) {
		result = ferry_fabrics_check(plans->fabrics, key->program);
		parts.all[0] = (struct ferry_program_part){key->program, 0, key->count - key->left_out.count};
		parts.count = 1;
	} else {
		result = synthesize(plans, key, options.staging, &parts);
		for (uint32_t i = 0; i < parts.count; i++)
			parts.all[i].program = parts.made[i];
	}
	options.network = parts.network;
	options.ports = plans->fabrics->ports;
	if (!result)
		result = ferry_program_compile_parts(parts.all, parts.count, &options, plan);
	for (uint32_t i = 0; i < parts.count; i++)
		ferry_program_free(parts.made[i]);
	free(parts.network);
	return result;
}

/*
 * Every rank checks what a router would, so that a plan that some router refuses fails on all ranks and hangs none.
 * Backs the plan's counters with memory before the rank reads one.
 */
static ferryResult_t validate(const struct ferry_rank *rank, const struct ferry_plan *plan)
{
	struct ferry_plan_room limits = {.nranks = (uint32_t)rank->nranks,
	                                   .ndomains = rank->ndomains,
	                                   .rank_domain = rank->shared.rank_domain};
	for (uint32_t domain = 0; domain < rank->ndomains; domain++) {
		limits.staging[domain] = rank->shared.arenas[domain].staging_bytes;
		limits.counters[domain] = FERRY_MOST_COUNTERS;
	}
	ferryResult_t result = ferry_plan_validate(plan, plan->bytes, &limits);
	return result ? result : ferry_job_arenas_back(&rank->shared, plan);
}

/*
 * The routers that the rank gives its plans to: rank 0 to those that have work in it, every rank to the router that
 * moves its data. To a successor every rank gives the plans with work there (journal.h), as rank 0 may have left by
 * then: the plans are kept here until their last call is over in all routers.
 */
static uint32_t keepers_of(const struct ferry_plans *plans, const struct ferry_plan_entry *entry)
{
	const struct ferry_rank *rank = plans->rank;
	return (rank->self == 0 ? entry->steps.domains : 0) | (plans->submissions->ring ? 1u << rank->domain : 0);
}

static ferryResult_t upload(const struct ferry_plans *plans, const struct ferry_plan_entry *entry)
{
	for (uint32_t domain = 0; domain < plans->rank->ndomains; domain++) {
		struct ferry_attach_message message = {.kind = FERRY_ATTACH_PLAN, .payload = entry->plan->bytes};
		if (!(keepers_of(plans, entry) >> domain & 1))
			continue;
		ferryResult_t result =
		        ferry_watchdog_ask(plans->rank, domain, &message, entry->plan, "to take a plan");
		if (result)
			return ferry_fail_context(result, "giving a plan to the router of domain %u", domain);
	}
	return ferrySuccess;
}

static ferryResult_t drop(const struct ferry_plans *plans, const struct ferry_plan_entry *entry)
{
	for (uint32_t domain = 0; domain < plans->rank->ndomains; domain++) {
		struct ferry_attach_message message = {.kind = FERRY_ATTACH_DROP, .hash = entry->plan->hash};
		if (!(keepers_of(plans, entry) >> domain & 1))
			continue;
		ferryResult_t result =
		        ferry_watchdog_ask(plans->rank, domain, &message, NULL, "to give a plan back");
		if (result)
			return ferry_fail_context(result, "taking a plan back from the router of domain %u", domain);
	}
	return ferrySuccess;
}

/* A user's program says itself which ways it takes. */
static void show_fabrics(const struct ferry_plans *plans, const struct ferry_plan_key *key)
{
	uint64_t host, moved = moved_of(key);
	if (plans->rank->nranks > 1 && !key->program &&
	    !ferry_fabrics_divide(plans->fabrics, key->collective, key->root, moved, ferry_type_size(key->type),
	                          key->no_adds, &host))
		ferry_fabrics_print(plans->fabrics, host, moved, stderr);
	if (key->left_out.count)
		fprintf(stderr, ", %llu of each block left out%s", (unsigned long long)key->left_out.count,
		        key->left_out.mirrored ? " around the middle" : "");
}

/* By how much a copy engine's edges lag less than the window; 0 for a plan without a guard. */
static uint32_t guard_of(const struct ferry_plan *plan)
{
	const struct ferry_edge *edges = ferry_plan_edges(plan);
	uint32_t least = plan->window;
	for (uint32_t e = 0; e < plan->nedges; e++)
		if (edges[e].lag && edges[e].lag < least)
			least = edges[e].lag;
	return plan->window - least;
}

/* What ferry_tune chose, and from what. */
static void show_tuning(const struct ferry_compile_options *options, const struct ferry_plan *plan)
{
	const struct ferry_costs *costs = &options->costs;
	fprintf(stderr, "slice %u bytes, window %u slot%s, guard %u, advance %u, workers %u%s, staging", plan->slice,
	        plan->window, plan->window == 1 ? "" : "s", guard_of(plan), plan->advance, plan->workers,
	        plan->workers ? "" : " (all)");
	for (uint32_t domain = 0; domain < plan->ndomains; domain++)
		fprintf(stderr, " %llu of %llu", (unsigned long long)plan->staging[domain],
		        (unsigned long long)options->staging[domain]);
	fprintf(stderr, " bytes");
	if (!(plan->flags & FERRY_PLAN_DMA))
		return;
	fprintf(stderr, ", for %llu bytes of a core's own cache, %u domain%s to the last one",
	        (unsigned long long)options->core_cache, options->sharing ? options->sharing : 1,
	        options->sharing > 1 ? "s" : "");
	fprintf(stderr, ", a slice costs %u ns and moves at %u GB/s (%s)", costs->issue_ns, costs->link,
	        costs->measured ? "ferry-perf limits" : "not measured here");
}

static void show(const struct ferry_plans *plans, const struct ferry_plan_entry *entry)
{
	const struct ferry_plan *plan = entry->plan;
	struct ferry_compile_options options = plans->options;
	if (!plans->shown || plans->rank->self)
		return;
	for (uint32_t domain = 0; domain < plan->ndomains; domain++)
		options.staging[domain] = plans->rank->shared.arenas[domain].staging_bytes;
	fprintf(stderr, "ferry plan: %s of %llu %s, %s, %u rank%s in %u domain%s%s: %u instructions, ",
	        ferry_collective_name(plan->collective), (unsigned long long)plan->count, ferry_type_name(plan->type),
	        ferry_redop_name(plan->redop), plan->nranks, plan->nranks == 1 ? "" : "s", plan->ndomains,
	        plan->ndomains == 1 ? "" : "s", entry->key.program ? ", user's program" : "", plan->ninstrs);
	show_tuning(&options, plan);
	show_fabrics(plans, &entry->key);
	fprintf(stderr, ", hash %016llx\n", (unsigned long long)plan->hash);
}

static bool routers_finished(const struct ferry_plans *plans, const struct ferry_plan_entry *entry)
{
	const struct ferry_rank *rank = plans->rank;
	if (plans->submissions->ring && !ferry_submissions_taken(plans->submissions))
		return false;
	/* Once calls were captured the router numbers all calls: then all calls must be over. */
	if (plans->submissions->ring && plans->numbers->fixed != UINT64_MAX &&
	    !ferry_submissions_idle(plans->submissions))
		return false;
	uint64_t last = atomic_load_explicit(&entry->steps.last_seq, memory_order_relaxed);
	for (uint32_t domain = 0; domain < rank->ndomains; domain++)
		if (entry->steps.domains >> domain & 1 &&
		    atomic_load_explicit(&rank->shared.arenas[domain].header->finished[last % FERRY_PARITIES],
		                         memory_order_acquire) < last)
			return false;
	return true;
}

/*
 * Drops some of the least recently used plans. A router may still be in the last call of one, though the ranks are not:
 * then that plan, and plans used later, stay until another plan is made.
 */
static ferryResult_t forget(struct ferry_plans *plans)
{
	ferryResult_t result = ferrySuccess;
	for (int i = 0; i < FORGET_AT_ONCE && !result; i++) {
		struct ferry_plan_entry *entry = ferry_plan_cache_surplus(&plans->cache);
		if (!entry || !routers_finished(plans, entry))
			return ferrySuccess;
		ferry_plan_cache_remove(&plans->cache, entry);
		ferry_journal_remove_plan(plans->journal, entry->journaled);
		if (!ferry_plan_cache_has(&plans->cache, entry->plan->hash))
			result = drop(plans, entry);
		entry_free(entry);
	}
	return result;
}

/* Compiles a plan, which only the caller has yet. */
static ferryResult_t make(const struct ferry_plans *plans, const struct ferry_plan_key *key,
                          struct ferry_plan_entry **made)
{
	struct ferry_plan_entry *entry = calloc(1, sizeof *entry);
	if (!entry)
		return ferry_fail(ferrySystemError, "no memory for a plan");
	entry->key = *key;
	ferryResult_t result = compile(plans, key, &entry->plan);
	if (!result)
		result = validate(plans->rank, entry->plan);
	if (!result)
		result = ferry_steps_find(&entry->steps, entry->plan, &plans->rank->shared,
		                          (uint32_t)plans->rank->self);
	if (result)
		entry_free(entry);
	else
		*made = entry;
	return result;
}

/*
 * Gives the plan to the routers and caches it, with a reference for the caller; frees it if that fails. An error in a
 * call fails the rank, because the other ranks wait for it.
 */
static ferryResult_t keep(struct ferry_plans *plans, struct ferry_plan_entry *entry, bool in_call)
{
	ferryResult_t result = forget(plans);
	if (!result)
		result = ferry_journal_add_plan(plans->journal, entry->plan,
		                                entry->steps.domains | keepers_of(plans, entry), &entry->journaled);
	if (!result)
		result = upload(plans, entry);
	if (result && in_call)
		ferry_rank_fail_request(plans->rank, result, ferry_last_message());
	if (!result)
		result = ferry_plan_cache_add(&plans->cache, entry);
	if (!result) {
		show(plans, entry);
		return ferrySuccess;
	}
	if (entry->journaled)
		ferry_journal_remove_plan(plans->journal, entry->journaled);
	entry_free(entry);
	return result;
}

ferryResult_t ferry_plans_find(struct ferry_plans *plans, const struct ferry_plan_key *key,
                               struct ferry_plan_entry **found)
{
	struct ferry_plan_entry *entry = ferry_plan_cache_take(&plans->cache, key);
	ferryResult_t result = ferrySuccess;
	if (!entry) {
		plans->late++;
		result = make(plans, key, &entry);
		if (!result)
			result = keep(plans, entry, true);
	}
	*found = result ? NULL : entry;
	return result;
}

ferryResult_t ferry_plans_prepare(struct ferry_plans *plans, const struct ferry_plan_key *key)
{
	struct ferry_plan_entry *entry;
	if (ferry_plan_cache_look(&plans->cache, key))
		return ferrySuccess;
	ferryResult_t result = make(plans, key, &entry);
	if (!result)
		result = keep(plans, entry, false);
	if (!result)
		ferry_plan_cache_give_back(&plans->cache, entry);
	return result;
}

void ferry_plans_free(struct ferry_plans *plans)
{
	for (struct ferry_plan_entry *entry; (entry = ferry_plan_cache_empty(&plans->cache));)
		entry_free(entry);
}
