/* SPDX-License-Identifier: Apache-2.0 */
#include "router/engine/slices.h"

#include "ipc/error.h"
#include "router/engine/member.h"
#include "router/engine/pair.h"
#include "router/reduce/cache.h"

#include <stdio.h>

#define PASSED_ON 4u /* slices of a PUT in one copy, where other ranks pass them on */
#define HURRY_AHEAD 8u /* copies of a broadcast under way to a rank (hurries) */
/*
 * How many slices of a PUT may be under way where relays use the same links: a part of all its slices, so that PUTs
 * that share a port end together.
 */
#define AHEAD_PART  16u
#define AHEAD_LEAST 4u
#define AHEAD_MOST  24u

static void transfer_done(struct ferry_lane_rank *lane_rank, struct ferry_call *call, struct ferry_transfer *transfer)
{
	if (!transfer->step)
		ferry_pair_done(lane_rank, call, transfer);
	call->halves[lane_rank->direction].left--;
}

static uint64_t bytes_in_slice(const struct ferry_plan *plan, const struct ferry_transfer *transfer, uint32_t slice)
{
	uint64_t left = transfer->length - (uint64_t)slice * plan->slice;
	return left < plan->slice ? left : plan->slice;
}

/*
 * Keeps a window in the cache. Data that a copy engine writes and that no cache holds goes to a few ways of the
 * last-level cache, and on to memory as soon as those are full; data that is in the cache already is written in place
 * and stays. Cores that reduce bring the windows there by reading them. Windows that only pass data on, from copy
 * engine to copy engine, need a core that reads them: this lane reads a part of each slice that has arrived, another
 * part each time the slot comes round (AllToAll of 256 MiB: docs/lab/data-that-passes-through.md). It does not read a
 * window without readers: its slots wait for no reader, and the next slice may be on its way already.
 */
static void keep_window(const struct ferry_call *call, const struct ferry_transfer *transfer, uint32_t slice)
{
	const struct ferry_plan *plan = call->steps->plan;
	uint64_t seq = ferry_call_number(call), lap = slice / plan->window + ferry_plan_lap(seq);
	ferry_keep_part(transfer->window + ferry_plan_slot(plan, seq, slice),
	                bytes_in_slice(plan, transfer, slice), lap);
}

/* A copy has finished: publishes its slices. */
static void slice_done(const struct ferry_copies *copies, const struct ferry_copying *copying)
{
	struct ferry_lane_rank *lane_rank = copying->lane_rank;
	struct ferry_call *call = copying->call;
	struct ferry_transfer *transfer = copying->transfer;
	transfer->finished += copying->slices;
	if (!transfer->step)
		ferry_pair_publish(lane_rank, transfer);
	else if (transfer->step->instr->opcode != FERRY_COPY)
		ferry_publish(lane_rank->member->shared, transfer->step->instr, transfer->step->counter,
		              ferry_call_number(call), transfer->finished);
	if (copies->queue.copier->ops->direct_memory_access && transfer->step && transfer->step->only_passes_on)
		keep_window(call, transfer, transfer->finished - 1);
	if (transfer->finished == transfer->nslices)
		transfer_done(lane_rank, call, transfer);
}

static bool reap_queue(struct ferry_copies *copies)
{
	struct ferry_copying copying;
	bool progress = false;
	if (!ferry_copies_any(copies))
		return false;
	uint64_t finished = ferry_copies_finished(copies);
	while (ferry_copies_take(copies, finished, &copying)) {
		slice_done(copies, &copying);
		progress = true;
	}
	return progress;
}

bool ferry_slices_reap(struct ferry_copies *copies, struct ferry_pushes *pushes)
{
	bool progress = reap_queue(copies);
	for (uint32_t left = pushes->open; left; left &= left - 1)
		progress |= reap_queue(&pushes->queues[__builtin_ctz(left)]);
	return progress;
}

