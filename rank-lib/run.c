/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A run of a call, from "the stream has reached it" to "the stream may go on": its number, its bank, the descriptor that tells
 * the others, the comparison with theirs, and its end. The D2H lane does all but the end, which whoever finishes last does.
 */
#include "ipc/rankset.h"
#include "rank-lib/lane.h"

#include <string.h>

static bool all_finished(struct ferryComm *comm, uint32_t bank, uint64_t seq)
{
	for (int rank = 0; rank < comm->nranks; rank++)
		if (atomic_load_explicit(&ferry_rank_line(&comm->shared, (uint32_t)rank)->finished[bank], memory_order_acquire) < seq)
			return false;
	return true;
}

/* Whether call `seq`, and with it all before it in its bank, is over on all ranks and in all routers that had work. */
static bool is_over(struct ferryComm *comm, uint64_t seq)
{
	uint32_t bank = seq % FERRY_BANKS;
	if (!all_finished(comm, bank, seq))
		return false;
	for (uint32_t domain = 0; domain < comm->ndomains; domain++) {
		uint64_t last = comm->router_seq[bank][domain]; /* if later than `seq`: it began because `seq` was over */
		if (last <= seq && atomic_load_explicit(&comm->shared.arenas[domain].header->finished[bank], memory_order_acquire) < last)
			return false;
	}
	return true;
}

/* Whether the bank of call `seq` is free, and so is the staging where it, or the call before it, must be alone. */
bool ferry_run_may_begin(struct ferryComm *comm, uint64_t seq, uint64_t after)
{
	return (seq <= FERRY_BANKS || is_over(comm, seq - FERRY_BANKS)) && (!after || is_over(comm, after));
}

/*
 * Rank 0: the next number. The others: the number under which rank 0 has named this call; 0: not yet. And the call's `after`: the
 * last one begun, if one of the two must be alone. Rank 0 waits for that; the others find it over, if it is the call before this.
 */
static uint64_t number_of(const struct ferry_lane *lane, struct ferry_call *call)
{
	struct ferryComm *comm = lane->comm;
	uint64_t fixed = atomic_load_explicit(&comm->fixed, memory_order_acquire), last = fixed;
	for (uint32_t bank = 0; bank < FERRY_BANKS; bank++)
		last = lane->last_seq[bank] > last ? lane->last_seq[bank] : last;
	bool alone = last == fixed ? comm->fixed_alone : lane->named_alone;
	call->after = alone || call->entry->plan->flags & FERRY_PLAN_ALONE ? last : 0;
	if (comm->rank == 0)
		return last + 1;
	for (uint32_t bank = 0; bank < FERRY_BANKS; bank++) {
		const struct ferry_descriptor *first = &ferry_rank_line(&comm->shared, 0)->ring[bank];
		uint64_t seq = atomic_load_explicit(&first->seq, memory_order_acquire);
		/* It stays until this rank, too, has finished that call. */
		if (seq > lane->last_seq[bank] && atomic_load_explicit(&first->name, memory_order_relaxed) == call->name)
			return seq;
	}
	return 0;
}

/* The stream has reached a call whose number rank 0 decides: true once it has one, and its bank is free. */
bool ferry_run_begin(struct ferry_lane *lane, struct ferry_call *call)
{
	struct ferryComm *comm = lane->comm;
	uint64_t seq = number_of(lane, call);
	if (!seq || !ferry_run_may_begin(comm, seq, call->after))
		return false;
	lane->named_alone = call->entry->plan->flags & FERRY_PLAN_ALONE;
	ferry_call_arm(call, seq % FERRY_BANKS);
	lane->last_seq[call->bank] = seq;
	atomic_store_explicit(&call->entry->last_seq, seq, memory_order_relaxed);
	if (call->ticket.repeats) {
		atomic_store_explicit(call->ticket.started, 0, memory_order_relaxed);
		atomic_store_explicit(&call->lanes, 1 + (call->all_left[FERRY_DOWN] > 0), memory_order_relaxed);
		atomic_fetch_add_explicit(&comm->inflight, 1, memory_order_relaxed);
		atomic_fetch_add_explicit(&comm->device->inflight, 1, memory_order_relaxed);
	}
	atomic_store_explicit(&call->seq, seq, memory_order_release);
	return true;
}

uint64_t ferry_run_missing(struct ferryComm *comm, const struct ferry_call *call)
{
	uint64_t missing = 0;
	for (int rank = 0; rank < comm->nranks; rank++) {
		struct ferry_descriptor *theirs = &ferry_rank_line(&comm->shared, (uint32_t)rank)->ring[call->bank];
		if (atomic_load_explicit(&theirs->seq, memory_order_acquire) != ferry_run_number(call))
			missing |= 1ull << rank;
	}
	return missing;
}

