/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/direct.h"

#include "ipc/environment.h"
#include "rank-lib/own_copies.h"
#include "router/pair.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* lanes of a device that is polled look that long for a router's slices, and for the next call, then sleep */
#define POLLED_SPIN_US 1000
#define OTHER_CALLS_NS 5000000000ull

/* ---- the member ---- */

static struct ferryComm *comm_of(struct ferry_member *member)
{
	return (struct ferryComm *)((char *)member - offsetof(struct ferryComm, member));
}

static void member_fail(struct ferry_member *member, ferryResult_t code, const char *message)
{
	ferry_comm_fail(comm_of(member), code, message);
}

static bool member_failed(struct ferry_member *member)
{
	return ferry_comm_failed(comm_of(member));
}

static ferryResult_t member_error(struct ferry_member *member, const char **message)
{
	*message = comm_of(member)->error_message;
	return comm_of(member)->error;
}

static void member_check(struct ferry_member *member)
{
	ferry_comm_check_sockets(comm_of(member));
}

static void count_in(struct ferryComm *comm)
{
	atomic_fetch_add_explicit(&comm->inflight, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&comm->device->inflight, 1, memory_order_relaxed);
}

static void member_begun(struct ferry_member *member)
{
	count_in(comm_of(member));
}

static void member_ended(struct ferry_member *member, const struct ferry_call *call)
{
	struct ferryComm *comm = comm_of(member);
	bool waited_for = comm->device->copier->ops->direct_memory_access;
	(void)call;
	if (atomic_fetch_sub_explicit(&comm->device->inflight, 1, memory_order_acq_rel) == 1 && waited_for)
		ferry_futex_wake(&comm->device->inflight, -1, false);
	if (atomic_fetch_sub_explicit(&comm->inflight, 1, memory_order_acq_rel) == 1)
		ferry_futex_wake(&comm->inflight, -1, false);
}

static const struct ferry_member_ops member_ops = {.fail = member_fail,
                                                   .failed = member_failed,
                                                   .error = member_error,
                                                   .check = member_check,
                                                   .begun = member_begun,
                                                   .ended = member_ended};

/* ---- open, close ---- */

ferryResult_t ferry_direct_open(struct ferryComm *comm)
{
	struct ferry_copier *copier = comm->device->copier;
	struct ferry_rank_line *line = ferry_rank_line(&comm->shared, (uint32_t)comm->rank);
	long spin_us = 0;
	int descriptor;
	ferryResult_t result = ferry_env_integer("FERRY_SPIN_US", 0, 1000000, copier->ops->polled ? POLLED_SPIN_US : 0,
	                                         &spin_us);
	if (!result && comm->device->ops->may_copy)
		result = comm->device->ops->may_copy(comm->device);
	if (!result && comm->device->ops->register_words)
		result = ferry_words_open(comm->device, &descriptor);
	for (uint32_t domain = 0; !result && domain < comm->ndomains; domain++) {
		struct ferry_arena *arena = &comm->shared.arenas[domain];
		result = copier->ops->register_memory(copier, arena->header, arena->bytes);
		comm->registered[domain] = !result;
	}
	if (result)
		return result;
	struct ferry_lanes_options options = {.copier = copier,
	                                      .stall_ns = comm->stall_ns,
	                                      .spin_ns = (uint64_t)spin_us * 1000,
	                                      .bells = {&line->d2h, &line->h2d}};
	if ((result = ferry_lanes_open(&comm->lanes, &options)))
		return result;
	comm->member.ops = &member_ops;
	comm->member.shared = &comm->shared;
	comm->member.rank = (uint32_t)comm->rank;
	comm->member.stall_ns = comm->stall_ns;
	ferry_lanes_join(&comm->lanes, &comm->member);
	return ferrySuccess;
}

/*
 * Forgetting memory makes CUDA wait for all work of the process on that device, in a lock that the lanes of other
 * communicators need to get on with theirs. So wait for their calls first, but not for ever: some may wait for what the
 * caller does next.
 */
