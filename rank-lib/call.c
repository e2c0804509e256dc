/* SPDX-License-Identifier: Apache-2.0 */
/* From a checked request to a call in the stream and in the lanes' inboxes. */
#include "rank-lib/lane.h"

#include <stdlib.h>
#include <string.h>

/* ---- checks ---- */

/* Bytes that the rank reads from its send buffer and writes to its receive buffer. */
static void extents(const struct ferry_request *request, uint64_t *sends, uint64_t *receives)
{
	uint32_t send_blocks, receive_blocks;
	uint64_t block = request->count * ferry_type_size(request->type);
	struct ferryComm *comm = request->comm;
	if (request->collective == FERRY_SENDRECV) {
		*sends = request->direction == FERRY_UP ? block : 0;
		*receives = request->direction == FERRY_DOWN ? block : 0;
		return;
	}
	if (request->collective == FERRY_ALLTOALLV) {
		*sends = *receives = 0;
		for (int peer = 0; peer < comm->nranks; peer++) {
			*sends += request->sendcounts[peer] * ferry_type_size(request->type);
			*receives += request->recvcounts[peer] * ferry_type_size(request->type);
		}
		return;
	}
	ferry_collective_chunks(request->collective, (uint32_t)comm->nranks, 1, (uint32_t)request->root, (uint32_t)comm->rank,
	                        &send_blocks, &receive_blocks);
	*sends = send_blocks * block;
	*receives = receive_blocks * block;
}

/* Where the send buffer must be for the call to be in place; NULL if the collective has no such form here. */
static const char *in_place_send(const struct ferry_request *request)
{
	uint64_t block = request->count * ferry_type_size(request->type) * (uint64_t)request->comm->rank;
	switch (request->collective) {
	case FERRY_ALLGATHER:
	case FERRY_GATHER:
		return (const char *)request->receive + block;
	case FERRY_REDUCESCATTER:
	case FERRY_SCATTER:
		return (const char *)request->receive - block;
	case FERRY_ALLTOALLV:
		return NULL;
	default:
		return request->receive;
	}
}

static ferryResult_t check_buffers(const struct ferry_request *request)
{
	const char *name = ferry_collective_name(request->collective);
	uint64_t sends, receives;
	size_t element = ferry_type_size(request->type);
	if (request->count > (1ull << 46) / (uint64_t)request->comm->nranks)
		return ferry_fail(ferryInvalidArgument, "%s: count %llu: at most %llu among %d ranks", name,
		                  (unsigned long long)request->count, (1ull << 46) / (unsigned long long)request->comm->nranks,
		                  request->comm->nranks);
	extents(request, &sends, &receives);
	if ((sends && !request->send) || (receives && !request->receive))
		return ferry_fail(ferryInvalidArgument, "%s: %s is NULL, and %llu bytes are to be %s", name,
		                  sends && !request->send ? "sendbuff" : "recvbuff",
		                  (unsigned long long)(sends && !request->send ? sends : receives),
		                  sends && !request->send ? "sent" : "received");
	if ((sends && (uintptr_t)request->send % element) || (receives && (uintptr_t)request->receive % element))
		return ferry_fail(ferryInvalidArgument, "%s: sendbuff %p or recvbuff %p is not aligned to an element of %zu bytes",
		                  name, request->send, request->receive, element);
	const char *send = request->send, *receive = request->receive;
	if (request->collective == FERRY_ALLTOALLV || !sends || !receives || send == in_place_send(request))
		return ferrySuccess;
	if (send < receive + receives && receive < send + sends)
		return ferry_fail(ferryInvalidArgument,
		                  "%s: sendbuff %p (%llu bytes) and recvbuff %p (%llu bytes) overlap and are not in place", name,
		                  request->send, (unsigned long long)sends, request->receive, (unsigned long long)receives);
	return ferrySuccess;
}

