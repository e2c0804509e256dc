/* SPDX-License-Identifier: Apache-2.0 */
#include "router/engine/steps.h"

#include "ipc/error.h"

#include <stdlib.h>
#include <string.h>

static bool is_step(const struct ferry_instr *instr, uint32_t rank, enum ferry_direction direction)
{
	return instr->owner == rank &&
	       (direction == FERRY_DIR_D2H ? ferry_opcode_is_d2h(instr->opcode) : ferry_opcode_is_h2d(instr->opcode));
}

/* The counter of the PUT's WAIT_PUT: a valid plan has one. */
static struct ferry_counter *wait_put_of(const struct ferry_job_arenas *shared, const struct ferry_plan *plan,
                                        const struct ferry_instr *put, uint32_t parity)
{
	const struct ferry_instr *instrs = ferry_plan_instrs(plan);
	for (uint32_t i = 0; i < plan->ninstrs; i++) {
		const struct ferry_edge *edge = ferry_plan_edges(plan) + instrs[i].first_edge;
		if (instrs[i].opcode == FERRY_WAIT_PUT && &instrs[edge->instr] == put)
			return &shared->arenas[instrs[i].domain].counters[parity][instrs[i].counter];
	}
	return NULL;
}

static void find(const struct ferry_job_arenas *shared, const struct ferry_plan *plan, const struct ferry_instr *instr,
                 uint32_t parity, struct ferry_step *step, struct ferry_gate **gates)
{
	const struct ferry_instr *instrs = ferry_plan_instrs(plan);
	const struct ferry_edge *edges = ferry_plan_edges(plan) + instr->first_edge;
	const struct ferry_arena *arenas = shared->arenas;
	step->instr = instr;
	step->counter = &arenas[instr->domain].counters[parity][instr->counter];
	bool device = ferry_window_is_on_device(instr->window_domain);
	step->half = parity * plan->memory;
	if (instr->opcode == FERRY_ADD)
		step->adds = ferry_arena_add_cells(&arenas[instr->domain], instr->owner, parity);
	step->window = ferry_opcode_has_window(instr->opcode) && !device
	                       ? arenas[instr->window_domain].staging[parity] + instr->window_offset
	                       : NULL;
	if (ferry_opcode_is_d2h(instr->opcode) && instr->nsources && !plan->memory) {
		const struct ferry_source *source = ferry_plan_sources(plan) + instr->first_source;
		step->source = arenas[source->domain].staging[parity] + source->window_offset;
	}
	if (instr->path) {
		const struct ferry_instr *division = ferry_plan_division(plan);
		step->division = &arenas[division->domain].counters[parity][division->counter];
	}
	if (plan->flags & FERRY_PLAN_VARIABLE && instr->opcode == FERRY_PUT)
		step->wait_put = wait_put_of(shared, plan, instr, parity);
	step->gates = *gates;
	step->ngates = instr->nedges;
	*gates += instr->nedges;
	for (uint32_t i = 0; i < instr->nedges; i++) {
		const struct ferry_instr *other = &instrs[edges[i].instr];
		if (edges[i].lag && ferry_opcode_is_d2h(instr->opcode) && !instr->wakes_domains && !device)
			step->only_passes_on = true;
		step->gates[i] = (struct ferry_gate){&arenas[other->domain].counters[parity][other->counter],
		                                     edges[i].lag, other->nslices};
		if (instr->opcode == FERRY_H2D && edges[i].lag == 0 && other->opcode == FERRY_D2H &&
		    other->window_domain == instr->window_domain && other->window_offset == instr->window_offset) {
			step->producer = step->gates[i].counter;
			step->producer_rank = other->owner;
		}
		if (instr->opcode == FERRY_WAIT_PUT) {
			step->producer = step->gates[i].counter;
			step->producer_rank = other->owner;
		}
	}
}

