/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives of a rank whose router moves its data: names the buffers, or bounce buffers instead, then submits. */
#include "rank-lib/call/mapped.h"

#include "rank-lib/call/adds.h"
#include "rank-lib/call/gpu_sums.h"

#include <stdlib.h>

/* ---- memory for sums ---- */

#define ROOMS 8u /* streams at most that get memory for sums ahead of their calls */

/* Takes the stream's memory for sums: its sums run one after another and share it. */
static ferryResult_t take_room(struct ferry_mapped *mapped, const struct ferry_request *step, uint64_t stream,
                               uint64_t submission, bool put_target, struct ferry_buffer_name *name, char **start)
{
	const uint64_t room = ferry_gpu_sums_room(step);
	void *memory;
	ferryResult_t result = ferry_bounce_buffers_take(&mapped->bounces, mapped->device,
	                                                 ferry_open_call_sums(stream), FERRY_DIR_H2D, room, &memory);
	if (result)
		return result;
	*start = (char *)memory + step->sums_at;
	return ferry_exports_name(mapped->exports, *start, room - step->sums_at, submission, false, put_target, name);
}

/* Memory for sums stays until the communicator ends, even if its stream has gone. */
static bool has_most_rooms(const struct ferry_mapped *mapped, uint64_t stream)
{
	uint32_t rooms = 0;
	for (const struct ferry_bounce_buffer *bounce = mapped->bounces.all; bounce; bounce = bounce->next)
		rooms += !bounce->replaced && bounce->stream == ferry_open_call_sums(bounce->stream);
	return rooms >= ROOMS &&
	       !ferry_bounce_buffers_have(&mapped->bounces, ferry_open_call_sums(stream), FERRY_DIR_H2D, 0);
}

ferryResult_t ferry_mapped_make_room(struct ferry_mapped *mapped, const struct ferry_request *step, bool put_target)
{
	struct ferry_buffer_name name;
	char *start;
	if (!mapped->sums_stream)
		return ferrySuccess; /* the next call asks again */
	if (has_most_rooms(mapped, mapped->sums_stream))
		return ferry_fail(ferryInternalError, "%u streams have memory for sums: that is the most", ROOMS);
	return take_room(mapped, step, mapped->sums_stream, 0, put_target, &name, &start);
}

char *ferry_mapped_room(struct ferry_mapped *mapped, const struct ferry_request *step)
{
	struct ferry_stream_state stream;
	if (mapped->device->ops->check_stream(mapped->device, step->stream, &stream))
		return NULL;
	return ferry_bounce_buffers_have(&mapped->bounces, ferry_open_call_sums(stream.id), FERRY_DIR_H2D,
	                                 ferry_gpu_sums_room(step));
}

bool ferry_mapped_has_room(struct ferry_mapped *mapped, const struct ferry_request *step, bool put_target)
{
	const uint64_t room = ferry_gpu_sums_room(step);
	struct ferry_stream_state stream;
	if (mapped->device->ops->check_stream(mapped->device, step->stream, &stream) || stream.captures)
		return false;
	mapped->sums_stream = stream.id;
	void *memory = ferry_bounce_buffers_have(&mapped->bounces, ferry_open_call_sums(stream.id),
	                                         FERRY_DIR_H2D, room);
	return memory && ferry_exports_have(mapped->exports, memory, room, put_target);
}

/* ---- names ---- */

enum { MEMORY = FERRY_DIR_H2D + 1, NAMES }; /* behind the buffers' names */
#define MEMORY_STREAM (UINT64_C(0xfffe) << 48) /* no stream's id, nor its sums' (open_call.h) */