/* No part that is sent may be written by one that is received. */
static ferryResult_t check_variable_overlap(const struct ferry_request *request)
{
	uintptr_t send = (uintptr_t)request->send, receive = (uintptr_t)request->receive;
	size_t element = ferry_type_size(request->type);
	for (int to = 0; to < request->comm->nranks; to++)
		for (int from = 0; from < request->comm->nranks; from++) {
			uintptr_t out = send + request->senddispls[to] * element, in = receive + request->recvdispls[from] * element;
			uint64_t sent = request->sendcounts[to] * element, received = request->recvcounts[from] * element;
			if (sent && received && out < in + received && in < out + sent)
				return ferry_fail(ferryInvalidArgument,
				                  "alltoallv: the part of sendbuff %p for rank %d and the part of recvbuff %p from rank %d "
				                  "overlap; it has no in-place form",
				                  request->send, to, request->receive, from);
		}
	return ferrySuccess;
}

static ferryResult_t check_variable(const struct ferry_request *request)
{
	if (!request->sendcounts || !request->senddispls || !request->recvcounts || !request->recvdispls)
		return ferry_fail(ferryInvalidArgument, "alltoallv: sendcounts %p, sdispls %p, recvcounts %p, rdispls %p: none may be NULL",
		                  (const void *)request->sendcounts, (const void *)request->senddispls,
		                  (const void *)request->recvcounts, (const void *)request->recvdispls);
	uint64_t most = 1ull << 46, self = (uint64_t)request->comm->rank;
	for (int peer = 0; peer < request->comm->nranks; peer++)
		if (request->sendcounts[peer] > most || request->senddispls[peer] > most || request->recvcounts[peer] > most ||
		    request->recvdispls[peer] > most)
			return ferry_fail(ferryInvalidArgument, "alltoallv: a count or displacement for peer %d is over %llu", peer,
			                  (unsigned long long)most);
	if (request->sendcounts[self] != request->recvcounts[self])
		return ferry_fail(ferryInvalidUsage, "alltoallv: rank %d sends %zu elements to itself and receives %zu",
		                  request->comm->rank, request->sendcounts[self], request->recvcounts[self]);
	return check_variable_overlap(request);
}

static ferryResult_t check_redop(const struct ferry_request *request)
{
	struct ferryComm *comm = request->comm;
	int index = (int)request->op - (int)ferryNumOps;
	if (!ferry_collective_reduces(request->collective))
		return ferrySuccess;
	if ((int)request->op < 0 || index >= FERRY_MAX_REDOPS || (index >= 0 && !comm->redops[index].used))
		return ferry_fail(ferryInvalidArgument, "%s: reduction %d: 0 to %d, or one created on this communicator",
		                  ferry_collective_name(request->collective), (int)request->op, ferryNumOps - 1);
	if (index >= 0 && comm->redops[index].type != request->type)
		return ferry_fail(ferryInvalidUsage, "%s of %s with a reduction created for %s",
		                  ferry_collective_name(request->collective), ferry_type_name(request->type),
		                  ferry_type_name(comm->redops[index].type));
	return ferrySuccess;
}

/* The bytes from the first to the last that the call touches on one side. */
static uint64_t reach(const struct ferry_request *request, const size_t *counts, const size_t *displacements, uint64_t bytes)
{
	uint64_t end = 0;
	if (request->collective != FERRY_ALLTOALLV)
		return bytes;
	for (int peer = 0; peer < request->comm->nranks; peer++)
		if (counts[peer] && displacements[peer] + counts[peer] > end)
			end = displacements[peer] + counts[peer];
	return end * ferry_type_size(request->type);
}

static ferryResult_t check_memory(const struct ferry_request *request)
{
	struct ferry_device *device = request->comm->device;
	uint64_t sends, receives;
	extents(request, &sends, &receives);
	ferryResult_t result = device->ops->check_buffer(device, request->send,
	                                                 reach(request, request->sendcounts, request->senddispls, sends), "sendbuff");
	if (!result && (request->receive != request->send || receives > sends))
		result = device->ops->check_buffer(device, request->receive,
		                                   reach(request, request->recvcounts, request->recvdispls, receives), "recvbuff");
	return result ? ferry_fail_context(result, "%s", ferry_collective_name(request->collective)) : result;
}