/* Variable plans: the length of a chunk is in its producer's counter, valid once the counter has this call's tag. */
static uint32_t open_variable(const struct ferry_call *call, const struct ferry_transfer *transfer)
{
	uint32_t open = transfer->nslices, slice = call->steps->plan->slice;
	for (uint32_t i = 0; i < transfer->step->ngates; i++) {
		const struct ferry_gate *gate = &transfer->step->gates[i];
		uint64_t value = atomic_load_explicit(&gate->counter->value, memory_order_acquire);
		uint32_t slices = ferry_counter_slices(value, ferry_call_number(call));
		if (gate->lag) {
			if ((uint64_t)slices + gate->lag < open)
				open = slices + gate->lag;
			continue;
		}
		if ((uint32_t)(value >> 32) != (uint32_t)ferry_call_number(call))
			return 0;
		uint64_t length = atomic_load_explicit(transfer->step->division ? &gate->counter->part
		                                                                : &gate->counter->length,
		                                       memory_order_relaxed);
		if (slices < (length + slice - 1) / slice && slices < open)
			open = slices;
	}
	return open;
}

/* Variable plans, H2D and WAIT_PUT: false until the sender has published its length; a different one ends the job. */
static bool lengths_agree(struct ferry_member *member, const struct ferry_call *call, struct ferry_transfer *transfer)
{
	const struct ferry_step *step = transfer->step;
	uint64_t value = atomic_load_explicit(&step->producer->value, memory_order_acquire);
	if ((uint32_t)(value >> 32) != (uint32_t)ferry_call_number(call))
		return false;
	uint64_t length = atomic_load_explicit(&step->producer->length, memory_order_relaxed);
	transfer->current = true;
	if (length == transfer->length)
		return true;
	char text[FERRY_MESSAGE_BYTES];
	snprintf(text, sizeof text, "alltoallv: rank %u sends %llu bytes to rank %u, which expects %llu",
	         step->producer_rank, (unsigned long long)length, member->rank, (unsigned long long)transfer->length);
	member->ops->fail(member, ferryInvalidUsage, text);
	return false;
}

static void beyond_its_block(struct ferry_member *member, const struct ferry_transfer *transfer, uint64_t at,
                             uint64_t length)
{
	const struct ferry_instr *instr = transfer->step->instr;
	char text[FERRY_MESSAGE_BYTES];
	snprintf(text, sizeof text,
	         "alltoallv: a part of %llu bytes at %llu reaches beyond the %llu that rank %u sends to rank %u "
	         "(path %u, rank %u)",
	         (unsigned long long)length, (unsigned long long)at, (unsigned long long)transfer->whole, instr->from,
	         instr->to, instr->path, instr->owner);
	member->ops->fail(member, ferryInternalError, text);
}

/*
 * Takes the part of this path, once a router has divided the call among paths, which compares the lengths, too; false
 * before. A router before this one may have moved some of the part.
 */
static bool take_part(struct ferry_member *member, const struct ferry_call *call, struct ferry_transfer *transfer)
{
	const struct ferry_step *step = transfer->step;
	uint64_t value = atomic_load_explicit(&step->division->value, memory_order_acquire);
	if (!ferry_counter_slices(value, ferry_call_number(call)))
		return false;
	uint64_t length = atomic_load_explicit(&step->counter->part, memory_order_relaxed);
	uint64_t at = atomic_load_explicit(&step->counter->part_at, memory_order_relaxed);
	bool relays = step->instr->nsources, fits = length <= transfer->whole && at <= transfer->whole - length;
	if (length >> 56 || at >> 56 || (!relays && !fits)) { /* a relay checks it when it puts */
		beyond_its_block(member, transfer, at, length);
		return false;
	}
	transfer->current = true;
	transfer->length = length;
	transfer->at = at;
	transfer->nslices = (uint32_t)((length + call->steps->plan->slice - 1) / call->steps->plan->slice);
	if (step->instr->opcode != FERRY_WAIT_PUT) {
		value = atomic_load_explicit(&step->counter->value, memory_order_acquire);
		uint32_t slices = ferry_counter_slices(value, ferry_call_number(call));
		transfer->issued = transfer->finished = slices < transfer->nslices ? slices : transfer->nslices;
	}
	return true;
}

static uint32_t most_ahead(const struct ferry_transfer *transfer)
{
	uint32_t part = transfer->nslices / AHEAD_PART;
	return part < AHEAD_LEAST ? AHEAD_LEAST : part > AHEAD_MOST ? AHEAD_MOST : part;
}

