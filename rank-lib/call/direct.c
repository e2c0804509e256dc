/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/call/direct.h"

#include "ipc/environment.h"
#include "router/engine/pair.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SHORT_BYTES (1u << 20)
#define SHORT_SLICE (64u << 10)

/* ---- the member ---- */

static struct ferry_direct *direct_of(struct ferry_member *member)
{
	return (struct ferry_direct *)((char *)member - offsetof(struct ferry_direct, member));
}

static void member_fail(struct ferry_member *member, ferryResult_t code, const char *message)
{
	ferry_rank_fail(direct_of(member)->rank, code, message);
}

static bool member_failed(struct ferry_member *member)
{
	return ferry_rank_failed(direct_of(member)->rank);
}

static ferryResult_t member_error(struct ferry_member *member, const char **message)
{
	*message = direct_of(member)->rank->error_message;
	return direct_of(member)->rank->error;
}

static void member_check(struct ferry_member *member)
{
	ferry_rank_check_sockets(direct_of(member)->rank);
}

static struct ferry_timeout member_timeout(struct ferry_member *member)
{
	return direct_of(member)->rank->timeout;
}

static uint32_t member_beside(struct ferry_member *member)
{
	struct ferry_direct *direct = direct_of(member);
	uint32_t all = atomic_load_explicit(&direct->device->inflight, memory_order_relaxed);
	uint32_t own = atomic_load_explicit(&direct->inflight, memory_order_relaxed);
	return all > own ? all - own : 0; /* the two counters change one after the other */
}

/* Another rank has woken the lane because it waits for messages that a caller of this rank has left. */
static bool member_take(struct ferry_member *member)
{
	struct ferry_direct *direct = direct_of(member);
	return atomic_load_explicit(&ferry_member_line(member)->left_messages, memory_order_acquire) &&
	       direct->settle && direct->settle(direct);
}

/* Memory of a process of the same user, at the address that this process has published. */
static ferryResult_t member_hold_target(struct ferry_member *member, uint32_t peer,
                                        const struct ferry_buffer_name *name, uint64_t bytes,
                                        struct ferry_put_target *put_target)
{
	(void)bytes;
	if (name->index != FERRY_PUT_TARGET_DIRECT)
		return ferry_fail(ferryInvalidUsage, "rank %u puts to rank %u, whose memory its device does not reach",
		                  member->rank, peer);
	put_target->address = (char *)(uintptr_t)name->offset;
	put_target->process = name->generation == (uint64_t)getpid() ? 0 : (int64_t)name->generation;
	return ferrySuccess;
}

static bool member_enter(struct ferry_member *member, uint32_t peer)
{
	return ferry_put_gate_enter(direct_of(member)->rank, peer);
}

static void member_leave(struct ferry_member *member, uint32_t peer)
{
	ferry_put_gate_leave(direct_of(member)->rank, peer);
}

static bool member_shut(struct ferry_member *member, enum ferry_direction direction)
{
	return ferry_put_gate_shut(&direct_of(member)->put_gates[direction], direct_of(member)->rank);
}

static const struct ferry_member_ops member_ops = {.fail = member_fail,
                                                   .hold_target = member_hold_target,
                                                   .enter = member_enter,
                                                   .leave = member_leave,
                                                   .shut = member_shut,
                                                   .failed = member_failed,
                                                   .error = member_error,
                                                   .check = member_check,
                                                   .timeout = member_timeout,
                                                   .beside = member_beside,
                                                   .take = member_take};

/* ---- open, close ---- */

ferryResult_t ferry_direct_open(struct ferry_direct *direct)
{
	struct ferry_rank_line *line = ferry_rank_line(&direct->rank->shared, (uint32_t)direct->rank->self);
	long spin_us = 0;
	atomic_store_explicit(&direct->member.order.fixed, UINT64_MAX, memory_order_relaxed);
	ferryResult_t result = ferry_env_integer("FERRY_SPIN_US", 0, 1000000, 0, &spin_us);
	if (result)
		return result;
	struct ferry_lanes_options options = {.copier = direct->device->copier,
	                                      .spin_ns = (uint64_t)spin_us * 1000,
	                                      .bells = {&line->d2h, &line->h2d}};
	if ((result = ferry_lanes_open(&direct->lanes, &options)))
		return result;
	direct->member.ops = &member_ops;
	direct->member.shared = &direct->rank->shared;
	direct->member.rank = (uint32_t)direct->rank->self;
	ferry_lanes_lane_rank(&direct->member);
	ferry_lanes_join(&direct->lanes, &direct->member);
	return ferrySuccess;
}