/* How far the call reaches into each buffer. */
static void find_reach(const struct ferry_mapped *mapped, const struct ferry_collective_call *collective,
                       const struct ferry_request_parts *parts, uint64_t reach[2])
{
	const struct ferry_request *request = collective->request;
	const struct ferry_steps *steps = &collective->entry->steps;
	reach[FERRY_DIR_D2H] = steps->reach[FERRY_DIR_D2H];
	reach[FERRY_DIR_H2D] = steps->reach[FERRY_DIR_H2D];
	if (request->collective != FERRY_ALLTOALLV)
		return;
	for (int peer = 0; peer < mapped->rank->nranks; peer++) {
		uint64_t sent = parts->send_offsets[peer] + parts->send_lengths[peer];
		uint64_t received = parts->receive_offsets[peer] + parts->receive_lengths[peer];
		if (parts->send_lengths[peer] && sent > reach[FERRY_DIR_D2H])
			reach[FERRY_DIR_D2H] = sent;
		if (parts->receive_lengths[peer] && received > reach[FERRY_DIR_H2D])
			reach[FERRY_DIR_H2D] = received;
	}
}

/* Names the buffer, or a bounce buffer in its place: if `aside`, or if the buffer cannot be exported. */
static ferryResult_t name_buffer(struct ferry_mapped *mapped, const void *buffer, uint64_t bytes,
                                 enum ferry_direction direction, const struct ferry_stream_state *stream,
                                 bool put_target, bool aside, struct ferry_buffer_name *name, char **bounce)
{
	uint64_t submission = mapped->journal->number + 1;
	void *memory;
	ferryResult_t result = aside ? ferryInvalidUsage
	                             : ferry_exports_name(mapped->exports, buffer, bytes, submission, stream->captures,
	                                                  put_target, name);
	if (!ferry_exports_refused(result))
		return result;
	ferry_forget_message(); /* that it cannot be exported is no failure */
	result = ferry_bounce_buffers_take(&mapped->bounces, mapped->device, stream->captures ? 0 : stream->id,
	                                   direction, bytes, &memory);
	if (result)
		return result;
	*bounce = memory;
	return ferry_exports_name(mapped->exports, memory, bytes, submission, stream->captures, put_target, name);
}

/*
 * Names the rank's device memory, which all calls of the communicator share: a half for each parity. A bounce buffer of
 * a stream that no call has, made at the first call that needs it.
 */
static ferryResult_t name_memory(struct ferry_mapped *mapped, struct ferry_collective_call *collective,
                                 struct ferry_buffer_name *name)
{
	const uint64_t bytes = FERRY_PARITIES * collective->entry->plan->memory;
	void *memory = NULL;
	if (!bytes)
		return ferrySuccess;
	ferryResult_t result = ferry_bounce_buffers_take(&mapped->bounces, mapped->device, MEMORY_STREAM, FERRY_DIR_H2D,
	                                                 bytes, &memory);
	collective->memory = memory;
	return result ? result
	              : ferry_exports_name(mapped->exports, memory, bytes, mapped->journal->number + 1,
	                                   collective->stream.captures, true, name);
}

/* Takes the call's stream flag, and keeps what a captured call needs. */
static ferryResult_t take_flag(struct ferry_mapped *mapped, struct ferry_collective_call *collective)
{
	struct ferry_submission *head = &collective->head;
	if (!collective->stream.captures)
		return ferry_stream_flag_for_stream(mapped->flags, collective->stream.id, &head->flag, &head->turn);
	return ferry_captures_keep(&mapped->captures, collective->entry, collective->names, NAMES, head,
	                           &collective->in_stream);
}

ferryResult_t ferry_mapped_name(struct ferry_mapped *mapped, struct ferry_collective_call *collective)
{
	const struct ferry_request *request = collective->request;
	struct ferry_request_parts parts;
	struct ferry_call_buffers buffers;
	uint64_t reach[2];
	const void *starts[2] = {request->send, request->receive};
	ferryResult_t result = ferrySuccess;
	ferry_captures_sweep(&mapped->captures);
	ferry_request_buffers(request, mapped->rank, mapped->device, &parts, &buffers);
	find_reach(mapped, collective, &parts, reach);
	bool aside[2] = {ferry_call_puts_cross(&collective->entry->steps, &buffers), false};
	bool put_target[2] = {false, collective->entry->plan->flags & FERRY_PLAN_PUTS};
	if (ferry_gpu_sums_add(request))
		result = take_room(mapped, request, collective->stream.id, mapped->journal->number + 1, put_target[1],
		                   &collective->names[1], &collective->bounces[1]);
	for (enum ferry_direction i = FERRY_DIR_D2H; i <= FERRY_DIR_H2D && !result; i++)
		if (reach[i] && !(i == FERRY_DIR_H2D && request->sums))
			result = name_buffer(mapped, starts[i], reach[i], i, &collective->stream, put_target[i],
			                     aside[i], &collective->names[i], &collective->bounces[i]);
	if (!result)
		result = name_memory(mapped, collective, &collective->names[MEMORY]);
	if (!result && collective->entry->steps.nadds)
		result = ferry_adds_prepare(request);
	if (!result)
		result = take_flag(mapped, collective);
	if (result && collective->stream.captures)
		ferry_captures_undo(&mapped->captures, collective->names, NAMES);
	return result;
}