/* Whether paths that a call is divided among share the port of the lane's host device. */
static bool shares_port(const struct ferry_lane_rank *lane_rank, const struct ferry_call *call,
                        const struct ferry_pushes *pushes)
{
	const struct ferry_network *network = call->steps ? ferry_plan_network(call->steps->plan) : NULL;
	return network && lane_rank->direction == FERRY_DIR_D2H && !pushes->copier->ops->direct_memory_access &&
	       network->links.port[lane_rank->member->rank] > 0;
}

/*
 * The port serves one push after another. No more pushes wait for it than a relay's window has slots: the slice that
 * the relay waits for is there before the other slots are passed on.
 */
static bool may_push(const struct ferry_pushes *pushes, const struct ferry_lane_rank *lane_rank,
                     const struct ferry_call *call)
{
	return !shares_port(lane_rank, call, pushes) || ferry_pushes_under_way(pushes) < call->steps->plan->window;
}

/*
 * Whether pushes are kept few and short: in a broadcast between host devices, whose links and ports are first in, first
 * out. Each hop delays the data by what is under way there. Where all ranks push data of their own, links have other
 * work meanwhile, and copies may be longer.
 */
static bool hurries(const struct ferry_pushes *pushes, const struct ferry_plan *plan)
{
	return plan->collective == FERRY_BROADCAST && !plan->nsources && !pushes->copier->ops->direct_memory_access;
}

/*
 * Whether the PUT should wait: enough is under way to its rank, or another PUT, to whichever rank, can go on and is
 * further behind. So PUTs that share a port advance equally, also two to one rank.
 */
static bool is_ahead(const struct ferry_pushes *pushes, const struct ferry_half *half,
                     const struct ferry_transfer *transfer)
{
	const struct ferry_copies *copies = &pushes->queues[transfer->step->instr->peer % FERRY_PUSH_QUEUES];
	bool ahead = copies->tail - copies->head >= HURRY_AHEAD;
	for (uint32_t i = 0; i < half->ntransfers && !ahead; i++) {
		const struct ferry_transfer *other = &half->transfers[i];
		ahead = other->step && other->step->instr->opcode == FERRY_PUT && other->issued < other->open &&
		        other->issued < transfer->issued;
	}
	return ahead;
}

/*
 * The slices are contiguous on both sides, so one copy takes all whose gates are open: a copy engine pauses between
 * copies. Where other ranks forward slices, a copy takes a few at a time. Where a block is divided among paths with
 * relays, a few short copies are under way: slices of relays, and those to other ranks, do not wait behind all that
 * goes directly.
 */
static bool issue_put(struct ferry_pushes *pushes, struct ferry_lane_rank *lane_rank, struct ferry_call *call,
                      struct ferry_transfer *transfer)
{
	const struct ferry_instr *instr = transfer->step->instr;
	uint64_t slice = call->steps->plan->slice, start = slice * transfer->issued;
	uint32_t slices = transfer->open - transfer->issued;
	bool cut = transfer->step->division &&
	           (!pushes->copier->ops->direct_memory_access || call->steps->plan->memory);
	if (instr->wakes_d2h && slices > PASSED_ON)
		slices = PASSED_ON;
	if (cut && (transfer->issued - transfer->finished >= most_ahead(transfer) ||
	            !may_push(pushes, lane_rank, call)))
		return false;
	bool hurry = hurries(pushes, call->steps->plan);
	if (hurry && is_ahead(pushes, &call->halves[lane_rank->direction], transfer))
		return false;
	if (cut || hurry || transfer->source)
		slices = 1;
	if (transfer->step->division && transfer->at + transfer->length > transfer->whole) {
		beyond_its_block(lane_rank->member, transfer, transfer->at, transfer->length);
		return false;
	}
	uint64_t left = transfer->length - start, bytes = slices * slice < left ? slices * slice : left;
	const struct ferry_put_target to = {.address = transfer->destination + transfer->at + start,
	                                    .process = transfer->process,
	                                    .from = instr->owner,
	                                    .to = instr->peer};
	const char *source = transfer->source;
	source = source ? source + ferry_plan_slot(call->steps->plan, ferry_call_number(call), transfer->issued)
	                : transfer->user + transfer->at + start;
	return ferry_pushes_start(pushes, lane_rank, call, transfer, to, source, bytes, slices);
}

