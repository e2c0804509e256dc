/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer target: any bytes as a plan that a rank hands to a router. They are validated as they are, and once more
 * with the header's magic, size and hash set right, or nothing behind those checks would ever be reached.
 */
#include "ipc/error.h"
#include "ipc/plan.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A job that the plan could be for: the router knows these numbers from elsewhere, so they are always sane. */
static void make_limits(const struct ferry_plan *plan, struct ferry_plan_room *limits, uint8_t *rank_domain)
{
	memset(limits, 0, sizeof *limits);
	limits->nranks = plan->nranks >= 1 && plan->nranks <= FERRY_MAX_RANKS ? plan->nranks : 4;
	limits->ndomains = plan->ndomains >= 1 && plan->ndomains <= FERRY_MAX_DOMAINS ? plan->ndomains : 2;
	limits->rank_domain = rank_domain;
	for (uint32_t rank = 0; rank < limits->nranks; rank++)
		rank_domain[rank] = (uint8_t)(plan->rank_domain[rank] % limits->ndomains);
	for (uint32_t domain = 0; domain < FERRY_MAX_DOMAINS; domain++) {
		limits->staging[domain] = 1u << 20;
		limits->counters[domain] = 1u << 14;
	}
}

/* In the staging of a domain, or in the memory of a rank's GPU. */
static bool is_inside(const struct ferry_plan *plan, uint32_t domain, uint64_t offset)
{
	uint64_t window = (uint64_t)plan->slice * plan->window;
	if (domain >= FERRY_MAX_DOMAINS)
		return domain - FERRY_MAX_DOMAINS < plan->nranks && offset + window <= plan->memory;
	return domain < plan->ndomains && offset + window <= plan->staging[domain];
}

/* What a router relies on when it resolves a valid plan's indexes to pointers (router/daemon/job.c). */
static void check_indexes(const struct ferry_plan *plan, const struct ferry_plan_room *limits)
{
	const struct ferry_instr *instrs = ferry_plan_instrs(plan);
	bool fits = true;
	for (uint32_t domain = 0; domain < limits->ndomains; domain++)
		fits &= plan->staging[domain] <= limits->staging[domain] &&
		        plan->counters[domain] <= limits->counters[domain] &&
		        plan->counters[domain] <= plan->ninstrs;
	for (uint32_t i = 0; i < plan->ninstrs; i++) {
		const struct ferry_instr *instr = &instrs[i];
		bool inside = instr->domain < limits->ndomains && instr->counter < plan->counters[instr->domain];
		if (ferry_opcode_has_window(instr->opcode))
			inside &= is_inside(plan, instr->window_domain, instr->window_offset);
		if (instr->opcode == FERRY_PUT || instr->opcode == FERRY_WAIT_PUT)
			inside &= instr->peer < limits->nranks && instr->owner < limits->nranks &&
			          instr->peer != instr->owner && (plan->flags & FERRY_PLAN_PUTS);
		for (uint32_t e = 0; e < instr->nedges; e++)
			inside &= ferry_plan_edges(plan)[instr->first_edge + e].instr < plan->ninstrs;
		for (uint32_t s = 0; s < instr->nsources; s++) {
			const struct ferry_source *source = &ferry_plan_sources(plan)[instr->first_source + s];
			inside &= is_inside(plan, source->domain, source->window_offset) &&
			          (source->rank < limits->nranks || source->rank == FERRY_PARTIAL);
		}
		if (!inside || !fits) {
			fprintf(stderr, "fuzz_plan: instruction %u of a plan taken as valid reaches outside\n", i);
			abort();
		}
	}
}

/*
 * What a rank relies on whose receive buffer others push into: each PUT has one WAIT_PUT of the same bytes, which waits
 * for it, and what is forwarded is waited for.
 */
static void check_pushes(const struct ferry_plan *plan)
{
	const struct ferry_instr *instrs = ferry_plan_instrs(plan);
	for (uint32_t i = 0; i < plan->ninstrs; i++) {
		const struct ferry_instr *put = &instrs[i];
		uint32_t put_waits = 0;
		bool imported_arena = !(put->flags & FERRY_INSTR_FORWARDS);
		if (put->opcode != FERRY_PUT)
			continue;
		for (uint32_t j = 0; j < plan->ninstrs; j++) {
			const struct ferry_edge *edge = ferry_plan_edges(plan) + instrs[j].first_edge;
			put_waits += instrs[j].opcode == FERRY_WAIT_PUT && instrs[j].owner == put->peer &&
			         instrs[j].user_offset == put->user_destination && instrs[j].length == put->length &&
			         edge->instr == i && !edge->lag;
		}
		for (uint32_t e = 0; e < put->nedges; e++) {
			const struct ferry_instr *other = &instrs[ferry_plan_edges(plan)[put->first_edge + e].instr];
			imported_arena |= other->opcode == FERRY_H2D || other->opcode == FERRY_PUT;
		}
		if (put_waits != 1 || !imported_arena) {
			fprintf(stderr, "fuzz_plan: PUT %u of a plan taken as valid has %u WAIT_PUTs, %s\n", i,
			        put_waits,
			        imported_arena ? "and waits for what it reads" : "and waits for nothing that it reads");
			abort();
		}
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct ferry_plan_room limits;
	struct ferry_plan header = {0};
	uint8_t rank_domain[FERRY_MAX_RANKS];
	struct ferry_plan *plan = malloc(size ? size : 1); /* of that size: a read behind its end is seen */
	if (!plan)
		return 0;
	if (size)
		memcpy(plan, data, size);
	memcpy(&header, plan, size < sizeof header ? size : sizeof header);
	make_limits(&header, &limits, rank_domain);
	ferryResult_t result = ferry_plan_validate(plan, size, &limits);
	if (result && size >= sizeof *plan) {
		plan->magic = FERRY_PLAN_MAGIC;
		plan->abi = FERRY_PLAN_ABI;
		plan->bytes = size;
		plan->hash = ferry_plan_hash(plan);
		result = ferry_plan_validate(plan, size, &limits);
	}
	if (!result) {
		check_indexes(plan, &limits);
		check_pushes(plan);
	}
	free(plan);
	return 0;
}