static void wait_for_other_calls(struct ferry_device *device)
{
	uint64_t until = ferry_now_ns() + OTHER_CALLS_NS;
	uint32_t inflight;
	while (device->copier->ops->direct_memory_access &&
	       (inflight = atomic_load_explicit(&device->inflight, memory_order_acquire)) != 0 &&
	       ferry_now_ns() < until)
		ferry_futex_wait(&device->inflight, inflight, OTHER_CALLS_NS / 1000, false);
}

void ferry_direct_close(struct ferryComm *comm)
{
	struct ferry_copier *copier = comm->device->copier;
	if (comm->member.lanes)
		ferry_lanes_leave(&comm->member);
	ferry_lanes_close(&comm->lanes);
	wait_for_other_calls(comm->device);
	for (uint32_t domain = 0; domain < comm->ndomains; domain++)
		if (comm->registered[domain])
			copier->ops->unregister_memory(copier, comm->shared.arenas[domain].header);
}

/* ---- calls ---- */

struct direct_call {
	struct ferry_ticket ticket; /* host streams: shared with the stream */
	struct ferry_call call;     /* the lanes' */
	struct ferryComm *comm;     /* held */
	struct ferry_plan_entry *entry; /* with a reference; NULL: point to point */
	struct ferry_word *word;    /* streams of GPUs */
	uint32_t turn;
};

static struct direct_call *direct_of(const struct ferry_call *call)
{
	return (struct direct_call *)((char *)call - offsetof(struct direct_call, call));
}

static void call_free(struct direct_call *direct)
{
	ferry_call_unprepare(&direct->call);
	if (direct->entry)
		ferry_plan_cache_give_back(&direct->comm->plans, direct->entry);
	free(direct);
}

static void let_go(struct direct_call *direct)
{
	struct ferryComm *comm = direct->comm;
	call_free(direct);
	ferry_comm_drop(comm);
}

static struct direct_call *call_new(struct ferryComm *comm, uint32_t ups, uint32_t downs, uint32_t banks)
{
	struct direct_call *direct = aligned_alloc(_Alignof(struct direct_call), sizeof *direct);
	if (!direct)
		return NULL;
	memset(direct, 0, sizeof *direct);
	if (!ferry_call_prepare(&direct->call, ups, downs, banks)) {
		free(direct);
		return NULL;
	}
	direct->comm = comm;
	direct->call.member = &comm->member;
	return direct;
}

static void count_call(struct direct_call *direct)
{
	ferry_comm_hold(direct->comm);
	atomic_store_explicit(&direct->call.lanes, 1 + ferry_call_descends(&direct->call), memory_order_relaxed);
	count_in(direct->comm);
}

/* ---- host streams ---- */

static bool ticket_started(const struct ferry_call *call)
{
	return ferry_ticket_started(&direct_of(call)->ticket);
}

static void ticket_finish(struct ferry_call *call, ferryResult_t result, const char *message)
{
	ferry_ticket_finish(&direct_of(call)->ticket, result, message);
}

static bool never_forgotten(const struct ferry_call *call)
{
	(void)call;
	return false;
}

static void ticket_drop(struct ferry_call *call)
{
	ferry_ticket_drop(&direct_of(call)->ticket);
}

static const struct ferry_call_ops ticket_ops = {.started = ticket_started,
                                                 .finish = ticket_finish,
                                                 .finish_early = true,
                                                 .forgotten = never_forgotten,
                                                 .release = ticket_drop};

static void ticket_release(struct ferry_ticket *ticket)
{
	let_go((struct direct_call *)((char *)ticket - offsetof(struct direct_call, ticket)));
}

/* The H2D lane is woken by what it waits for; at the start of a call only if that is there already. */
static bool down_ready(const struct ferry_call *call)
{
	const struct ferry_half *half = &call->halves[FERRY_DOWN];
	for (uint32_t i = 0; i < half->ntransfers; i++) {
		const struct ferry_transfer *transfer = &half->transfers[i];
		if (!transfer->step || transfer->step->instr->opcode == FERRY_COPY ||
		    (call->steps->plan->flags & FERRY_PLAN_VARIABLE) ||
		    ferry_gates_open(transfer->step->gates, transfer->step->ngates, ferry_call_number(call),
		                     transfer->nslices))
			return true;
	}
	return false;
}