ferryResult_t ferry_request_check(const struct ferry_request *request)
{
	bool captures = false;
	const char *name = ferry_collective_name(request->collective);
	struct ferryComm *comm = request->comm;
	ferryResult_t result = ferry_comm_check(comm);
	if (result)
		return result;
	if (ferry_comm_failed(comm))
		return ferry_fail(comm->error, "the communicator has failed: %s", comm->error_message);
	if (comm->finalized)
		return ferry_fail(ferryInvalidUsage, "%s on a communicator that was finalized", name);
	if (!ferry_type_size(request->type))
		return ferry_fail(ferryInvalidArgument, "%s: type %d: 0 to %d", name, (int)request->type, ferryNumTypes - 1);
	if (request->root < 0 || request->root >= comm->nranks)
		return ferry_fail(ferryInvalidArgument, "%s: %s %d: 0 to %d", name,
		                  request->collective == FERRY_SENDRECV ? "peer" : "root", request->root, comm->nranks - 1);
	pthread_mutex_lock(&comm->lock);
	result = check_redop(request);
	pthread_mutex_unlock(&comm->lock);
	if (!result && request->collective == FERRY_ALLTOALLV)
		result = check_variable(request);
	if (!result)
		result = check_buffers(request);
	if (!result)
		result = check_memory(request);
	if (!result)
		result = comm->device->ops->check_stream(comm->device, request->stream, &captures);
	if (!result && captures && request->collective == FERRY_SENDRECV)
		result = ferry_fail(ferryInvalidUsage, "%s cannot be captured into a CUDA graph; use alltoallv", name);
	return result;
}

/* ---- calls ---- */

static void call_free(struct ferry_call *call)
{
	for (uint32_t bank = 0; bank < FERRY_BANKS; bank++)
		free(call->prepared[bank][0]);
	if (call->entry)
		ferry_plan_cache_give_back(&call->comm->plans, call->entry);
	free(call);
}

static void call_release(struct ferry_ticket *ticket)
{
	struct ferry_call *call = (struct ferry_call *)ticket;
	struct ferryComm *comm = call->comm;
	if (comm->device->ops->release)
		comm->device->ops->release(comm->device, ticket);
	call_free(call);
	ferry_comm_drop(comm);
}

/* banks: bit b: it may run in bank b. */
static struct ferry_call *call_new(struct ferryComm *comm, uint32_t ups, uint32_t downs, uint32_t banks)
{
	struct ferry_call *call = calloc(1, sizeof *call);
	if (!call)
		return NULL;
	for (uint32_t bank = 0; bank < FERRY_BANKS; bank++) {
		if (!(banks >> bank & 1))
			continue;
		struct ferry_transfer *transfers = calloc(ups + downs + 1, sizeof *transfers);
		if (!transfers) {
			call_free(call);
			return NULL;
		}
		call->prepared[bank][FERRY_UP] = transfers;
		call->prepared[bank][FERRY_DOWN] = transfers + ups;
	}
	call->comm = comm;
	ferry_ticket_init(&call->ticket);
	call->ticket.on_start = ferry_call_started;
	call->ticket.on_forget = ferry_call_forgotten;
	call->ticket.release = call_release;
	return call;
}

/* Into the graph that the stream captures, then to the lanes, which keep it: its replays come by themselves. */
static ferryResult_t call_capture(struct ferry_call *call, ferryStream_t stream, const struct ferry_stream_work *work)
{
	struct ferryComm *comm = call->comm;
	uint32_t nlanes = 1 + (call->all_left[FERRY_DOWN] > 0);
	ferry_comm_hold(comm);
	call->ticket.repeats = true;
	atomic_store(&call->ticket.holders, nlanes);
	ferryResult_t result = comm->device->ops->enqueue(comm->device, stream, &call->ticket, work);
	if (!result)
		ferry_lanes_submit(comm, call);
	else
		ferry_comm_fail(comm, result, ferry_last_message()); /* the other ranks would wait for it at the first replay */
	for (uint32_t i = 0; result && i < nlanes; i++)
		ferry_ticket_drop(&call->ticket);
	return result;
}

/*
 * Into the lanes' inboxes and into the stream. A host stream may start it at once and rings the lanes then, so they have it
 * before; a device that is polled first says where the lanes are to look. Under comm->lock.
 */
