/* SPDX-License-Identifier: Apache-2.0 */
#include "router/engine/division.h"

#include "ipc/environment.h"
#include "ipc/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_BYTES (1ull << 50) /* of a block, so that no sum over all pairs overflows */

/* ---- opened and closed ---- */

static uint32_t pair_of(const struct ferry_plan *plan, const struct ferry_instr *instr)
{
	return (uint32_t)instr->from * plan->nranks + instr->to;
}

static ferryResult_t check_paths(const struct ferry_division *division)
{
	const struct ferry_instr *instrs = ferry_plan_instrs(division->plan);
	const uint32_t *first = division->paths.first;
	for (uint32_t i = 0; i < division->plan->ninstrs; i++) {
		uint32_t pair = pair_of(division->plan, &instrs[i]);
		if (instrs[i].path && instrs[i].path > first[pair + 1] - first[pair])
			return ferry_fail(ferryProgramError, "instruction %u: path %u of %u from rank %u to rank %u", i,
			                  instrs[i].path, first[pair + 1] - first[pair], instrs[i].from, instrs[i].to);
	}
	return ferrySuccess;
}

static bool open_parity(struct ferry_division *division, struct ferry_divided *divided)
{
	size_t npairs = (size_t)division->plan->nranks * division->plan->nranks;
	divided->sends = calloc(npairs, sizeof *divided->sends);
	divided->expects = calloc(npairs, sizeof *divided->expects);
	return divided->sends && divided->expects && ferry_balance_open(&divided->balance, &division->paths);
}

ferryResult_t ferry_division_open(const struct ferry_plan *plan, struct ferry_division **made)
{
	const struct ferry_network *network = ferry_plan_network(plan);
	struct ferry_division *division = calloc(1, sizeof *division);
	bool opened = division && ferry_paths_make(&network->links, plan->nranks, &network->limits, &division->paths);
	if (division)
		division->plan = plan;
	for (uint32_t parity = 0; parity < FERRY_PARITIES && opened; parity++)
		opened = open_parity(division, &division->parities[parity]);
	ferryResult_t result = opened ? check_paths(division)
	                              : ferry_fail(ferrySystemError, "no memory to divide calls among %u ranks' paths",
	                                           plan->nranks);
	if (result)
		ferry_division_close(division);
	else
		*made = division;
	return result;
}

void ferry_division_close(struct ferry_division *division)
{
	for (uint32_t parity = 0; division && parity < FERRY_PARITIES; parity++) {
		ferry_balance_close(&division->parities[parity].balance);
		free(division->parities[parity].sends);
		free(division->parities[parity].expects);
	}
	if (division)
		ferry_paths_free(&division->paths);
	free(division);
}

/* ---- a call ---- */

static struct ferry_counter *counter_of(const struct ferry_job_arenas *shared, const struct ferry_instr *instr,
                                        uint64_t seq)
{
	return &shared->arenas[instr->domain].counters[seq % FERRY_PARITIES][instr->counter];
}

/*
 * Reads the lengths that both ends announce in the first path's counters. Any process with the arena can write there.
 */
static bool read_lengths(const struct ferry_division *division, const struct ferry_job_arenas *shared, uint64_t seq,
                         struct ferry_divided *divided, char text[FERRY_MESSAGE_BYTES])
{
	const struct ferry_instr *instrs = ferry_plan_instrs(division->plan);
	for (uint32_t i = 0; i < division->plan->ninstrs; i++) {
		const struct ferry_instr *instr = &instrs[i];
		bool sends = ferry_opcode_is_d2h(instr->opcode) && instr->owner == instr->from;
		bool receives = ferry_opcode_is_h2d(instr->opcode) && instr->owner == instr->to;
		if (instr->path != 1 || (!sends && !receives))
			continue;
		const struct ferry_counter *counter = counter_of(shared, instr, seq);
		uint64_t value = atomic_load_explicit(&counter->value, memory_order_acquire);
		uint64_t length = atomic_load_explicit(&counter->length, memory_order_relaxed);
		uint64_t *told = (sends ? divided->sends : divided->expects) + pair_of(division->plan, instr);
		if ((uint32_t)(value >> 32) != (uint32_t)seq || length > MOST_BYTES) {
			snprintf(text, FERRY_MESSAGE_BYTES,
			         "alltoallv: rank %u announces %llu bytes in call %u, not %u", instr->owner,
			         (unsigned long long)length, (uint32_t)(value >> 32), (uint32_t)seq);
			return false;
		}
		if (*told != length)
			divided->planned = false;
		*told = length;
	}
	return true;
}