static void on_start(struct ferry_ticket *ticket)
{
	struct direct_call *direct = (struct direct_call *)((char *)ticket - offsetof(struct direct_call, ticket));
	struct ferry_member *member = &direct->comm->member;
	ferry_full_fence(); /* `started` before the counters: a slice published later wakes the lane by itself */
	ferry_doorbell_ring(member->seats[FERRY_UP].bell);
	if (direct->call.halves[FERRY_DOWN].ntransfers && down_ready(&direct->call))
		ferry_doorbell_ring(member->seats[FERRY_DOWN].bell);
}

/* Into the lanes' inboxes, then into the stream, which may start it at once, and rings the lanes then. */
static ferryResult_t launch_with_ticket(struct direct_call *direct, ferryStream_t stream)
{
	struct ferryComm *comm = direct->comm;
	direct->call.ops = &ticket_ops;
	direct->ticket.on_start = on_start;
	direct->ticket.release = ticket_release;
	/* the lanes, and this thread until it has enqueued */
	atomic_store_explicit(&direct->ticket.holders, 2, memory_order_relaxed);
	count_call(direct);
	ferry_lanes_submit(&comm->member, &direct->call);
	ferryResult_t result = comm->device->ops->enqueue_ticket(comm->device, stream, &direct->ticket);
	if (result) /* The lanes have it and the other ranks may wait for it: there is no way back. */
		ferry_comm_fail(comm, result, ferry_last_message());
	ferry_ticket_drop(&direct->ticket);
	return result;
}

/* ---- streams of GPUs ---- */

static bool word_started(const struct ferry_call *call)
{
	const struct direct_call *direct = direct_of(call);
	return call->captured ? atomic_load_explicit(&direct->word->word, memory_order_acquire) == 1
	                      : ferry_word_reached(direct->word, direct->turn);
}

static void word_finish(struct ferry_call *call, ferryResult_t result, const char *message)
{
	struct direct_call *direct = direct_of(call);
	(void)result, (void)message; /* a stream of CUDA's goes on: the communicator says why */
	ferry_word_pass(direct->word, direct->turn);
}

static bool word_forgotten(const struct ferry_call *call)
{
	return atomic_load_explicit(&direct_of(call)->word->forgotten, memory_order_acquire);
}

static void word_release(struct ferry_call *call)
{
	uint32_t one = 1; /* else a graph still has it */
	struct direct_call *direct = direct_of(call);
	if (call->captured)
		atomic_compare_exchange_strong_explicit(&direct->word->forgotten, &one, 2, memory_order_acq_rel,
		                                        memory_order_relaxed);
	let_go(direct);
}

static const struct ferry_call_ops word_ops = {
	.started = word_started, .finish = word_finish, .forgotten = word_forgotten, .release = word_release};

/* No graph has the captured call any more. `argument`: its word; the communicator may have gone. */
static void forget(void *argument)
{
	ferry_word_forget((uint32_t)(uintptr_t)argument);
}

/* The lanes and routers take about as long to wake up as the call to get into the stream: they are told first. */
static ferryResult_t launch_with_word(struct direct_call *direct, const struct ferry_request *request,
                                      const struct ferry_stream_state *stream, struct ferry_stream_call *in_stream)
{
	struct ferryComm *comm = direct->comm;
	uint32_t index;
	direct->call.ops = &word_ops;
	direct->call.captured = stream->captures;
	ferryResult_t result = stream->captures
	                               ? ferry_word_for_capture(&comm->words, &index)
	                               : ferry_word_for_stream(&comm->words, stream->id, &index, &direct->turn);
	if (result) {
		call_free(direct);
		return result;
	}
	in_stream->word = direct->word = ferry_word_at(index);
	if (stream->captures) {
		in_stream->forget = forget;
		in_stream->argument = (void *)(uintptr_t)index;
		ferry_comm_hold(comm);
	} else {
		count_call(direct);
		ferry_lanes_announce(&comm->member, &direct->call, comm->made);
	}
	if (in_stream->scalar)
		direct->call.device_scalar = (const void *)&direct->word->scalar;
	result = comm->device->ops->enqueue_word(comm->device, request->stream, in_stream);
	if (result) /* the other ranks would wait for it */
		ferry_comm_fail(comm, result, ferry_last_message());
	ferry_lanes_submit(&comm->member, &direct->call);
	return result;
}