static ferryResult_t call_launch(struct ferry_call *call, ferryStream_t stream, const struct ferry_stream_work *work)
{
	struct ferryComm *comm = call->comm;
	ferry_comm_hold(comm);
	atomic_store(&call->ticket.holders, 2); /* the lanes, and this thread until it has enqueued */
	atomic_store(&call->lanes, 1 + (call->all_left[FERRY_DOWN] > 0));
	atomic_fetch_add(&comm->inflight, 1);
	atomic_fetch_add(&comm->device->inflight, 1);
	bool polled = comm->device->copier->ops->polled;
	if (polled)
		ferry_lanes_announce(comm, call);
	else
		ferry_lanes_submit(comm, call);
	ferryResult_t result = comm->device->ops->enqueue(comm->device, stream, &call->ticket, work);
	if (polled)
		ferry_lanes_submit(comm, call);
	if (result) /* The lanes have it and the other ranks may wait for it: there is no way back. */
		ferry_comm_fail(comm, result, ferry_last_message());
	ferry_ticket_drop(&call->ticket);
	return result;
}

static void fill_transfer(const struct ferry_request *request, const struct ferry_plan *plan, const struct ferry_step *step,
                          struct ferry_transfer *transfer)
{
	const struct ferry_instr *instr = step->instr;
	bool down = instr->opcode == FERRY_H2D;
	const char *base = down ? request->receive : request->send;
	uint64_t offset = instr->user_offset, destination = instr->user_destination;
	transfer->step = step;
	transfer->length = instr->length;
	if (plan->flags & FERRY_PLAN_VARIABLE) {
		size_t element = ferry_type_size(request->type);
		transfer->length = (down ? request->recvcounts : request->sendcounts)[instr->chunk] * element;
		offset = (down ? request->recvdispls : request->senddispls)[instr->chunk] * element;
		destination = request->recvdispls[instr->chunk] * element;
	}
	transfer->nslices = (uint32_t)((transfer->length + plan->slice - 1) / plan->slice);
	transfer->user = transfer->length ? (char *)base + offset : NULL;
	if (instr->opcode == FERRY_COPY)
		transfer->destination = transfer->length ? (char *)request->receive + destination : NULL;
}

/* A copy within the device that waits for nothing goes into the stream where the device wants that. */
static bool stream_copies(const struct ferryComm *comm, const struct ferry_step *step)
{
	return step->instr->opcode == FERRY_COPY && !step->ngates && comm->device->ops->copies_in_stream;
}

static void fill_bank(const struct ferry_request *request, struct ferry_call *call, uint32_t bank)
{
	const struct ferry_plan *plan = call->entry->plan;
	bool variable = plan->flags & FERRY_PLAN_VARIABLE;
	for (enum ferry_direction direction = FERRY_UP; direction <= FERRY_DOWN; direction++) {
		const struct ferry_step *steps = call->entry->steps[direction][bank];
		call->ntransfers[direction] = call->all_left[direction] = 0;
		for (uint32_t i = 0; i < call->entry->nsteps[direction]; i++) {
			struct ferry_transfer *transfer = &call->prepared[bank][direction][call->ntransfers[direction]];
			fill_transfer(request, plan, &steps[i], transfer);
			if (steps[i].instr->opcode == FERRY_COPY && transfer->user == transfer->destination)
				continue; /* in place, or nothing */
			if ((!transfer->nslices && !variable) || stream_copies(call->comm, &steps[i]))
				continue;
			call->ntransfers[direction]++;
			/* Variable: an empty receive still compares its length with the sender's; an empty send is done. */
			call->all_left[direction] += transfer->nslices || (variable && steps[i].instr->opcode == FERRY_H2D);
		}
	}
}

void ferry_call_arm(struct ferry_call *call, uint32_t bank)
{
	call->bank = bank;
	call->noticed = call->submitted = false;
	for (enum ferry_direction direction = FERRY_UP; direction <= FERRY_DOWN; direction++) {
		call->transfers[direction] = call->prepared[bank][direction];
		call->left[direction] = call->all_left[direction];
		call->turn[direction] = 0;
		for (uint32_t i = 0; i < call->ntransfers[direction]; i++) {
			struct ferry_transfer *transfer = &call->transfers[direction][i];
			transfer->issued = transfer->finished = transfer->open = 0;
			transfer->current = false;
		}
	}
}

