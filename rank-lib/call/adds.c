/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/call/adds.h"

#include "rank-lib/call/comm.h"
#include "rank-lib/kernels/kernel_launch.h"
#include "rank-lib/kernels/modules.h"
#include "router/reduce/reduce.h"

#define THREADS 512u

_Static_assert(sizeof(struct ferry_kernel_adds) <= 4096, "a kernel's argument");

static void add(const struct ferry_plan *plan, const struct ferry_instr *instr, struct ferry_kernel_adds *adds,
                uint32_t *nsources)
{
	const struct ferry_source *sources = ferry_plan_sources(plan) + instr->first_source;
	adds->adds[adds->count++] = (struct ferry_kernel_add){.bytes = instr->length,
	                                                      .to = (uint32_t)(instr->window_offset / 64),
	                                                      .first_source = (uint16_t)*nsources,
	                                                      .nsources = (uint8_t)instr->nsources,
	                                                      .last = instr->flags & FERRY_INSTR_FINAL};
	for (uint32_t i = 0; i < instr->nsources; i++)
		adds->sources[(*nsources)++] = (uint32_t)(sources[i].window_offset / 64) << 1 |
		                               (sources[i].rank != FERRY_PARTIAL);
}

ferryResult_t ferry_adds_prepare(const struct ferry_request *request)
{
	return ferry_mailboxes_map_adds(&request->comm->mailboxes);
}

void ferry_adds_kernel(const struct ferry_request *request, const struct ferry_plan *plan, uint64_t seq, char *memory,
                       struct ferry_kernel_adds *adds, struct ferry_beside_kernel *kernel)
{
	const struct ferry_mailboxes *mailboxes = &request->comm->mailboxes;
	const uint32_t self = mailboxes->blank.rank, parity = seq % FERRY_PARITIES;
	uint32_t nsources = 0;
	*adds = (struct ferry_kernel_adds){.call = mailboxes->blank,
	                                   .memory = memory + parity * plan->memory,
	                                   .memory_bytes = plan->memory,
	                                   .cells = (char *)((struct ferry_add_cells *)mailboxes->adds + parity),
	                                   .number = (uint32_t)seq,
	                                   .lap = (uint32_t)(ferry_plan_lap(seq) * plan->advance % plan->window),
	                                   .slice = plan->slice,
	                                   .window = plan->window};
	for (uint32_t i = 0; i < plan->ninstrs; i++)
		if (ferry_plan_instrs(plan)[i].opcode == FERRY_ADD && ferry_plan_instrs(plan)[i].owner == self)
			add(plan, &ferry_plan_instrs(plan)[i], adds, &nsources);
	if (!adds->count)
		return;
	adds->call.state = &mailboxes->box->states[FERRY_BOX_CALLS];
	adds->call.reduces = 1;
	ferry_kernels_fill_operation(request, NULL, &adds->call);
	adds->one = ferry_reduce_reciprocal(plan->type, 1);
	kernel->function = ferry_modules_function(mailboxes->device, plan->type, FERRY_KERNEL_ADD);
	kernel->blocks = mailboxes->blocks < FERRY_KERNEL_ADD_BLOCKS ? mailboxes->blocks : FERRY_KERNEL_ADD_BLOCKS;
	kernel->threads = THREADS;
	kernel->order = &mailboxes->box->adds[parity];
	kernel->adds = adds;
}