/* The lanes have dropped the remaining calls, which never end: wakes the threads that wait for them. */
static void count_out_dropped(struct ferry_direct *direct)
{
	uint32_t left = atomic_exchange_explicit(&direct->inflight, 0, memory_order_acq_rel);
	if (!left)
		return;
	ferry_futex_wake(&direct->inflight, -1, false);
	atomic_fetch_sub_explicit(&direct->device->inflight, left, memory_order_relaxed);
}

void ferry_direct_close(struct ferry_direct *direct)
{
	if (direct->member.lanes)
		ferry_lanes_leave(&direct->member);
	ferry_lanes_close(&direct->lanes);
	count_out_dropped(direct);
}

void ferry_direct_wait(struct ferry_direct *direct)
{
	uint32_t inflight;
	atomic_fetch_add_explicit(&direct->waiters, 1, memory_order_seq_cst);
	while ((inflight = atomic_load_explicit(&direct->inflight, memory_order_seq_cst)) != 0)
		ferry_futex_wait(&direct->inflight, inflight, 100000, false);
	atomic_fetch_sub_explicit(&direct->waiters, 1, memory_order_relaxed);
}

/* ---- calls ---- */

struct direct_call {
	struct ferry_ticket ticket;     /* shared with the stream */
	struct ferry_call call;         /* the lanes' */
	struct ferry_direct *direct;
	struct ferry_plan_entry *entry; /* with a reference; NULL: point to point */
};

static struct direct_call *call_of(const struct ferry_call *call)
{
	return (struct direct_call *)((char *)call - offsetof(struct direct_call, call));
}

static void call_free(struct direct_call *made)
{
	free(made->call.aside);
	ferry_call_unprepare(&made->call);
	if (made->entry)
		ferry_plan_cache_give_back(made->direct->plans, made->entry);
	free(made);
}

static void released(struct direct_call *made)
{
	struct ferry_holders *holders = made->direct->holders;
	call_free(made);
	ferry_holders_drop(holders);
}

static struct direct_call *call_new(struct ferry_direct *direct, uint32_t ups, uint32_t downs, uint32_t parities)
{
	struct direct_call *made = aligned_alloc(_Alignof(struct direct_call), sizeof *made);
	if (!made)
		return NULL;
	memset(made, 0, sizeof *made);
	if (!ferry_call_prepare(&made->call, ups, downs, parities)) {
		free(made);
		return NULL;
	}
	made->direct = direct;
	made->call.member = &direct->member;
	return made;
}

void ferry_direct_give(struct ferry_direct *direct, const struct ferry_call *call)
{
	atomic_fetch_add_explicit(&direct->inflight, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&direct->device->inflight, 1, memory_order_relaxed);
	if (!call->steps)
		atomic_fetch_add_explicit(&direct->lane_messages, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&ferry_member_line(&direct->member)->lane_calls, 1, memory_order_relaxed);
}

void ferry_direct_finish(struct ferry_direct *direct, const struct ferry_call *call, struct ferry_ticket *ticket,
                         ferryResult_t result, const char *message)
{
	atomic_fetch_sub_explicit(&ferry_member_line(&direct->member)->lane_calls, 1, memory_order_relaxed);
	if (!call->steps)
		atomic_fetch_sub_explicit(&direct->lane_messages, 1, memory_order_release);
	ferry_ticket_finish(ticket, result, message);
	atomic_fetch_sub_explicit(&direct->device->inflight, 1, memory_order_relaxed);
	if (atomic_fetch_sub_explicit(&direct->inflight, 1, memory_order_seq_cst) == 1 &&
	    atomic_load_explicit(&direct->waiters, memory_order_seq_cst))
		ferry_futex_wake(&direct->inflight, -1, false);
}