static void reach(struct ferry_steps *steps, const struct ferry_instr *instr)
{
	bool forwards = instr->flags & FERRY_INSTR_FORWARDS && instr->opcode == FERRY_PUT;
	uint64_t end = instr->user_offset + instr->length;
	uint64_t sends = ferry_opcode_sends(instr->opcode) && !forwards && !instr->nsources ? end : 0;
	uint64_t receives = ferry_opcode_receives(instr->opcode) || forwards ? end : 0;
	if (instr->opcode == FERRY_COPY)
		receives = instr->user_destination + instr->length;
	if (!instr->length)
		return;
	if (sends > steps->reach[FERRY_DIR_D2H])
		steps->reach[FERRY_DIR_D2H] = sends;
	if (receives > steps->reach[FERRY_DIR_H2D])
		steps->reach[FERRY_DIR_H2D] = receives;
}

static void count(struct ferry_steps *steps, uint32_t rank, size_t *nsteps, size_t *ngates)
{
	const struct ferry_instr *instrs = ferry_plan_instrs(steps->plan);
	for (uint32_t i = 0; i < steps->plan->ninstrs; i++) {
		if (ferry_opcode_is_work(instrs[i].opcode))
			steps->domains |= 1u << instrs[i].owner;
		else if (instrs[i].owner == rank) {
			steps->nsteps[ferry_opcode_is_d2h(instrs[i].opcode) ? FERRY_DIR_D2H : FERRY_DIR_H2D]++;
			*nsteps += 1;
			*ngates += instrs[i].nedges;
			if (instrs[i].opcode == FERRY_PUT || ferry_instr_puts_into_memory(&instrs[i])) {
				steps->nputs++;
				steps->puts_to |= 1ull << instrs[i].peer;
			}
			steps->nadds += instrs[i].opcode == FERRY_ADD;
			reach(steps, &instrs[i]);
		}
	}
}

/* Numbers the ADDs, in the order of the plan's instructions. */
static void number_adds(struct ferry_steps *steps)
{
	for (uint32_t parity = 0; parity < FERRY_PARITIES; parity++) {
		uint32_t add = 0;
		for (uint32_t i = 0; i < steps->nsteps[FERRY_DIR_H2D]; i++)
			if (steps->steps[FERRY_DIR_H2D][parity][i].instr->opcode == FERRY_ADD)
				steps->steps[FERRY_DIR_H2D][parity][i].add = add++;
	}
}

ferryResult_t ferry_steps_find(struct ferry_steps *steps, const struct ferry_plan *plan,
                               const struct ferry_job_arenas *shared, uint32_t rank)
{
	const struct ferry_instr *instrs = ferry_plan_instrs(plan);
	size_t nsteps = 0, ngates = 0;
	memset(steps, 0, sizeof *steps);
	steps->plan = plan;
	count(steps, rank, &nsteps, &ngates);
	if (steps->nadds && !shared->arenas[shared->rank_domain[rank]].outbox_bytes)
		return ferry_fail(ferryProgramError, "%u ADDs of rank %u: 2 to %u ranks on GPUs have kernels",
		                  steps->nadds, rank, FERRY_OUTBOX_RANKS);
	steps->memory = calloc(FERRY_PARITIES,
	                       nsteps * sizeof(struct ferry_step) + ngates * sizeof(struct ferry_gate) + 1);
	if (!steps->memory)
		return ferry_fail(ferrySystemError, "no memory for a plan of %u instructions", plan->ninstrs);
	struct ferry_step *step = steps->memory;
	struct ferry_gate *gates = (struct ferry_gate *)(step + FERRY_PARITIES * nsteps);
	for (uint32_t parity = 0; parity < FERRY_PARITIES; parity++)
		for (enum ferry_direction direction = FERRY_DIR_D2H; direction <= FERRY_DIR_H2D; direction++) {
			steps->steps[direction][parity] = step;
			for (uint32_t i = 0; i < plan->ninstrs; i++)
				if (is_step(&instrs[i], rank, direction))
					find(shared, plan, &instrs[i], parity, step++, &gates);
		}
	number_adds(steps);
	return ferrySuccess;
}

void ferry_steps_free(struct ferry_steps *steps)
{
	free(steps->memory);
	steps->memory = NULL;
}