/* Copies nothing: counts the slices that other ranks have put. */
static bool wait_put(struct ferry_lane_rank *lane_rank, struct ferry_call *call, struct ferry_transfer *transfer)
{
	transfer->issued = transfer->finished = transfer->open;
	if (transfer->finished == transfer->nslices)
		transfer_done(lane_rank, call, transfer);
	return true;
}

/* Slices of which the kernel has added all parts. */
static uint32_t added(const struct ferry_step *step, uint64_t seq)
{
	uint32_t least = UINT32_MAX;
	for (uint32_t block = 0; block < FERRY_ADD_BLOCKS; block++) {
		uint64_t value = atomic_load_explicit(&step->adds->done[step->add][block], memory_order_acquire);
		uint32_t slices = ferry_counter_slices(value, seq);
		least = slices < least ? slices : least;
	}
	return least;
}

/*
 * Copies nothing: the rank's kernel adds what this opens. The kernel goes on when a router dies: what was opened once
 * may have been added, and its successor finds that in the cells.
 */
static bool move_add(struct ferry_lane_rank *lane_rank, struct ferry_call *call, struct ferry_transfer *transfer)
{
	const struct ferry_step *step = transfer->step;
	uint64_t seq = ferry_call_number(call);
	uint32_t open = ferry_gates_open(step->gates, step->ngates, seq, transfer->nslices);
	bool progress = open > transfer->issued;
	if (progress) {
		transfer->issued = open;
		atomic_store_explicit(&step->adds->open[step->add], ferry_counter_value(seq, open),
		                      memory_order_release);
	}
	uint32_t done = transfer->issued > transfer->finished ? added(step, seq) : 0;
	done = done < transfer->issued ? done : transfer->issued;
	if (done <= transfer->finished)
		return progress;
	transfer->finished = done;
	ferry_publish(lane_rank->member->shared, step->instr, step->counter, seq, done);
	if (done == transfer->nslices)
		transfer_done(lane_rank, call, transfer);
	return true;
}

static bool issue_step(struct ferry_copies *copies, struct ferry_pushes *pushes, struct ferry_lane_rank *lane_rank,
                       struct ferry_call *call, struct ferry_transfer *transfer)
{
	const struct ferry_plan *plan = call->steps->plan;
	const struct ferry_step *step = transfer->step;
	bool variable = plan->flags & FERRY_PLAN_VARIABLE;
	if (variable && (step->producer || step->division) && !transfer->current) {
		if (!(step->division ? take_part : lengths_agree)(lane_rank->member, call, transfer))
			return false;
		/* `left` does not count what the router before this one had finished (ferry_call_resume) */
		if (!transfer->nslices || (step->division && transfer->finished == transfer->nslices)) {
			transfer_done(lane_rank, call, transfer);
			return true;
		}
	}
	uint32_t slice = transfer->issued;
	if (step->instr->opcode == FERRY_ADD)
		return move_add(lane_rank, call, transfer);
	if (slice >= transfer->nslices || (step->instr->opcode == FERRY_PUT && !transfer->destination) ||
	    (ferry_instr_puts_into_memory(step->instr) && !transfer->window))
		return false;
	if (slice >= transfer->open) {
		transfer->open = variable ? open_variable(call, transfer)
		                          : ferry_gates_open(step->gates, step->ngates, ferry_call_number(call),
		                                             transfer->nslices);
		if (slice >= transfer->open)
			return false;
	}
	if (step->instr->opcode == FERRY_PUT)
		return issue_put(pushes, lane_rank, call, transfer);
	if (step->instr->opcode == FERRY_WAIT_PUT)
		return wait_put(lane_rank, call, transfer);
	uint64_t start = (uint64_t)slice * plan->slice + transfer->at, bytes = bytes_in_slice(plan, transfer, slice);
	bool memory = step->instr->flags & FERRY_INSTR_MEMORY;
	uint64_t slot_at = memory ? ferry_plan_slot(plan, ferry_call_number(call), slice) : 0;
	if (memory && step->instr->peer != step->instr->owner) { /* over the link between the two */
		if (!may_push(pushes, lane_rank, call))
			return false;
		const struct ferry_put_target to = {
		        .address = transfer->window + slot_at, .from = step->instr->owner, .to = step->instr->peer};
		const char *source = transfer->source ? transfer->source + slot_at : transfer->user + start;
		return ferry_pushes_start(pushes, lane_rank, call, transfer, to, source, bytes, 1);
	}
	if (ferry_copies_full(copies))
		return false;
	if (step->instr->opcode == FERRY_COPY)
		return ferry_copies_start(copies, lane_rank, call, transfer, transfer->destination + start,
		                          transfer->user + start, bytes, false);
	char *slot = transfer->window + ferry_plan_slot(plan, ferry_call_number(call), slice);
	bool d2h = lane_rank->direction == FERRY_DIR_D2H;
	return ferry_copies_start(copies, lane_rank, call, transfer, d2h ? slot : transfer->user + start,
	                          d2h ? transfer->user + start : slot, bytes, !memory);
}

