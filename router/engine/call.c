/* SPDX-License-Identifier: Apache-2.0 */
#include "router/engine/call.h"

#include <stdlib.h>

bool ferry_call_prepare(struct ferry_call *call, uint32_t ups, uint32_t downs, uint32_t parities)
{
	for (uint32_t parity = 0; parity < FERRY_PARITIES; parity++) {
		if (!(parities >> parity & 1))
			continue;
		struct ferry_transfer *transfers = calloc(ups + downs + 1, sizeof *transfers);
		if (!transfers) {
			ferry_call_unprepare(call);
			return false;
		}
		call->halves[FERRY_DIR_D2H].prepared[parity] = transfers;
		call->halves[FERRY_DIR_H2D].prepared[parity] = transfers + ups;
	}
	return true;
}

void ferry_call_unprepare(struct ferry_call *call)
{
	for (uint32_t parity = 0; parity < FERRY_PARITIES; parity++) {
		free(call->halves[FERRY_DIR_D2H].prepared[parity]);
		call->halves[FERRY_DIR_D2H].prepared[parity] = call->halves[FERRY_DIR_H2D].prepared[parity] = NULL;
	}
}

bool ferry_call_stream_copies(const struct ferry_call_buffers *buffers, const struct ferry_step *step)
{
	return step->instr->opcode == FERRY_COPY && !step->ngates && buffers->stream_copies;
}

static bool is_put_from_input(const struct ferry_instr *instr)
{
	return instr->opcode == FERRY_PUT && !(instr->flags & FERRY_INSTR_FORWARDS) && !instr->nsources;
}

void ferry_call_fill_transfer(const struct ferry_plan *plan, const struct ferry_call_buffers *buffers,
                              const struct ferry_step *step, struct ferry_transfer *transfer)
{
	const struct ferry_instr *instr = step->instr;
	bool h2d = instr->opcode == FERRY_H2D || instr->opcode == FERRY_WAIT_PUT ||
	           (instr->opcode == FERRY_PUT && instr->flags & FERRY_INSTR_FORWARDS);
	uint64_t offset = instr->user_offset, destination = instr->user_destination;
	*transfer = (struct ferry_transfer){.step = step, .length = instr->length};
	if (plan->flags & FERRY_PLAN_VARIABLE) {
		transfer->length = (h2d ? buffers->receive_lengths : buffers->send_lengths)[instr->chunk];
		offset = (h2d ? buffers->receive_offsets : buffers->send_offsets)[instr->chunk];
		destination = buffers->receive_offsets[instr->chunk];
	}
	if (instr->nsources && step->division)
		transfer->length = 0; /* a relay: its length comes with its part (take_part in slices.c) */
	transfer->whole = transfer->length;
	transfer->target_offset = instr->opcode == FERRY_WAIT_PUT ? offset : 0;
	transfer->nslices = (uint32_t)((transfer->length + plan->slice - 1) / plan->slice);
	char *from = is_put_from_input(instr) && buffers->aside ? buffers->aside : buffers->send;
	transfer->user = transfer->length ? (h2d ? buffers->receive : from) + offset : NULL;
	if (instr->opcode == FERRY_COPY)
		transfer->destination = transfer->length ? buffers->receive + destination : NULL;
	transfer->window = step->window;
	transfer->source = step->source;
	if (!buffers->memory)
		return;
	if (ferry_window_is_on_device(instr->window_domain) && !ferry_instr_puts_into_memory(instr))
		transfer->window = buffers->memory + step->half + instr->window_offset;
	if (instr->nsources)
		transfer->source = buffers->memory + step->half +
		                   ferry_plan_sources(plan)[instr->first_source].window_offset;
}

static bool crosses(const struct ferry_steps *steps, const char *start, const char *end, const char *receive)
{
	for (uint32_t i = 0; i < steps->nsteps[FERRY_DIR_H2D]; i++) {
		const struct ferry_instr *wait = steps->steps[FERRY_DIR_H2D][0][i].instr;
		const char *to = receive + wait->user_offset;
		if (wait->opcode == FERRY_WAIT_PUT && to < end && start < to + wait->length)
			return true;
	}
	return false;
}