static void fill_head(const struct ferry_collective_call *collective, struct ferry_submission *head)
{
	const struct ferry_plan_entry *entry = collective->entry;
	*head = (struct ferry_submission){.kind = FERRY_SUBMIT_COLLECTIVE,
	                                  .flags = collective->stream.captures ? FERRY_SUBMIT_CAPTURED : 0,
	                                  .seq = collective->number.seq,
	                                  .name = collective->number.name,
	                                  .plan_hash = entry->plan->hash,
	                                  .count = entry->key.count,
	                                  .scalar = collective->factor.scalar,
	                                  .shape = collective->shape,
	                                  .root = entry->key.root,
	                                  .send = collective->names[FERRY_DIR_D2H],
	                                  .receive = collective->names[FERRY_DIR_H2D],
	                                  .memory = collective->names[MEMORY],
	                                  .flag = collective->head.flag,
	                                  .turn = collective->head.turn};
	if (collective->factor.device_scalar)
		head->flags |= FERRY_SUBMIT_SCALAR;
}

static ferryResult_t submit_collective(struct ferry_mapped *mapped, const struct ferry_collective_call *collective,
                                       struct ferry_submission *head, const struct ferry_request_parts *parts)
{
	struct ferry_call_decoder_part behind[FERRY_MAX_RANKS];
	if (collective->request->collective != FERRY_ALLTOALLV)
		return ferry_submissions_write(&mapped->submissions, mapped->rank, mapped->numbers->fixed, head, NULL,
		                               0);
	head->nparts = (uint32_t)mapped->rank->nranks;
	for (uint32_t peer = 0; peer < head->nparts; peer++)
		behind[peer] = (struct ferry_call_decoder_part){parts->send_lengths[peer], parts->send_offsets[peer],
		                                                parts->receive_lengths[peer],
		                                                parts->receive_offsets[peer]};
	return ferry_submissions_write(&mapped->submissions, mapped->rank, mapped->numbers->fixed, head, behind,
	                               head->nparts * sizeof *behind);
}

/* Lists the copies between a user's buffer and its bounce buffer: only of the parts that the call moves. */
static ferryResult_t fill_window(const struct ferry_collective_call *collective,
                                 const struct ferry_call_buffers *buffers, enum ferry_direction direction,
                                 struct ferry_local_copy **copies, uint32_t *ncopies)
{
	const struct ferry_steps *steps = &collective->entry->steps;
	char *bounce = collective->bounces[direction],
	     *start = direction == FERRY_DIR_D2H ? buffers->send : buffers->receive;
	if (!bounce)
		return ferrySuccess;
	if (!(*copies = calloc(steps->nsteps[direction] + 1, sizeof **copies)))
		return ferry_fail(ferrySystemError, "no memory for %u copies", steps->nsteps[direction]);
	for (uint32_t i = 0; i < steps->nsteps[direction]; i++) {
		struct ferry_transfer transfer;
		ferry_call_fill_transfer(steps->plan, buffers, &steps->steps[direction][0][i], &transfer);
		bool forwards = steps->steps[direction][0][i].instr->flags & FERRY_INSTR_FORWARDS &&
		                steps->steps[direction][0][i].instr->opcode == FERRY_PUT;
		if (!transfer.length || transfer.destination || forwards)
			continue;
		char *there = bounce + (transfer.user - start);
		(*copies)[(*ncopies)++] = direction == FERRY_DIR_D2H
		                                  ? (struct ferry_local_copy){there, transfer.user, transfer.length}
		                                  : (struct ferry_local_copy){transfer.user, there, transfer.length};
	}
	return ferrySuccess;
}