uint64_t ferry_run_blocked_by(struct ferryComm *comm, const struct ferry_call *call, uint64_t *ranks)
{
	uint64_t seq = ferry_run_number(call), before = call->after;
	*ranks = 0;
	if (seq > FERRY_BANKS && !is_over(comm, seq - FERRY_BANKS))
		before = seq - FERRY_BANKS;
	else if (!before || is_over(comm, before))
		return 0;
	for (int rank = 0; rank < comm->nranks; rank++)
		if (atomic_load_explicit(&ferry_rank_line(&comm->shared, (uint32_t)rank)->finished[before % FERRY_BANKS], memory_order_acquire) <
		    before)
			*ranks |= 1ull << rank;
	return before;
}

static struct ferry_descriptor_fields fields_of(const struct ferry_call *call)
{
	return (struct ferry_descriptor_fields){.plan_hash = call->entry->plan->hash,
	                                        .count = call->count,
	                                        .scalar = call->scalar,
	                                        .name = call->name,
	                                        .shape = call->shape,
	                                        .root = call->root,
	                                        .domains = call->entry->domains};
}

void ferry_run_submit(struct ferry_call *call)
{
	struct ferryComm *comm = call->comm;
	uint64_t seq = ferry_run_number(call);
	struct ferry_descriptor *mine = &ferry_rank_line(&comm->shared, (uint32_t)comm->rank)->ring[call->bank];
	if (call->device_scalar)
		memcpy(&call->scalar, call->device_scalar, ferry_type_size(call->entry->key.type));
	struct ferry_descriptor_fields fields = fields_of(call);
	ferry_descriptor_write(mine, seq, &fields);
	for (uint32_t domain = 0; domain < comm->ndomains; domain++)
		if (call->entry->domains >> domain & 1)
			comm->router_seq[call->bank][domain] = seq;
	if (call->entry->plan->flags & FERRY_PLAN_VARIABLE)
		for (uint32_t i = 0; i < call->ntransfers[FERRY_UP]; i++) {
			const struct ferry_transfer *transfer = &call->transfers[FERRY_UP][i];
			atomic_store_explicit(&transfer->step->counter->length, transfer->length, memory_order_relaxed);
			ferry_publish(&comm->shared, transfer->step->instr, transfer->step->counter, seq, 0);
		}
	ferry_full_fence(); /* of two ranks that submit together, at least one sees that both have: it wakes those who wait */
	if (call->name && comm->rank == 0) /* they wait for the name */
		ferry_wake(&comm->shared, ferry_rankset_all((uint32_t)comm->nranks), 0, 0);
	if (!ferry_run_missing(comm, call))
		ferry_wake(&comm->shared, ferry_rankset_all((uint32_t)comm->nranks), 0, call->entry->domains);
	call->submitted = true;
}

/* True once all ranks have submitted the same call; a difference ends the communicator. */
bool ferry_run_agreed(struct ferry_call *call)
{
	struct ferryComm *comm = call->comm;
	if (ferry_run_missing(comm, call))
		return false;
	struct ferry_descriptor_fields mine = fields_of(call), theirs;
	for (uint32_t rank = 0; rank < (uint32_t)comm->nranks; rank++) {
		char text[FERRY_MESSAGE_BYTES];
		ferry_descriptor_read(&ferry_rank_line(&comm->shared, rank)->ring[call->bank], &theirs);
		if (ferry_descriptor_agree(&mine, &theirs))
			continue;
		ferry_descriptor_disagreement(text, sizeof text, ferry_run_number(call), (uint32_t)comm->rank, &mine,
		                              rank, &theirs);
		ferry_comm_fail(comm, ferryInvalidUsage, text);
		return false;
	}
	return true;
}

/* ---- the end ---- */

static void end_call(struct ferry_call *call)
{
	struct ferryComm *comm = call->comm;
	ferryResult_t result = ferrySuccess;
	bool repeats = call->ticket.repeats;
	uint64_t seq = ferry_run_number(call);
	if (atomic_load_explicit(&comm->failed, memory_order_acquire)) {
		result = comm->error;
	} else if (!call->point_to_point) {
		struct ferry_rank_line *line = ferry_rank_line(&comm->shared, (uint32_t)comm->rank);
		atomic_store_explicit(&line->finished[call->bank], seq, memory_order_release);
		ferry_full_fence(); /* of two ranks that finish together, at least one sees that both have */
		if (all_finished(comm, call->bank, seq))
			ferry_wake(&comm->shared, ferry_rankset_all((uint32_t)comm->nranks), 0, 0);
	}
	if (repeats) /* before the stream goes on: the next replay may reach it at once */
		atomic_store_explicit(&call->seq, 0, memory_order_release);
	ferry_ticket_finish(&call->ticket, result, comm->error_message);
	if (atomic_fetch_sub_explicit(&comm->device->inflight, 1, memory_order_acq_rel) == 1 && comm->device->copier->ops->direct_memory_access)
		ferry_futex_wake(&comm->device->inflight, -1, false);
	if (atomic_fetch_sub_explicit(&comm->inflight, 1, memory_order_acq_rel) == 1)
		ferry_futex_wake(&comm->inflight, -1, false);
	if (!repeats)
		ferry_ticket_drop(&call->ticket);
}

void ferry_run_end_half(struct ferry_call *call)
{
	if (atomic_fetch_sub_explicit(&call->lanes, 1, memory_order_acq_rel) == 1)
		end_call(call);
}
