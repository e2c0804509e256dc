/* SPDX-License-Identifier: Apache-2.0 */
#include "router/engine/call_decoder.h"

#include "ipc/collective.h"
#include "ipc/error.h"
#include "ipc/rankset.h"
#include "router/engine/lanes.h"
#include "router/engine/order.h"
#include "router/engine/pair.h"

#include <stdlib.h>
#include <string.h>

#define MOST_MESSAGES 65536u /* in one group */
#define MOST_CALLS 32768u    /* of a rank under way; captured ones too */
#define RECORDS_AT_ONCE 64u

static ferryResult_t no_memory(void)
{
	return ferry_fail(ferrySystemError, "no memory for a call");
}

/* ---- collectives ---- */

static ferryResult_t take_buffer(struct ferry_mapped_call *mapped, const struct ferry_buffer_name *name, uint64_t bytes,
                                 char **address)
{
	*address = NULL;
	if (!bytes)
		return ferrySuccess;
	ferryResult_t result = ferry_imports_take(mapped->remote_rank->imports, name, bytes, NULL, address,
	                                          &mapped->imports[mapped->nimports]);
	mapped->nimports += !result;
	return result;
}

struct parts {
	uint64_t send_lengths[FERRY_MAX_RANKS], send_offsets[FERRY_MAX_RANKS], receive_lengths[FERRY_MAX_RANKS],
	        receive_offsets[FERRY_MAX_RANKS];
};

/* Copies the parts of an alltoallv, and finds how far they reach. */
static ferryResult_t read_parts(const struct ferry_submission *head, const void *behind, uint32_t rank,
                                struct parts *parts, uint64_t reach[2])
{
	const struct ferry_call_decoder_part *from = behind;
	reach[FERRY_DIR_D2H] = reach[FERRY_DIR_H2D] = 0;
	for (uint32_t peer = 0; peer < head->nparts; peer++) {
		uint64_t send_end, receive_end;
		if (__builtin_add_overflow(from[peer].send_length, from[peer].send_offset, &send_end) ||
		    __builtin_add_overflow(from[peer].receive_length, from[peer].receive_offset, &receive_end) ||
		    send_end >> 56 || receive_end >> 56)
			return ferry_fail(ferryInvalidUsage,
			                  "an alltoallv's part for rank %u: %llu bytes from %llu, %llu bytes to %llu",
			                  peer, (unsigned long long)from[peer].send_length,
			                  (unsigned long long)from[peer].send_offset,
			                  (unsigned long long)from[peer].receive_length,
			                  (unsigned long long)from[peer].receive_offset);
		parts->send_lengths[peer] = from[peer].send_length;
		parts->send_offsets[peer] = from[peer].send_offset;
		parts->receive_lengths[peer] = from[peer].receive_length;
		parts->receive_offsets[peer] = from[peer].receive_offset;
		if (from[peer].send_length && send_end > reach[FERRY_DIR_D2H])
			reach[FERRY_DIR_D2H] = send_end;
		if (from[peer].receive_length && receive_end > reach[FERRY_DIR_H2D])
			reach[FERRY_DIR_H2D] = receive_end;
	}
	/* A COPY moves a rank's own part of the send buffer to its place in the receive buffer. */
	if (rank >= head->nparts || parts->send_lengths[rank] != parts->receive_lengths[rank])
		return ferry_fail(ferryInvalidUsage,
		                  "an alltoallv of rank %u among %u: it sends itself what it does not receive", rank,
		                  head->nparts);
	return ferrySuccess;
}