/* Lists the copies of the rank's own block, which the user's stream makes. The caller frees the list. */
static ferryResult_t fill_own(const struct ferry_steps *steps, const struct ferry_call_buffers *buffers,
                              struct ferry_stream_call *call)
{
	call->copies = NULL;
	call->ncopies = 0;
	for (uint32_t i = 0; i < steps->nsteps[FERRY_DIR_H2D]; i++) {
		const struct ferry_step *step = &steps->steps[FERRY_DIR_H2D][0][i];
		struct ferry_transfer transfer;
		if (!ferry_call_stream_copies(buffers, step))
			continue;
		ferry_call_fill_transfer(steps->plan, buffers, step, &transfer);
		if (!transfer.length || transfer.user == transfer.destination)
			continue;
		struct ferry_local_copy *grown = realloc(call->copies, (call->ncopies + 1) * sizeof *grown);
		if (!grown) {
			free(call->copies);
			call->copies = NULL;
			return ferry_fail(ferrySystemError, "no memory for %u copies", call->ncopies + 1);
		}
		call->copies = grown;
		grown[call->ncopies++] = (struct ferry_local_copy){transfer.destination, transfer.user,
		                                                   transfer.length};
	}
	return ferrySuccess;
}

static ferryResult_t fill_copies(const struct ferry_collective_call *collective,
                                 const struct ferry_call_buffers *buffers, struct ferry_stream_call *in_stream)
{
	const struct ferry_request *request = collective->request;
	ferryResult_t result = request->sums ? ferrySuccess
	                                     : fill_own(&collective->entry->steps, buffers, in_stream);
	if (!result)
		result = fill_window(collective, buffers, FERRY_DIR_D2H, &in_stream->before, &in_stream->nbefore);
	if (ferry_gpu_sums_add(request))
		ferry_gpu_sums_kernel(request, collective->bounces[FERRY_DIR_H2D], &in_stream->kernel);
	else if (!result && !request->sums)
		result = fill_window(collective, buffers, FERRY_DIR_H2D, &in_stream->after, &in_stream->nafter);
	return result;
}

void ferry_mapped_free_copies(const struct ferry_stream_call *call)
{
	free(call->copies);
	free(call->before);
	free(call->after);
}

ferryResult_t ferry_mapped_collective(struct ferry_mapped *mapped, const struct ferry_collective_call *collective)
{
	const struct ferry_request *request = collective->request;
	struct ferry_steps *steps = &collective->entry->steps;
	struct ferry_request_parts parts;
	struct ferry_call_buffers buffers;
	struct ferry_submission head;
	struct ferry_stream_call in_stream = collective->in_stream;
	struct ferry_kernel_adds adds;
	ferry_request_buffers(request, mapped->rank, mapped->device, &parts, &buffers);
	fill_head(collective, &head);
	in_stream.flag = ferry_stream_flag_at(head.flag);
	in_stream.scalar = collective->factor.device_scalar;
	in_stream.scalar_bytes = ferry_type_size(request->type);
	if (collective->number.seq)
		atomic_store_explicit(&steps->last_seq, collective->number.seq, memory_order_relaxed);
	ferryResult_t result = fill_copies(collective, &buffers, &in_stream);
	if (!result && collective->memory)
		ferry_adds_kernel(request, steps->plan, collective->number.seq, collective->memory, &adds,
		                  &in_stream.beside);
	if (!result)
		result = submit_collective(mapped, collective, &head, &parts);
	if (!collective->stream.captures)
		/* the router keeps its own plan */
		ferry_plan_cache_give_back(mapped->plans, collective->entry);
	if (result) /* the call is numbered: other ranks wait for it */
		ferry_rank_fail_request(mapped->rank, result, ferry_last_message());
	else
		result = ferry_mapped_enqueue(mapped, steps->domains, request, &in_stream);
	ferry_mapped_free_copies(&in_stream);
	return result;
}