static bool ticket_started(const struct ferry_call *call)
{
	return ferry_ticket_started(&call_of(call)->ticket);
}

static void ticket_finish(struct ferry_call *call, ferryResult_t result, const char *message)
{
	struct direct_call *made = call_of(call);
	ferry_direct_finish(made->direct, call, &made->ticket, result, message);
}

static bool never_forgotten(const struct ferry_call *call)
{
	(void)call;
	return false;
}

static void ticket_drop(struct ferry_call *call)
{
	ferry_ticket_drop(&call_of(call)->ticket);
}

static const struct ferry_call_ops ticket_ops = {.started = ticket_started,
                                                 .finish = ticket_finish,
                                                 .finish_early = true,
                                                 .forgotten = never_forgotten,
                                                 .release = ticket_drop};

static void ticket_release(struct ferry_ticket *ticket)
{
	released((struct direct_call *)((char *)ticket - offsetof(struct direct_call, ticket)));
}

/* What the H2D lane waits for wakes it. The start of a call need wake it only if that has come already. */
static bool h2d_ready(const struct ferry_call *call)
{
	const struct ferry_half *half = &call->halves[FERRY_DIR_H2D];
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
	struct direct_call *made = (struct direct_call *)((char *)ticket - offsetof(struct direct_call, ticket));
	struct ferry_member *member = &made->direct->member;
	ferry_full_fence(); /* `started` before the counters: a slice published later wakes the lane by itself */
	ferry_doorbell_ring(member->lane_ranks[FERRY_DIR_D2H].bell);
	if (made->call.halves[FERRY_DIR_H2D].ntransfers && h2d_ready(&made->call))
		ferry_doorbell_ring(member->lane_ranks[FERRY_DIR_H2D].bell);
}

/* Gives the call to the lanes, then to the stream, which may start it at once and then rings the lanes. */
static ferryResult_t launch(struct direct_call *made, ferryStream_t stream)
{
	struct ferry_direct *direct = made->direct;
	made->call.ops = &ticket_ops;
	made->ticket.on_start = on_start;
	made->ticket.release = ticket_release;
	/* the lanes, and this thread until it has enqueued */
	atomic_store_explicit(&made->ticket.holders, 2, memory_order_relaxed);
	atomic_store_explicit(&made->call.lanes, 1 + ferry_call_descends(&made->call), memory_order_relaxed);
	ferry_holders_add(direct->holders);
	ferry_direct_give(direct, &made->call);
	ferry_full_fence(); /* ranks that publish from now on ring the lanes */
	ferry_lanes_submit(&direct->member, &made->call);
	ferryResult_t result = direct->device->ops->enqueue_ticket(stream, &made->ticket);
	if (result) /* The lanes have the call, and other ranks may wait for it: it cannot be taken back. */
		ferry_rank_fail(direct->rank, result, ferry_last_message());
	ferry_ticket_drop(&made->ticket);
	return result;
}

/* ---- requests ---- */

/* The name of a buffer in this process, for ranks that put into it. */
static struct ferry_buffer_name put_target_of(const void *buffer)
{
	return (struct ferry_buffer_name){.index = FERRY_PUT_TARGET_DIRECT,
	                                  .generation = (uint64_t)getpid(),
	                                  .offset = (uint64_t)(uintptr_t)buffer};
}

