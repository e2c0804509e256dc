/* SPDX-License-Identifier: Apache-2.0 */
#include "router/engine/order.h"

#include "ipc/error.h"
#include "ipc/rankset.h"

#include <string.h>

static bool all_finished(const struct ferry_member *member, uint32_t parity, uint64_t seq)
{
	for (uint32_t rank = 0; rank < member->shared->nranks; rank++)
		if (atomic_load_explicit(&ferry_rank_line(member->shared, rank)->finished[parity],
		                         memory_order_acquire) < seq)
			return false;
	return true;
}

static uint64_t every_rank(const struct ferry_member *member)
{
	return ferry_rankset_all(member->shared->nranks);
}

static bool is_short(const struct ferry_call *call)
{
	return call->steps->plan->hash == FERRY_SHORT_CALL;
}

/* Threads that wait for a short call are the ranks' callers, unless a rank has given it to its lanes. */
static void wake_ranks(const struct ferry_member *member, const struct ferry_call *call, uint32_t domains)
{
	if (is_short(call))
		ferry_wake_callers(member->shared, true);
	else
		ferry_wake(member->shared, every_rank(member), 0, domains);
}

/*
 * The rank has finished the call. Only lanes wait for that, to begin a later call. After a short call the other ranks'
 * lines are not read again for this: they have just been written.
 */
static void wake_lanes(const struct ferry_member *member, const struct ferry_call *call, uint64_t seq)
{
	ferry_full_fence(); /* of two ranks that finish together, at least one sees that both have */
	if (is_short(call))
		ferry_wake_callers(member->shared, false);
	else if (all_finished(member, call->parity, seq))
		ferry_wake(member->shared, every_rank(member), 0, 0);
}

static uint64_t last_in(const struct ferry_member *member, uint32_t parity)
{
	return atomic_load_explicit(&member->order.last_seq[parity], memory_order_relaxed);
}

static void set_last(struct ferry_member *member, uint32_t parity, uint64_t seq)
{
	atomic_store_explicit(&member->order.last_seq[parity], seq, memory_order_relaxed);
}

uint32_t ferry_order_blocking_router(const struct ferry_member *member, uint64_t before)
{
	uint32_t parity = before % FERRY_PARITIES;
	for (uint32_t domain = 0; domain < member->shared->ndomains; domain++) {
		/* a call later than `before` began only when `before` was over */
		uint64_t last = member->order.router_seq[parity][domain];
		if (last <= before && atomic_load_explicit(&member->shared->arenas[domain].header->finished[parity],
		                                           memory_order_acquire) < last)
			return domain;
	}
	return FERRY_MAX_DOMAINS;
}

/*
 * Whether call `seq`, and with it all before it in its parity, is over on all ranks and in all routers that had work.
 */
static bool is_over(const struct ferry_member *member, uint64_t seq)
{
	return all_finished(member, seq % FERRY_PARITIES, seq) &&
	       ferry_order_blocking_router(member, seq) == FERRY_MAX_DOMAINS;
}

bool ferry_order_may_begin(const struct ferry_member *member, uint64_t seq)
{
	return seq <= FERRY_PARITIES || is_over(member, seq - FERRY_PARITIES);
}

/* Rank 0: the next number. The others: the number under which rank 0 has named this call; 0: not yet. */
static uint64_t number_of(const struct ferry_member *member, const struct ferry_call *call)
{
	uint64_t last = atomic_load_explicit(&member->order.fixed, memory_order_acquire);
	for (uint32_t parity = 0; parity < FERRY_PARITIES; parity++)
		last = last_in(member, parity) > last ? last_in(member, parity) : last;
	if (member->rank == 0)
		return last + 1;
	for (uint32_t parity = 0; parity < FERRY_PARITIES; parity++) {
		const struct ferry_descriptor *first = &ferry_rank_line(member->shared, 0)->ring[parity];
		uint64_t seq = atomic_load_explicit(&first->seq, memory_order_acquire);
		/* The descriptor stays until this rank, too, has finished that call. */
		if (seq > last_in(member, parity) && seq % FERRY_PARITIES == parity &&
		    atomic_load_explicit(&first->name, memory_order_relaxed) == call->name)
			return seq;
	}
	return 0;
}