/* The copies that the stream itself makes. *copies is the caller's to free. */
static ferryResult_t fill_stream_work(const struct ferry_request *request, struct ferry_call *call,
                                      struct ferry_stream_work *work)
{
	const struct ferry_step *steps = call->entry->steps[FERRY_DOWN][0];
	*work = (struct ferry_stream_work){.scalar = call->device_scalar,
	                                   .scalar_bytes = ferry_type_size(request->type),
	                                   .scalar_at = &call->device_scalar,
	                                   .gate = call->comm->gate};
	for (uint32_t i = 0; i < call->entry->nsteps[FERRY_DOWN]; i++) {
		struct ferry_transfer transfer = {0};
		if (!stream_copies(call->comm, &steps[i]))
			continue;
		fill_transfer(request, call->entry->plan, &steps[i], &transfer);
		if (!transfer.length || transfer.user == transfer.destination)
			continue;
		struct ferry_local_copy *grown = realloc(work->copies, (work->ncopies + 1) * sizeof *grown);
		if (!grown) {
			free(work->copies);
			return ferry_fail(ferrySystemError, "no memory for %u copies", work->ncopies + 1);
		}
		work->copies = grown;
		grown[work->ncopies++] = (struct ferry_local_copy){transfer.destination, transfer.user, transfer.length};
	}
	return ferrySuccess;
}

struct ferry_redop ferry_request_factor(const struct ferry_request *request, bool locked)
{
	struct ferryComm *comm = request->comm;
	int index = (int)request->op - (int)ferryNumOps;
	struct ferry_redop factor = {0};
	if (!ferry_collective_reduces(request->collective) || index < 0)
		return factor;
	if (!locked)
		pthread_mutex_lock(&comm->lock);
	factor = comm->redops[index];
	if (!locked)
		pthread_mutex_unlock(&comm->lock);
	return factor;
}

/* Scalars of premulsum: a value given at creation, or device memory read when the call starts. */
static void fill_scalar(const struct ferry_request *request, struct ferry_call *call)
{
	struct ferry_redop factor = request->kept ? request->factor : ferry_request_factor(request, true);
	call->scalar = factor.scalar;
	call->device_scalar = factor.device_scalar;
}

static ferryResult_t find_plan(const struct ferry_request *request, struct ferry_plan_entry **entry,
                               enum ferry_collective *collective)
{
	struct ferryComm *comm = request->comm;
	struct ferry_plan_key key = {.collective = request->collective, .type = request->type, .root = (uint32_t)request->root};
	if (request->program) {
		ferryResult_t result = ferry_user_programs_find(&comm->programs, &comm->topology, request->program,
		                                                &key.program);
		if (result)
			return result;
		if (key.program->collective != request->collective)
			return ferry_fail(ferryProgramError, "the program is for %s", ferry_collective_name(key.program->collective));
	}
	*collective = key.collective;
	key.count = key.collective == FERRY_ALLTOALLV ? 0 : request->count;
	if (!ferry_collective_has_root(key.collective))
		key.root = 0;
	key.redop = !ferry_collective_reduces(key.collective) ? ferrySum : request->op < ferryNumOps ? request->op : ferryNumOps;
	if (!key.program)
		key.program = ferry_user_programs_replacement(&comm->programs, &comm->topology, key.collective,
		                                              key.root, key.count * ferry_type_size(key.type));
	return ferry_comm_plan(comm, &key, entry);
}