static bool lengths_agree(const struct ferry_division *division, const struct ferry_divided *divided,
                          char text[FERRY_MESSAGE_BYTES])
{
	uint32_t n = division->plan->nranks;
	for (uint32_t pair = 0; pair < n * n; pair++) {
		if (divided->sends[pair] == divided->expects[pair])
			continue;
		snprintf(text, FERRY_MESSAGE_BYTES,
		         "alltoallv: rank %u sends %llu bytes to rank %u, which expects %llu", pair / n,
		          (unsigned long long)divided->sends[pair], pair % n,
		         (unsigned long long)divided->expects[pair]);
		return false;
	}
	return true;
}

/* Parts lie in the order of the paths, but the first path's part is the last: it need not end at a page. */
static void store_part(const struct ferry_division *division, const struct ferry_job_arenas *shared,
                       const struct ferry_divided *divided, const struct ferry_instr *instr, uint64_t seq)
{
	uint32_t pair = pair_of(division->plan, instr);
	const uint64_t *flow = divided->balance.flow + division->paths.first[pair];
	uint32_t npaths = division->paths.first[pair + 1] - division->paths.first[pair], path = instr->path - 1u;
	uint32_t end = path ? path : npaths;
	uint64_t at = 0;
	for (uint32_t before = 1; before < end; before++)
		at += flow[before];
	struct ferry_counter *counter = counter_of(shared, instr, seq);
	atomic_store_explicit(&counter->part, flow[path], memory_order_relaxed);
	atomic_store_explicit(&counter->part_at, at, memory_order_relaxed);
}

/* ---- printing ---- */

static void show_path(const struct ferry_path *path, uint64_t bytes, FILE *out)
{
	fprintf(out, " %llu ", (unsigned long long)bytes);
	if (path->hops == 1)
		fprintf(out, "directly");
	else if (!path->hops)
		fprintf(out, "by the host");
	for (uint32_t hop = 0; hop + 1 < path->hops; hop++)
		fprintf(out, "%s%u", hop ? "-" : "by ", path->via[hop]);
}

/* Prints a line for each pair that uses other paths than the direct one. */
static void show(const struct ferry_division *division, const struct ferry_divided *divided)
{
	const struct ferry_paths *paths = &division->paths;
	const struct ferry_balancer *balance = &divided->balance;
	uint32_t n = paths->nranks;
	fprintf(stderr, "ferry plan: alltoallv: at least %.0f us by direct paths, %.0f us as divided\n",
	        balance->direct_us, balance->us);
	for (uint32_t pair = 0; pair < n * n; pair++) {
		const uint64_t *flow = balance->flow;
		if (paths->first[pair] == paths->first[pair + 1] || flow[paths->first[pair]] == divided->sends[pair])
			continue;
		fprintf(stderr, "ferry plan:   rank %u to rank %u, bytes:", pair / n, pair % n);
		for (uint32_t p = paths->first[pair]; p < paths->first[pair + 1]; p++)
			if (flow[p])
				show_path(&paths->paths[p], flow[p], stderr);
		fprintf(stderr, "\n");
	}
}

bool ferry_division_run(struct ferry_division *division, const struct ferry_job_arenas *shared, uint64_t seq,
                        char text[FERRY_MESSAGE_BYTES])
{
	const struct ferry_instr *instrs = ferry_plan_instrs(division->plan);
	struct ferry_divided *divided = &division->parities[seq % FERRY_PARITIES];
	if (!read_lengths(division, shared, seq, divided, text) || !lengths_agree(division, divided, text))
		return false;
	if (!divided->planned) {
		ferry_balance_plan(&divided->balance, divided->sends);
		if (ferry_debug_shows_plans())
			show(division, divided);
	}
	divided->planned = true;
	for (uint32_t i = 0; i < division->plan->ninstrs; i++)
		if (instrs[i].path)
			store_part(division, shared, divided, &instrs[i], seq);
	return true;
}