bool ferry_order_begin(struct ferry_member *member, struct ferry_call *call)
{
	uint64_t seq = number_of(member, call);
	if (!seq || !ferry_order_may_begin(member, seq))
		return false;
	ferry_call_arm(call, seq % FERRY_PARITIES);
	set_last(member, call->parity, seq);
	atomic_store_explicit(&call->steps->last_seq, seq, memory_order_relaxed);
	if (call->captured) {
		atomic_store_explicit(&call->lanes, 1 + ferry_call_descends(call), memory_order_relaxed);
		member->ops->begun(member);
	}
	atomic_store_explicit(&call->seq, seq, memory_order_release);
	return true;
}

void ferry_order_number_message(struct ferry_member *member, enum ferry_direction direction,
                                struct ferry_transfer *transfer, uint64_t first[FERRY_MAX_RANKS])
{
	uint64_t *last = &member->order.messages[direction][transfer->peer];
	transfer->message = *last = (transfer->message > *last ? transfer->message : *last) + 1;
	if (!first[transfer->peer])
		first[transfer->peer] = transfer->message;
	transfer->first = first[transfer->peer];
}

void ferry_order_begin_messages(struct ferry_member *member, struct ferry_call *call)
{
	ferry_call_arm(call, 0);
	for (enum ferry_direction direction = FERRY_DIR_D2H; direction <= FERRY_DIR_H2D; direction++) {
		uint64_t first[FERRY_MAX_RANKS] = {0};
		for (uint32_t i = 0; i < call->halves[direction].ntransfers; i++)
			ferry_order_number_message(member, direction, &call->halves[direction].transfers[i], first);
	}
	if (call->captured) {
		atomic_store_explicit(&call->lanes, 1 + ferry_call_descends(call), memory_order_relaxed);
		member->ops->begun(member);
	}
	atomic_store_explicit(&call->seq, ++member->order.runs, memory_order_release);
}

uint64_t ferry_order_missing(const struct ferry_member *member, const struct ferry_call *call)
{
	uint64_t missing = 0;
	uint64_t seq = ferry_call_number(call);
	for (uint32_t rank = 0; rank < member->shared->nranks; rank++) {
		struct ferry_descriptor *theirs = &ferry_rank_line(member->shared, rank)->ring[call->parity];
		if (atomic_load_explicit(&theirs->seq, memory_order_acquire) != seq)
			missing |= 1ull << rank;
	}
	return missing;
}

uint64_t ferry_order_blocked_by(const struct ferry_member *member, const struct ferry_call *call, uint64_t *ranks)
{
	uint64_t seq = ferry_call_number(call), before = seq - FERRY_PARITIES;
	*ranks = 0;
	if (seq <= FERRY_PARITIES || is_over(member, before))
		return 0;
	for (uint32_t rank = 0; rank < member->shared->nranks; rank++)
		if (atomic_load_explicit(&ferry_rank_line(member->shared, rank)->finished[before % FERRY_PARITIES],
		                         memory_order_acquire) < before)
			*ranks |= 1ull << rank;
	return before;
}

static void describe(const struct ferry_call *call, struct ferry_descriptor_fields *fields)
{
	*fields = (struct ferry_descriptor_fields){.plan_hash = call->steps->plan->hash,
	                                           .count = call->count,
	                                           .scalar = call->scalar,
	                                           .name = call->name,
	                                           .shape = call->shape,
	                                           .root = call->root,
	                                           .domains = call->steps->domains,
	                                           .put_target = call->put_target,
	                                           .memory = call->memory};
}