/* Takes all that can fail, before the lanes see the call. */
static ferryResult_t fill_collective(struct ferry_mapped_call *mapped, const struct ferry_submission *head,
                                     const void *behind)
{
	struct ferry_call *call = &mapped->call;
	struct ferry_steps *steps = call->steps;
	struct ferry_call_buffers buffers = {.stream_copies = true};
	struct parts parts;
	uint64_t reach[2] = {steps->reach[FERRY_DIR_D2H], steps->reach[FERRY_DIR_H2D]};
	if (steps->plan->flags & FERRY_PLAN_VARIABLE) {
		if (head->nparts != steps->plan->nranks)
			return ferry_fail(ferryInvalidUsage, "an alltoallv among %u ranks with %u parts",
			                  steps->plan->nranks, head->nparts);
		ferryResult_t result = read_parts(head, behind, mapped->remote_rank->member.rank, &parts, reach);
		if (result)
			return result;
		buffers.send_lengths = parts.send_lengths;
		buffers.send_offsets = parts.send_offsets;
		buffers.receive_lengths = parts.receive_lengths;
		buffers.receive_offsets = parts.receive_offsets;
	}
	ferryResult_t result = take_buffer(mapped, &head->send, reach[FERRY_DIR_D2H], &buffers.send);
	if (!result)
		result = take_buffer(mapped, &head->receive, reach[FERRY_DIR_H2D], &buffers.receive);
	if (!result)
		result = take_buffer(mapped, &head->memory, FERRY_PARITIES * steps->plan->memory, &buffers.memory);
	if (result)
		return result;
	call->put_target = head->receive;
	call->memory = head->memory;
	ferry_call_fill(call, &buffers);
	return ferrySuccess;
}

static ferryResult_t check_collective(const struct ferry_remote_rank *remote_rank, const struct ferry_submission *head,
                                      const struct ferry_plan *plan)
{
	bool captured = head->flags & FERRY_SUBMIT_CAPTURED;
	if (!head->seq == !head->name || (captured && !head->name))
		return ferry_fail(ferryInvalidUsage, "call %llu, name %llu%s", (unsigned long long)head->seq,
		                  (unsigned long long)head->name, captured ? ", captured" : "");
	if ((head->shape & 0xff) != plan->collective || (head->shape >> 8 & 0xff) != plan->type ||
	    head->root != plan->root || head->count != plan->count)
		return ferry_fail(ferryInvalidUsage, "rank %u submits %s of %llu with the plan of %s of %llu",
		                  remote_rank->member.rank,
		                  ferry_collective_name(head->shape & 0xff) ? ferry_collective_name(head->shape & 0xff)
		                                                            : "no collective",
		                  (unsigned long long)head->count, ferry_collective_name(plan->collective),
		                  (unsigned long long)plan->count);
	return ferrySuccess;
}

/*
 * The number of a call that its stream has reached, so that a router before this one may have begun it; 0: it has none.
 * A named call has its number in the rank's own descriptor, unless that number is of an earlier run, which is over.
 */
static uint64_t number_under_way(const struct ferry_remote_rank *remote_rank, const struct ferry_submission *head)
{
	const struct ferry_rank_line *line = ferry_member_line(&remote_rank->member);
	if (head->kind != FERRY_SUBMIT_COLLECTIVE || head->seq)
		return head->seq;
	for (uint32_t parity = 0; parity < FERRY_PARITIES; parity++) {
		uint64_t seq = atomic_load_explicit(&line->ring[parity].seq, memory_order_acquire);
		if (seq % FERRY_PARITIES == parity &&
		    seq > atomic_load_explicit(&line->finished[parity], memory_order_acquire) &&
		    atomic_load_explicit(&line->ring[parity].name, memory_order_relaxed) == head->name)
			return seq;
	}
	return 0;
}

static void place(struct ferry_remote_rank *remote_rank, const struct ferry_submission *head, struct ferry_call *call)
{
	struct ferry_order *order = &remote_rank->member.order;
	if (head->fixed != atomic_load_explicit(&order->fixed, memory_order_relaxed))
		atomic_store_explicit(&order->fixed, head->fixed, memory_order_release);
	call->name = head->name;
	uint64_t seq = remote_rank->resumes ? number_under_way(remote_rank, head) : head->seq;
	if (!seq)
		return;
	ferry_call_arm(call, seq % FERRY_PARITIES);
	atomic_store_explicit(&call->seq, seq, memory_order_relaxed);
	call->recovery = remote_rank->resumes;
	if (call->recovery)
		ferry_call_resume(call);
	if (call->name)
		call->stage = FERRY_CALL_REACHED;
	atomic_store_explicit(&call->steps->last_seq, seq, memory_order_relaxed);
}