static ferryResult_t launch_locked(const struct ferry_request *request)
{
	struct ferryComm *comm = request->comm;
	struct ferry_plan_entry *entry;
	struct ferry_stream_work work;
	enum ferry_collective collective = request->collective;
	bool captures;
	ferryResult_t result = comm->device->ops->check_stream(comm->device, request->stream, &captures);
	if (!result)
		result = find_plan(request, &entry, &collective);
	if (result)
		return result;
	if (captures && atomic_load_explicit(&comm->fixed, memory_order_relaxed) == UINT64_MAX) {
		comm->fixed_alone = comm->made_alone;
		atomic_store_explicit(&comm->fixed, comm->seq, memory_order_release);
	}
	uint64_t made = comm->seq + 1;
	bool fixed = made <= atomic_load_explicit(&comm->fixed, memory_order_relaxed);
	struct ferry_call *call = call_new(comm, entry->nsteps[FERRY_UP], entry->nsteps[FERRY_DOWN],
	                                   fixed ? 1u << made % FERRY_BANKS : (1u << FERRY_BANKS) - 1);
	if (!call) {
		ferry_plan_cache_give_back(&comm->plans, entry);
		return ferry_fail(ferrySystemError, "no memory for a call");
	}
	call->entry = entry;
	call->count = entry->key.count;
	call->root = entry->key.root;
	call->shape = (uint32_t)collective | (uint32_t)request->type << 8 | (uint32_t)entry->key.redop << 16;
	fill_scalar(request, call);
	for (uint32_t bank = 0; bank < FERRY_BANKS; bank++)
		if (call->prepared[bank][0])
			fill_bank(request, call, bank);
	if ((result = fill_stream_work(request, call, &work))) {
		call_free(call);
		return result;
	}
	bool alone = entry->plan->flags & FERRY_PLAN_ALONE;
	comm->seq = made;
	if (fixed) {
		call->after = alone || comm->made_alone ? made - 1 : 0;
		ferry_call_arm(call, made % FERRY_BANKS);
		atomic_store_explicit(&call->seq, made, memory_order_relaxed);
		atomic_store_explicit(&entry->last_seq, made, memory_order_relaxed);
	} else {
		call->name = made;
	}
	comm->made_alone = alone;
	result = captures ? call_capture(call, request->stream, &work) : call_launch(call, request->stream, &work);
	free(work.copies);
	return result;
}

ferryResult_t ferry_launch(const struct ferry_request *request)
{
	if (request->collective == FERRY_SENDRECV)
		return ferry_launch_pairs(request, 1);
	pthread_mutex_lock(&request->comm->lock);
	ferryResult_t result = launch_locked(request);
	pthread_mutex_unlock(&request->comm->lock);
	return result;
}

static void fill_pair(struct ferryComm *comm, const struct ferry_request *request, struct ferry_transfer *transfer)
{
	uint32_t peer = (uint32_t)request->root;
	uint32_t source = request->direction == FERRY_UP ? (uint32_t)comm->rank : peer;
	transfer->peer = peer;
	transfer->user = request->direction == FERRY_UP ? (char *)request->send : request->receive;
	transfer->length = request->count * ferry_type_size(request->type);
	transfer->type = (uint32_t)request->type;
	transfer->slice = ferry_pair_slice(comm->shared.arenas[comm->shared.rank_domain[source]].pair_slot_bytes, transfer->length);
	transfer->nslices = (uint32_t)((transfer->length + transfer->slice - 1) / transfer->slice);
	if (!transfer->nslices)
		transfer->nslices = 1; /* an empty message is a message too */
	transfer->message = ++comm->messages[request->direction][peer];
}

ferryResult_t ferry_launch_pairs(const struct ferry_request *requests, uint32_t nrequests)
{
	struct ferryComm *comm = requests[0].comm;
	struct ferry_call *call = call_new(comm, nrequests, nrequests, 1);
	struct ferry_stream_work nothing = {.gate = comm->gate};
	if (!call)
		return ferry_fail(ferrySystemError, "no memory for %u sends and receives", nrequests);
	pthread_mutex_lock(&comm->lock);
	call->point_to_point = true;
	for (uint32_t i = 0; i < nrequests; i++) {
		enum ferry_direction direction = requests[i].direction;
		fill_pair(comm, &requests[i], &call->prepared[0][direction][call->ntransfers[direction]++]);
		call->all_left[direction]++;
	}
	ferry_call_arm(call, 0);
	ferryResult_t result = call_launch(call, requests[0].stream, &nothing);
	pthread_mutex_unlock(&comm->lock);
	return result;
}