static bool issue(struct ferry_copies *copies, struct ferry_pushes *pushes, struct ferry_lane_rank *lane_rank,
                  struct ferry_call *call, struct ferry_transfer *transfer)
{
	if (!(transfer->step ? issue_step(copies, pushes, lane_rank, call, transfer)
	                     : ferry_pair_issue(copies, pushes, lane_rank, call, transfer)))
		return false;
	ferry_slices_reap(copies, pushes);
	return true;
}

/* Whether the first has issued a smaller part of its slices, counted plus one; of equal parts the earlier one is. */
static bool is_behind(const struct ferry_transfer *first, const struct ferry_transfer *second)
{
	uint64_t one = (uint64_t)first->issued * (second->nslices + 1ull);
	uint64_t other = (uint64_t)second->issued * (first->nslices + 1ull);
	return one < other || (one == other && first < second);
}

/* The transfer furthest behind that has more to issue, or no known part, but is ahead of `tried`; NULL: none. */
static struct ferry_transfer *furthest_behind(const struct ferry_half *half, const struct ferry_transfer *tried)
{
	struct ferry_transfer *behind = NULL;
	for (uint32_t i = 0; i < half->ntransfers; i++) {
		struct ferry_transfer *transfer = &half->transfers[i];
		bool over = transfer->issued >= transfer->nslices && (transfer->current || !transfer->step->division);
		if (!over && (!tried || is_behind(tried, transfer)) && (!behind || is_behind(transfer, behind)))
			behind = transfer;
	}
	return behind;
}

/*
 * Parts are chosen so that all paths are busy to the end. So paths that share a port go on in proportion to their
 * parts: by turns a short part would be over first, and too much would be left for the slow links of the others.
 */
static bool move_evenly(struct ferry_copies *copies, struct ferry_pushes *pushes, struct ferry_lane_rank *lane_rank,
                        struct ferry_call *call, uint32_t most)
{
	const struct ferry_half *half = &call->halves[lane_rank->direction];
	struct ferry_transfer *transfer, *tried = NULL;
	bool progress = false;
	while (lane_rank->under_way < most && (transfer = furthest_behind(half, tried))) {
		bool issued = issue(copies, pushes, lane_rank, call, transfer);
		tried = issued ? NULL : transfer;
		progress |= issued;
	}
	return progress;
}

bool ferry_slices_move(struct ferry_copies *copies, struct ferry_pushes *pushes, struct ferry_lane_rank *lane_rank,
                       struct ferry_call *call, uint32_t most)
{
	struct ferry_half *half = &call->halves[lane_rank->direction];
	uint32_t count = half->ntransfers;
	bool progress = false;
	if (shares_port(lane_rank, call, pushes))
		return move_evenly(copies, pushes, lane_rank, call, most);
	for (uint32_t i = 0; i < count && half->left; i++) {
		if (lane_rank->under_way >= most)
			break;
		progress |= issue(copies, pushes, lane_rank, call, &half->transfers[(half->turn + i) % count]);
	}
	if (count)
		half->turn = (half->turn + 1) % count;
	return progress;
}