static ferryResult_t take_collective(struct ferry_remote_rank *remote_rank, const struct ferry_submission *head,
                                     const void *behind)
{
	struct ferry_steps *steps;
	struct ferry_job_plan *plan = ferry_job_hold_plan(remote_rank->job, head->plan_hash, remote_rank->member.rank,
	                                                  &steps);
	if (!plan)
		return ferry_fail(ferryInvalidUsage, "rank %u submits a call with plan %016llx, which it has not given",
		                  remote_rank->member.rank, (unsigned long long)head->plan_hash);
	ferryResult_t result = check_collective(remote_rank, head, steps->plan);
	uint32_t parities = head->seq ? 1u << head->seq % FERRY_PARITIES : (1u << FERRY_PARITIES) - 1;
	struct ferry_mapped_call *mapped = result ? NULL
	                                          : ferry_mapped_call_new(remote_rank, head, 3,
	                                                                  steps->nsteps[FERRY_DIR_D2H],
	                                                                  steps->nsteps[FERRY_DIR_H2D], parities);
	if (!mapped) {
		ferry_job_release_plan(plan);
		return result ? result : no_memory();
	}
	struct ferry_call *call = &mapped->call;
	mapped->plan = plan;
	call->steps = steps;
	call->count = head->count;
	call->root = head->root;
	call->shape = head->shape;
	call->scalar = head->scalar;
	if (head->flags & FERRY_SUBMIT_SCALAR)
		call->device_scalar = (const void *)&mapped->flag->scalar;
	if ((result = fill_collective(mapped, head, behind))) {
		ferry_mapped_call_free(mapped);
		return result;
	}
	place(remote_rank, head, call);
	atomic_store_explicit(&call->lanes, 1 + ferry_call_descends(call), memory_order_relaxed);
	ferry_lanes_submit(&remote_rank->member, call);
	return ferrySuccess;
}

/* ---- sends and receives ---- */

static ferryResult_t fill_message(struct ferry_remote_rank *remote_rank, struct ferry_mapped_call *mapped,
                                  const struct ferry_call_decoder_message *message)
{
	const struct ferry_job_arenas *shared = remote_rank->member.shared;
	struct ferry_half *half = &mapped->call.halves[message->direction];
	struct ferry_transfer *transfer = &half->prepared[0][half->ntransfers];
	uint32_t source = message->direction == FERRY_DIR_D2H ? remote_rank->member.rank : message->peer;
	ferryResult_t result = take_buffer(mapped, &message->buffer, message->bytes, &transfer->user);
	if (result)
		return result;
	transfer->peer = message->peer;
	transfer->length = message->bytes;
	transfer->type = message->type;
	ferry_pair_cut(transfer, message->puts, shared->arenas[shared->rank_domain[source]].pair_slot_bytes);
	transfer->put_target = message->buffer;
	transfer->message = message->message;
	half->ntransfers++;
	half->all++;
	return ferrySuccess;
}

static void find_last(struct ferry_half *half)
{
	uint64_t seen = 0;
	for (uint32_t i = half->ntransfers; i-- > 0; seen |= 1ull << half->prepared[0][i].peer)
		half->prepared[0][i].last = !(seen >> half->prepared[0][i].peer & 1);
}

/*
 * Numbers the messages of a named call under way again. Messages with a peer keep their numbers if the last turn with
 * that peer was of this call; else no rank has seen a number of theirs. passed: bit r: all messages with rank r are
 * over and need no number.
 */
static void number_again(struct ferry_remote_rank *remote_rank, struct ferry_call *call, enum ferry_direction direction,
                         uint64_t passed)
{
	struct ferry_half *half = &call->halves[direction];
	uint64_t first[FERRY_MAX_RANKS] = {0}, next[FERRY_MAX_RANKS];
	for (uint32_t peer = 0; peer < remote_rank->member.shared->nranks; peer++)
		next[peer] = remote_rank->turns[direction][peer].call == call->ops->run(call)
		                     ? remote_rank->turns[direction][peer].first
		                     : 0;
	for (uint32_t i = 0; i < half->ntransfers; i++) {
		struct ferry_transfer *transfer = &half->transfers[i];
		uint32_t peer = transfer->peer;
		if (passed >> peer & 1)
			continue;
		if (!next[peer]) {
			ferry_order_number_message(&remote_rank->member, direction, transfer, first);
			continue;
		}
		transfer->first = remote_rank->turns[direction][peer].first;
		transfer->message = next[peer]++;
	}
}