/* ---- what is asked for ---- */

ferryResult_t ferry_direct_collective(const struct ferry_collective_call *collective)
{
	const struct ferry_request *request = collective->request;
	struct ferryComm *comm = request->comm;
	struct ferry_steps *steps = &collective->entry->steps;
	struct ferry_request_parts parts;
	struct ferry_call_buffers buffers;
	struct ferry_stream_call in_stream = {.scalar = collective->factor.device_scalar,
	                                      .scalar_bytes = ferry_type_size(request->type)};
	struct direct_call *direct = call_new(comm, steps->nsteps[FERRY_UP], steps->nsteps[FERRY_DOWN],
	                                      collective->seq ? 1u << collective->seq % FERRY_BANKS
	                                                      : (1u << FERRY_BANKS) - 1);
	if (!direct) {
		ferry_plan_cache_give_back(&comm->plans, collective->entry);
		return ferry_fail(ferrySystemError, "no memory for a call");
	}
	direct->entry = collective->entry;
	struct ferry_call *call = &direct->call;
	call->steps = steps;
	call->name = collective->name;
	call->after = collective->after;
	call->count = collective->entry->key.count;
	call->root = collective->entry->key.root;
	call->shape = collective->shape;
	call->scalar = collective->factor.scalar;
	call->device_scalar = collective->factor.device_scalar; /* host devices: the lanes read it there */
	ferry_request_buffers(request, &parts, &buffers);
	ferry_call_fill(call, &buffers);
	if (collective->seq) {
		ferry_call_arm(call, collective->seq % FERRY_BANKS);
		atomic_store_explicit(&call->seq, collective->seq, memory_order_relaxed);
		atomic_store_explicit(&steps->last_seq, collective->seq, memory_order_relaxed);
	}
	if (comm->device->ops->enqueue_ticket)
		return launch_with_ticket(direct, request->stream);
	ferryResult_t result = ferry_own_copies(steps, &buffers, &in_stream);
	if (result) {
		call_free(direct);
		return result;
	}
	result = launch_with_word(direct, request, &collective->stream, &in_stream);
	free(in_stream.copies);
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
	transfer->slice = ferry_pair_slice(comm->shared.arenas[comm->shared.rank_domain[source]].pair_slot_bytes,
	                                   transfer->length);
	transfer->nslices = (uint32_t)((transfer->length + transfer->slice - 1) / transfer->slice);
	if (!transfer->nslices)
		transfer->nslices = 1; /* an empty message is a message too */
	transfer->message = ferry_message_number(comm, request->direction, peer);
}

ferryResult_t ferry_direct_pairs(const struct ferry_request *requests, uint32_t nrequests,
                                 const struct ferry_stream_state *stream)
{
	struct ferryComm *comm = requests[0].comm;
	struct ferry_stream_call in_stream = {0};
	struct direct_call *direct = call_new(comm, nrequests, nrequests, 1);
	if (!direct)
		return ferry_fail(ferrySystemError, "no memory for %u sends and receives", nrequests);
	for (uint32_t i = 0; i < nrequests; i++) {
		struct ferry_half *half = &direct->call.halves[requests[i].direction];
		fill_pair(comm, &requests[i], &half->prepared[0][half->ntransfers++]);
		half->all++;
	}
	ferry_call_arm(&direct->call, 0);
	direct->call.name = comm->messages_named;
	if (comm->device->ops->enqueue_ticket)
		return launch_with_ticket(direct, requests[0].stream);
	return launch_with_word(direct, &requests[0], stream, &in_stream);
}