/*
 * Variable plans: announces how long each part is that the rank sends, and where it receives the parts that others put.
 * Before the descriptor is written: a rank that has read all descriptors finds the parts, too.
 */
static void announce_parts(struct ferry_member *member, const struct ferry_call *call, uint64_t seq)
{
	for (enum ferry_direction direction = FERRY_DIR_D2H; direction <= FERRY_DIR_H2D; direction++)
		for (uint32_t i = 0; i < call->halves[direction].ntransfers; i++) {
			const struct ferry_transfer *transfer = &call->halves[direction].transfers[i];
			struct ferry_counter *counter = transfer->step->counter;
			uint64_t value = atomic_load_explicit(&counter->value, memory_order_relaxed);
			if (direction == FERRY_DIR_H2D && transfer->step->instr->opcode != FERRY_WAIT_PUT &&
			    !transfer->step->division)
				continue;
			if ((uint32_t)(value >> 32) == (uint32_t)seq) /* the router before this one did that */
				continue;
			atomic_store_explicit(&counter->length, transfer->whole, memory_order_relaxed);
			atomic_store_explicit(&counter->target_offset, transfer->target_offset, memory_order_relaxed);
			if (transfer->step->division) /* all wait for the division: none is woken */
				atomic_store_explicit(&counter->value, ferry_counter_value(seq, 0),
				                      memory_order_release);
			else
				ferry_publish(member->shared, transfer->step->instr, counter, seq, 0);
		}
}

void ferry_order_submit(struct ferry_member *member, struct ferry_call *call)
{
	uint64_t seq = ferry_call_number(call);
	struct ferry_descriptor *own = &ferry_member_line(member)->ring[call->parity];
	struct ferry_descriptor_fields fields;
	if (call->device_scalar)
		memcpy(&call->scalar, call->device_scalar, ferry_type_size(call->shape >> 8 & 0xff));
	describe(call, &fields);
	if (call->steps->plan->flags & FERRY_PLAN_VARIABLE)
		announce_parts(member, call, seq);
	/* One that is there stays: rewriting it first takes it back, and a number of rank 0 could get lost. */
	if (!call->recovery || atomic_load_explicit(&own->seq, memory_order_relaxed) != seq)
		ferry_descriptor_write(own, seq, &fields);
	for (uint32_t domain = 0; domain < member->shared->ndomains; domain++)
		if (call->steps->domains >> domain & 1)
			member->order.router_seq[call->parity][domain] = seq;
	/* of two ranks that submit together, at least one sees that both have: it wakes the lanes that wait */
	ferry_full_fence();
	if (call->name && member->rank == 0) /* the other ranks wait for the name */
		wake_ranks(member, call, 0);
	if (!ferry_order_missing(member, call))
		wake_ranks(member, call, call->steps->domains);
}

/*
 * Whether the call of each rank that is at call `seq` is this rank's; a difference ends the job. all: false as well if
 * a rank is not.
 */
static bool others_agree(struct ferry_member *member, uint64_t seq, const struct ferry_descriptor_fields *mine,
                         bool all)
{
	struct ferry_descriptor_fields theirs;
	for (uint32_t rank = 0; rank < member->shared->nranks; rank++) {
		char text[FERRY_MESSAGE_BYTES];
		const struct ferry_descriptor *other =
		        &ferry_rank_line(member->shared, rank)->ring[seq % FERRY_PARITIES];
		if (rank == member->rank)
			continue;
		if (atomic_load_explicit(&other->seq, memory_order_acquire) != seq) {
			if (all)
				return false;
			continue;
		}
		ferry_descriptor_read(other, &theirs);
		if (ferry_descriptor_agree(mine, &theirs))
			continue;
		ferry_full_fence(); /* ferry_descriptor_read */
		if (atomic_load_explicit(&other->seq, memory_order_relaxed) != seq)
			continue;
		ferry_descriptor_disagreement(text, sizeof text, seq, member->rank, mine, rank, &theirs);
		member->ops->fail(member, ferryInvalidUsage, text);
		return false;
	}
	return true;
}