/* After another router: marks as done the messages before the one that has its turn, and the slices of that one. */
static void resume_messages(const struct ferry_remote_rank *remote_rank, struct ferry_half *half,
                            enum ferry_direction direction, uint64_t passed)
{
	for (uint32_t i = 0; i < half->ntransfers; i++) {
		struct ferry_transfer *transfer = &half->transfers[i];
		uint64_t turn = remote_rank->turns[direction][transfer->peer].message;
		uint64_t slices = transfer->message < turn || passed >> transfer->peer & 1 ? transfer->nslices
		                  : transfer->message > turn                               ? 0
		                                             : remote_rank->turns[direction][transfer->peer].slices;
		transfer->issued = transfer->finished =
		        slices < transfer->nslices ? (uint32_t)slices : transfer->nslices;
		half->left -= transfer->finished == transfer->nslices;
	}
}

/* Where another router has served the job: the call goes on where that router was. */
static void place_messages(struct ferry_remote_rank *remote_rank, const struct ferry_submission *head,
                           struct ferry_call *call)
{
	bool named = head->name;
	call->name = head->name;
	if (!remote_rank->recovery || (named && !remote_rank->resumes))
		return;
	for (enum ferry_direction direction = FERRY_DIR_D2H; direction <= FERRY_DIR_H2D; direction++) {
		uint64_t passed = named ? atomic_load_explicit(&remote_rank->flags[head->flag].passed[direction],
		                                               memory_order_acquire)
		                        : 0;
		if (named)
			number_again(remote_rank, call, direction, passed);
		resume_messages(remote_rank, &call->halves[direction], direction, passed);
	}
	if (!named)
		return;
	call->recovery = true;
	call->stage = FERRY_CALL_REACHED;
	atomic_store_explicit(&call->seq, ++remote_rank->member.order.runs, memory_order_relaxed);
}

static ferryResult_t make_messages(struct ferry_remote_rank *remote_rank, const struct ferry_submission *head)
{
	uint32_t n = remote_rank->nmessages;
	struct ferry_mapped_call *mapped = ferry_mapped_call_new(remote_rank, head, n, n, n, 1);
	if (!mapped)
		return no_memory();
	for (uint32_t i = 0; i < n; i++) {
		ferryResult_t result = fill_message(remote_rank, mapped, &remote_rank->messages[i]);
		if (result) {
			ferry_mapped_call_free(mapped);
			return result;
		}
	}
	for (enum ferry_direction direction = FERRY_DIR_D2H; direction <= FERRY_DIR_H2D; direction++)
		find_last(&mapped->call.halves[direction]);
	ferry_call_arm(&mapped->call, 0);
	place_messages(remote_rank, head, &mapped->call);
	atomic_store_explicit(&mapped->call.lanes, 1 + ferry_call_descends(&mapped->call), memory_order_relaxed);
	ferry_lanes_submit(&remote_rank->member, &mapped->call);
	return ferrySuccess;
}

static ferryResult_t check_message(const struct ferry_remote_rank *remote_rank,
                                   const struct ferry_call_decoder_message *message)
{
	if (message->peer < remote_rank->member.shared->nranks && message->direction <= FERRY_DIR_H2D &&
	    message->puts <= 1 && !(message->bytes >> 56) && ferry_type_size(message->type))
		return ferrySuccess;
	return ferry_fail(ferryInvalidUsage, "a message of %llu bytes of type %u, direction %u, with rank %u of %u",
	                  (unsigned long long)message->bytes, message->type, message->direction, message->peer,
	                  remote_rank->member.shared->nranks);
}