/* Takes the reference to the plan over. NULL: no memory. */
static struct direct_call *collective_new(struct ferry_direct *direct, const struct ferry_collective_call *collective,
                                          const struct ferry_call_buffers *buffers)
{
	struct ferry_steps *steps = &collective->entry->steps;
	uint64_t seq = collective->number.seq;
	struct direct_call *made = call_new(direct, steps->nsteps[FERRY_DIR_D2H], steps->nsteps[FERRY_DIR_H2D],
	                                    seq ? 1u << seq % FERRY_PARITIES : (1u << FERRY_PARITIES) - 1);
	if (!made) {
		ferry_plan_cache_give_back(direct->plans, collective->entry);
		return NULL;
	}
	made->entry = collective->entry;
	struct ferry_call *call = &made->call;
	call->steps = steps;
	call->name = collective->number.name;
	call->count = collective->entry->key.count;
	call->root = collective->entry->key.root;
	call->shape = collective->shape;
	call->scalar = collective->factor.scalar;
	call->device_scalar = collective->factor.device_scalar; /* the lanes read it there */
	call->put_target = put_target_of(buffers->receive);
	struct ferry_call_buffers from = *buffers;
	if (ferry_call_puts_cross(steps, buffers)) {
		call->aside_bytes = steps->reach[FERRY_DIR_D2H];
		call->aside_from = from.send;
		from.aside = call->aside = malloc(call->aside_bytes);
		if (!call->aside) {
			call_free(made); /* gives the plan back */
			return NULL;
		}
	}
	ferry_call_fill(call, &from);
	if (seq) {
		ferry_call_arm(call, seq % FERRY_PARITIES);
		atomic_store_explicit(&call->seq, seq, memory_order_relaxed);
		atomic_store_explicit(&steps->last_seq, seq, memory_order_relaxed);
	}
	return made;
}

ferryResult_t ferry_direct_collective(struct ferry_direct *direct, const struct ferry_collective_call *collective)
{
	const struct ferry_request *request = collective->request;
	struct ferry_request_parts parts;
	struct ferry_call_buffers buffers;
	ferry_request_buffers(request, direct->rank, direct->device, &parts, &buffers);
	struct direct_call *made = collective_new(direct, collective, &buffers);
	if (!made)
		return ferry_fail(ferrySystemError, "no memory for a call");
	return launch(made, collective->stream.stream);
}

/*
 * The longest slice of a message. A short message is cut so that one end copies a slice in while the other end copies
 * the slice before it out. Callers and lanes (short_call.h) cut alike, so that both ends agree.
 */
static uint32_t longest_slice(uint32_t slot_bytes, uint64_t length)
{
	uint32_t most = length <= SHORT_SLICE ? SHORT_SLICE / 2 : length <= SHORT_BYTES ? SHORT_SLICE : slot_bytes;
	return most < slot_bytes ? most : slot_bytes;
}

void ferry_direct_fill_message(const struct ferry_direct *direct, const struct ferry_request *request,
                               const struct ferry_fabrics *fabrics, struct ferry_transfer *transfer)
{
	const struct ferry_job_arenas *shared = &direct->rank->shared;
	uint32_t peer = (uint32_t)request->root;
	uint32_t self = (uint32_t)direct->rank->self;
	uint32_t source = request->direction == FERRY_DIR_D2H ? self : peer;
	uint32_t destination = request->direction == FERRY_DIR_D2H ? peer : self;
	*transfer = (struct ferry_transfer){.peer = peer};
	transfer->user = request->direction == FERRY_DIR_D2H ? (char *)request->send : request->receive;
	transfer->length = request->count * ferry_type_size(request->type);
	transfer->type = (uint32_t)request->type;
	uint32_t slot_bytes = shared->arenas[shared->rank_domain[source]].pair_slot_bytes;
	ferry_pair_cut(transfer, ferry_fabrics_pushes(fabrics, source, destination, transfer->length),
	               longest_slice(slot_bytes, transfer->length));
	if (transfer->puts)
		transfer->put_target = put_target_of(transfer->user);
	transfer->message = ferry_numbering_message(direct->numbers, request->direction, peer);
}

ferryResult_t ferry_direct_pairs(struct ferry_direct *direct, const struct ferry_request *requests,
                                 uint32_t nrequests, ferryStream_t stream, const struct ferry_fabrics *fabrics)
{
	struct direct_call *made = call_new(direct, nrequests, nrequests, 1);
	if (!made)
		return ferry_fail(ferrySystemError, "no memory for %u sends and receives", nrequests);
	for (uint32_t i = 0; i < nrequests; i++) {
		struct ferry_half *half = &made->call.halves[requests[i].direction];
		ferry_direct_fill_message(direct, &requests[i], fabrics, &half->prepared[0][half->ntransfers++]);
		half->all++;
	}
	ferry_call_arm(&made->call, 0);
	made->call.name = direct->numbers->messages_named;
	return launch(made, stream);
}