void ferry_order_hear_later(struct ferry_member *member, const struct ferry_call *call)
{
	member->order.unheard[call->parity] = ferry_call_number(call);
}

/* Compares the parity's last call with those of the ranks that are still there. False: the job has failed. */
static bool hear(struct ferry_member *member, uint32_t parity)
{
	struct ferry_descriptor_fields mine;
	uint64_t seq = member->order.unheard[parity];
	if (!seq)
		return true;
	ferry_descriptor_read(&ferry_member_line(member)->ring[parity], &mine);
	if (!others_agree(member, seq, &mine, false))
		return false;
	member->order.unheard[parity] = 0;
	return true;
}

void ferry_order_hear(struct ferry_member *member)
{
	for (uint32_t parity = 0; parity < FERRY_PARITIES && hear(member, parity); parity++)
		;
}

/*
 * A rank that has begun the call has found that it may, so this one need not look for that itself. Where a call has a
 * root others are often ahead, and their descriptors are read next; elsewhere that would take a line from its writer.
 */
static bool has_begun_elsewhere(const struct ferry_member *member, const struct ferry_call *call)
{
	uint64_t seq = ferry_call_number(call), own = atomic_load_explicit(
	        &ferry_member_line(member)->finished[seq % FERRY_PARITIES], memory_order_acquire);
	return ferry_collective_has_root(call->shape & 0xff) &&
	       own + FERRY_PARITIES >= seq && /* acquires what its own lanes did in the parity's last call */
	       ferry_order_missing(member, call) != every_rank(member);
}

static bool may_start(const struct ferry_member *member, const struct ferry_call *call)
{
	return has_begun_elsewhere(member, call) || ferry_order_may_begin(member, ferry_call_number(call));
}

bool ferry_order_start(struct ferry_member *member, struct ferry_call *call)
{
	bool numbered = !call->name || call->recovery;
	if (!call->steps) {
		if (!numbered)
			ferry_order_begin_messages(member, call);
		call->recovery = false;
		return true;
	}
	if (numbered ? !may_start(member, call) : !ferry_order_begin(member, call))
		return false;
	if (!hear(member, call->parity))
		return false;
	set_last(member, call->parity, ferry_call_number(call));
	if (call->aside)
		memcpy(call->aside, call->aside_from, call->aside_bytes);
	if (call->ops->beginning)
		call->ops->beginning(call);
	ferry_order_submit(member, call);
	call->recovery = false;
	return true;
}

bool ferry_order_agreed(struct ferry_member *member, const struct ferry_call *call)
{
	struct ferry_descriptor_fields mine;
	describe(call, &mine);
	return others_agree(member, ferry_call_number(call), &mine, true);
}

/* ---- the end ---- */

void ferry_order_end(struct ferry_member *member, struct ferry_call *call)
{
	const char *message = "";
	ferryResult_t result = ferrySuccess;
	uint64_t seq = ferry_call_number(call);
	if (member->ops->failed(member)) {
		result = member->ops->error(member, &message);
	} else if (call->ops->ending) {
		call->ops->ending(call);
	}
	if (!result && call->steps) {
		atomic_store_explicit(&ferry_member_line(member)->finished[call->parity], seq, memory_order_release);
		wake_lanes(member, call, seq);
	}
	call->ops->finish(call, result, message);
	/*
	 * After the stream flag is 0 again: the D2H lane takes this store for the end of the run, and would take a flag
	 * that is still 1 for the next replay.
	 */
	if (call->captured)
		atomic_store_explicit(&call->seq, 0, memory_order_release);
	if (member->ops->ended)
		member->ops->ended(member, call);
}

void ferry_order_end_half(struct ferry_member *member, struct ferry_call *call)
{
	if (atomic_fetch_sub_explicit(&call->lanes, 1, memory_order_acq_rel) == 1)
		ferry_order_end(member, call);
}