bool ferry_call_puts_cross(const struct ferry_steps *steps, const struct ferry_call_buffers *buffers)
{
	if (!steps->nputs || !buffers->send || !buffers->receive ||
	    buffers->send + steps->reach[FERRY_DIR_D2H] <= buffers->receive ||
	    buffers->receive + steps->reach[FERRY_DIR_H2D] <= buffers->send)
		return false;
	for (uint32_t i = 0; i < steps->nsteps[FERRY_DIR_D2H]; i++) {
		const struct ferry_instr *put = steps->steps[FERRY_DIR_D2H][0][i].instr;
		const char *start = buffers->send + put->user_offset;
		if (is_put_from_input(put) && crosses(steps, start, start + put->length, buffers->receive))
			return true;
	}
	return false;
}

static void fill_half(struct ferry_call *call, const struct ferry_call_buffers *buffers, enum ferry_direction direction,
                      uint32_t parity)
{
	const struct ferry_plan *plan = call->steps->plan;
	struct ferry_half *half = &call->halves[direction];
	const struct ferry_step *steps = call->steps->steps[direction][parity];
	bool variable = plan->flags & FERRY_PLAN_VARIABLE;
	half->ntransfers = half->all = 0;
	for (uint32_t i = 0; i < call->steps->nsteps[direction]; i++) {
		struct ferry_transfer *transfer = &half->prepared[parity][half->ntransfers];
		ferry_call_fill_transfer(plan, buffers, &steps[i], transfer);
		if (steps[i].instr->opcode == FERRY_COPY && transfer->user == transfer->destination)
			continue; /* in place, or nothing */
		if ((!transfer->nslices && !variable) || ferry_call_stream_copies(buffers, &steps[i]))
			continue;
		half->ntransfers++;
		/*
		 * Variable: an empty receive still compares its length with the sender's; an empty send is done. What
		 * is divided among paths waits for its part.
		 */
		half->all += transfer->nslices || (variable && steps[i].producer) || steps[i].division;
	}
}

void ferry_call_fill(struct ferry_call *call, const struct ferry_call_buffers *buffers)
{
	for (uint32_t parity = 0; parity < FERRY_PARITIES; parity++)
		for (enum ferry_direction direction = FERRY_DIR_D2H; direction <= FERRY_DIR_H2D; direction++)
			if (call->halves[direction].prepared[parity])
				fill_half(call, buffers, direction, parity);
}

void ferry_call_arm(struct ferry_call *call, uint32_t parity)
{
	call->parity = parity;
	for (enum ferry_direction direction = FERRY_DIR_D2H; direction <= FERRY_DIR_H2D; direction++) {
		struct ferry_half *half = &call->halves[direction];
		half->transfers = half->prepared[parity];
		half->left = half->all;
		half->turn = 0;
		for (uint32_t i = 0; i < half->ntransfers; i++) {
			struct ferry_transfer *transfer = &half->transfers[i];
			transfer->issued = transfer->finished = transfer->open = 0;
			transfer->current = transfer->published = false;
			if (transfer->step && transfer->step->division) /* its part is not known yet */
				transfer->length = transfer->nslices = 0;
			if (!transfer->step || transfer->step->instr->opcode == FERRY_PUT)
				transfer->destination = NULL; /* each run finds its put target anew */
			else if (ferry_instr_puts_into_memory(transfer->step->instr))
				transfer->window = NULL;
		}
	}
}

/* A transfer that is divided among paths goes on in slices.c, once its part is settled. */
static void resume_half(struct ferry_half *half, uint64_t seq)
{
	for (uint32_t i = 0; i < half->ntransfers; i++) {
		struct ferry_transfer *transfer = &half->transfers[i];
		uint8_t opcode = (uint8_t)transfer->step->instr->opcode;
		if (opcode == FERRY_COPY || opcode == FERRY_WAIT_PUT || !transfer->nslices)
			continue; /* COPY and WAIT_PUT publish nothing */
		uint64_t value = atomic_load_explicit(&transfer->step->counter->value, memory_order_acquire);
		uint32_t slices = ferry_counter_slices(value, seq);
		transfer->issued = transfer->finished = slices < transfer->nslices ? slices : transfer->nslices;
		half->left -= transfer->finished == transfer->nslices;
	}
}

void ferry_call_resume(struct ferry_call *call)
{
	for (enum ferry_direction direction = FERRY_DIR_D2H; direction <= FERRY_DIR_H2D; direction++)
		resume_half(&call->halves[direction], ferry_call_number(call));
}