static ferryResult_t take_messages(struct ferry_remote_rank *remote_rank, const struct ferry_submission *head,
                                   const void *behind)
{
	const struct ferry_call_decoder_message *messages = behind;
	bool captured = head->flags & FERRY_SUBMIT_CAPTURED;
	if (!head->nparts || remote_rank->nmessages + head->nparts > MOST_MESSAGES || (captured && !head->name))
		return ferry_fail(ferryInvalidUsage, "a group of %u messages, %u at most%s",
		                  remote_rank->nmessages + head->nparts, MOST_MESSAGES, captured ? ", captured" : "");
	for (uint32_t i = 0; i < head->nparts; i++) {
		ferryResult_t result = check_message(remote_rank, &messages[i]);
		if (result)
			return result;
	}
	void *grown = realloc(remote_rank->messages, (remote_rank->nmessages + head->nparts) * sizeof *messages);
	if (!grown)
		return no_memory();
	remote_rank->messages = grown;
	memcpy(remote_rank->messages + remote_rank->nmessages, messages, head->nparts * sizeof *messages);
	remote_rank->nmessages += head->nparts;
	if (head->flags & FERRY_SUBMIT_MORE)
		return ferrySuccess;
	ferryResult_t result = make_messages(remote_rank, head);
	remote_rank->nmessages = 0;
	return result;
}

/* ---- the ring ---- */

static ferryResult_t take_record(struct ferry_remote_rank *remote_rank, const struct ferry_submission *head)
{
	bool messages = head->kind == FERRY_SUBMIT_MESSAGES;
	size_t part = messages ? sizeof(struct ferry_call_decoder_message) : sizeof(struct ferry_call_decoder_part);
	if (head->flag >= FERRY_STREAM_FLAGS || head->number != remote_rank->number + 1 ||
	    head->kind < FERRY_SUBMIT_COLLECTIVE || head->kind > FERRY_SUBMIT_MESSAGES ||
	    head->nparts > (head->bytes - sizeof *head) / part ||
	    (!messages && (remote_rank->nmessages || head->nparts > FERRY_MAX_RANKS)))
		return ferry_fail(ferryInvalidUsage,
		                  "submission %llu after %llu: kind %u, word %u, %u parts in %u bytes",
		                  (unsigned long long)head->number, (unsigned long long)remote_rank->number, head->kind,
		                  head->flag, head->nparts, head->bytes);
	remote_rank->number = head->number;
	return messages ? take_messages(remote_rank, head, head + 1) : take_collective(remote_rank, head, head + 1);
}

/* Whether the rank may have more calls. If not, its records wait in its ring, as the lane serves other jobs, too. */
static bool has_room(const struct ferry_remote_rank *remote_rank)
{
	return atomic_load_explicit(&remote_rank->calls, memory_order_relaxed) < MOST_CALLS;
}

/* Fails the job, once: the rest of what the rank submits is taken in vain. */
static void refuse(struct ferry_remote_rank *remote_rank)
{
	if (!remote_rank->refused)
		ferry_job_fail(remote_rank->job, ferryInvalidUsage, ferry_last_message());
	remote_rank->refused = true;
}

/*
 * Takes the record as a call without transfers, so that the stream that comes to it goes on though the job has failed.
 * lost: the job has not failed; it fails once the stream comes.
 */
static void take_in_vain(struct ferry_remote_rank *remote_rank, const struct ferry_submission *head, bool lost)
{
	if (head->flag >= FERRY_STREAM_FLAGS || (head->flags & FERRY_SUBMIT_MORE))
		return;
	struct ferry_mapped_call *mapped = ferry_mapped_call_new(remote_rank, head, 0, 0, 0, 1);
	if (!mapped)
		return;
	ferry_call_arm(&mapped->call, 0);
	mapped->lost = lost;
	mapped->call.name = mapped->call.captured;
	atomic_store_explicit(&mapped->call.lanes, 1, memory_order_relaxed);
	ferry_lanes_submit(&remote_rank->member, &mapped->call);
}

/* Publishes the end of a call, or of a captured call's run, of which only that was missing. */
static void complete(struct ferry_remote_rank *remote_rank, const struct ferry_submission *head)
{
	uint64_t seq = head->kind == FERRY_SUBMIT_COLLECTIVE ? number_under_way(remote_rank, head) : 0;
	_Atomic uint64_t *finished = &ferry_member_line(&remote_rank->member)->finished[seq % FERRY_PARITIES];
	if (atomic_load(finished) < seq)
		atomic_store_explicit(finished, seq, memory_order_release);
	ferry_stream_flag_pass(&remote_rank->flags[head->flag], head->turn);
	ferry_wake(remote_rank->member.shared, ferry_rankset_all(remote_rank->member.shared->nranks), 0, 0);
}

/* Skips numbers before this record: those submissions are over, or no graph has them any more. */
static ferryResult_t pass_over(struct ferry_remote_rank *remote_rank, const struct ferry_submission *head)
{
	if (head->number <= remote_rank->number || head->number > remote_rank->recovery->number)
		return ferry_fail(ferryInvalidUsage, "submission %llu is handed over after %llu, of %llu",
		                  (unsigned long long)head->number, (unsigned long long)remote_rank->number,
		                  (unsigned long long)remote_rank->recovery->number);
	remote_rank->number = head->number - 1;
	return ferrySuccess;
}

/* A record that the router before this one had taken. */
static ferryResult_t take_again(struct ferry_remote_rank *remote_rank, struct ferry_submission *head)
{
	enum ferry_recovery_state state = FERRY_RECOVERY_ANEW;
	ferryResult_t result = pass_over(remote_rank, head);
	if (result)
		return result;
	if (head->flag < FERRY_STREAM_FLAGS && !(head->flags & FERRY_SUBMIT_MORE)) {
		head->turn = ferry_recovery_turn(remote_rank->flags, head);
		state = ferry_recovery_judge(&remote_rank->flags[head->flag], head->turn);
	}
	if (state == FERRY_RECOVERY_COMPLETE)
		complete(remote_rank, head);
	if (state == FERRY_RECOVERY_COMPLETE && head->flags & FERRY_SUBMIT_CAPTURED) {
		head->turn++; /* it may be replayed again */
	} else if (state == FERRY_RECOVERY_COMPLETE || state == FERRY_RECOVERY_OVER) {
		remote_rank->number = head->number;
		remote_rank->nmessages = 0;
		ferry_remote_rank_count_ended(remote_rank);
		return ferrySuccess;
	}
	remote_rank->resumes = state == FERRY_RECOVERY_REACHED;
	result = take_record(remote_rank, head);
	remote_rank->resumes = false;
	return result;
}

/* Takes the next record. *any: there was one. After an error the place of the next record is unknown. */
static ferryResult_t take_next(struct ferry_remote_rank *remote_rank, bool *any)
{
	_Alignas(64) char record[FERRY_SUBMISSION_MOST];
	struct ferry_submission *head = (struct ferry_submission *)record;
	ferryResult_t result = ferrySuccess, taken;
	bool lost = false;
	if (remote_rank->recovery && ferry_recovery_take(remote_rank->recovery, record)) {
		*any = true;
		lost = head->flags & FERRY_SUBMIT_CAPTURED;
		taken = take_again(remote_rank, head);
	} else {
		if (remote_rank->recovery)
			remote_rank->number = remote_rank->recovery->number;
		ferry_recovery_free(remote_rank->recovery);
		remote_rank->recovery = NULL;
		result = ferry_ring_take(remote_rank->ring, &remote_rank->taken, record, any);
		taken = !result && *any ? take_record(remote_rank, head) : ferrySuccess;
	}
	if (taken) {
		if (!lost)
			refuse(remote_rank);
		take_in_vain(remote_rank, head, lost);
	}
	return result;
}

/* The calls hold the imports that they name from here on: the mapper need not wait for these submissions any more. */
bool ferry_call_decoder_take(struct ferry_member *member)
{
	struct ferry_remote_rank *remote_rank = ferry_remote_rank_of(member);
	bool found = false, any = true;
	ferryResult_t result = ferrySuccess;
	if (remote_rank->broken || (!remote_rank->recovery && !ferry_ring_any(remote_rank->ring, remote_rank->taken)) ||
	    !has_room(remote_rank))
		return false;
	for (uint32_t i = 0; i < RECORDS_AT_ONCE && !result && any && has_room(remote_rank); i++) {
		result = take_next(remote_rank, &any);
		found |= any;
	}
	ferry_imports_ended(remote_rank->imports, remote_rank->number);
	if (found)
		ferry_remote_rank_listed(remote_rank, remote_rank->number);
	ferry_doorbell_ring(&ferry_member_line(&remote_rank->member)->app); /* it may wait for room in the ring */
	if (result) {
		remote_rank->broken = true; /* the place of its next record is unknown */
		refuse(remote_rank);
	}
	return found;
}
