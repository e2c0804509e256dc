/* SPDX-License-Identifier: Apache-2.0 */
#include "router/engine/put_targets.h"

#include "ipc/deadline.h"
#include "ipc/error.h"
#include "ipc/publish.h"
#include "ipc/rankset.h"
#include "ipc/wait.h"

#include <stdio.h>

/* Whether it writes into the peer's receive buffer, or (memory) into its device memory. */
static bool is_put_to(const struct ferry_transfer *transfer, uint32_t peer, bool memory)
{
	const struct ferry_instr *instr = transfer->step->instr;
	return (memory ? ferry_instr_puts_into_memory(instr) : instr->opcode == FERRY_PUT) && instr->peer == peer;
}

/*
 * Whether something is left of a PUT. If a router before this one has put all of it, the call may be over for the rank
 * that receives, and the buffer the application's again: so nothing is put there.
 */
static bool is_left(const struct ferry_call *call, const struct ferry_transfer *transfer)
{
	const struct ferry_step *step = transfer->step;
	bool left = transfer->finished < transfer->nslices;
	if (step->division && !transfer->current) { /* the lane has not taken its part yet */
		uint64_t value = atomic_load_explicit(&step->counter->value, memory_order_acquire);
		uint64_t slices = ferry_counter_slices(value, ferry_call_number(call));
		left = slices * call->steps->plan->slice <
		       atomic_load_explicit(&step->counter->part, memory_order_relaxed);
	}
	return left;
}

/*
 * Finds where a PUT lands in the peer's buffer. In a variable plan the peer announces place and length before its
 * descriptor; both are read once, as any rank can write there. Lengths that differ fail the job. A relay, which passes
 * another rank's block on, takes the block's length from there.
 */
static bool find_target(struct ferry_member *member, const struct ferry_call *call, struct ferry_transfer *transfer)
{
	const struct ferry_counter *theirs = transfer->step->wait_put;
	const struct ferry_instr *instr = transfer->step->instr;
	char text[FERRY_MESSAGE_BYTES];
	transfer->target_offset = instr->user_destination;
	if (!(call->steps->plan->flags & FERRY_PLAN_VARIABLE))
		return true;
	uint64_t value = atomic_load_explicit(&theirs->value, memory_order_acquire);
	uint64_t length = atomic_load_explicit(&theirs->length, memory_order_relaxed);
	transfer->target_offset = atomic_load_explicit(&theirs->target_offset, memory_order_relaxed);
	if (instr->nsources)
		transfer->whole = length;
	if ((uint32_t)(value >> 32) == (uint32_t)ferry_call_number(call) && length == transfer->whole &&
	    !(length >> 56) && !(transfer->target_offset >> 56))
		return true;
	if (length == transfer->whole)
		snprintf(text, sizeof text, "alltoallv: rank %u receives at %llu from rank %u, in call %u", instr->peer,
		         (unsigned long long)transfer->target_offset, instr->owner, (uint32_t)(value >> 32));
	else
		snprintf(text, sizeof text, "alltoallv: rank %u sends %llu bytes to rank %u, which expects %llu",
		         instr->owner, (unsigned long long)transfer->whole, instr->peer,
		         (unsigned long long)length);
	member->ops->fail(member, ferryInvalidUsage, text);
	return false;
}

/*
 * How far this rank's PUTs reach into the peer's buffer, or memory. False: the job has failed. What is left is read
 * once, into `aims`, as any rank can write there: only those PUTs get a target.
 */
static bool find_reach(struct ferry_member *member, const struct ferry_call *call, uint32_t peer, bool memory,
                       uint64_t *bytes)
{
	const struct ferry_half *half = &call->halves[FERRY_DIR_D2H];
	*bytes = 0;
	for (uint32_t i = 0; i < half->ntransfers; i++) {
		struct ferry_transfer *transfer = &half->transfers[i];
		if (!is_put_to(transfer, peer, memory) || !(transfer->aims = is_left(call, transfer)))
			continue;
		if (memory) {
			*bytes = FERRY_PARITIES * call->steps->plan->memory;
			continue;
		}
		if (!find_target(member, call, transfer))
			return false;
		if (transfer->target_offset + transfer->whole > *bytes)
			*bytes = transfer->target_offset + transfer->whole;
	}
	return true;
}

static struct ferry_buffer_name name_of(const struct ferry_member *member, const struct ferry_call *call, uint32_t peer,
                                        bool memory)
{
	const struct ferry_descriptor *descriptor = &ferry_rank_line(member->shared, peer)->ring[call->parity];
	struct ferry_descriptor_fields theirs;
	struct ferry_buffer_name name;
	if (memory) {
		ferry_descriptor_read_memory(descriptor, &name);
		return name;
	}
	ferry_descriptor_read(descriptor, &theirs);
	return theirs.put_target;
}

static bool find(struct ferry_member *member, struct ferry_call *call, uint32_t peer, bool memory)
{
	struct ferry_put_target put_target = {0};
	const struct ferry_half *half = &call->halves[FERRY_DIR_D2H];
	uint64_t bytes;
	if (!find_reach(member, call, peer, memory, &bytes))
		return false;
	if (!bytes)
		return true; /* all of them are empty, or over */
	const struct ferry_buffer_name name = name_of(member, call, peer, memory);
	ferryResult_t result = member->ops->hold_target(member, peer, &name, bytes, &put_target);
	if (result) {
		member->ops->fail(member, result, ferry_last_message());
		return false;
	}
	for (uint32_t i = 0; i < half->ntransfers; i++) {
		struct ferry_transfer *transfer = &half->transfers[i];
		if (!is_put_to(transfer, peer, memory) || !transfer->aims)
			continue;
		if (memory)
			transfer->window = put_target.address + transfer->step->half +
			                   transfer->step->instr->window_offset;
		else
			transfer->destination = put_target.address + transfer->target_offset;
		transfer->process = put_target.process;
		transfer->hold = put_target.hold;
		put_target.hold = NULL;
	}
	return true;
}

/* Before a call is divided among paths it is not known which PUTs move anything. */
static bool is_divided(const struct ferry_member *member, const struct ferry_call *call)
{
	const struct ferry_instr *division = ferry_plan_division(call->steps->plan);
	if (!division)
		return true;
	const struct ferry_counter *counter =
	        &member->shared->arenas[division->domain].counters[call->parity][division->counter];
	uint64_t value = atomic_load_explicit(&counter->value, memory_order_acquire);
	return ferry_counter_slices(value, ferry_call_number(call));
}

bool ferry_put_targets_find(struct ferry_member *member, struct ferry_call *call)
{
	if (call->targets_found == ferry_call_number(call) || !ferry_order_agreed(member, call) ||
	    !is_divided(member, call))
		return false;
	call->targets_found = ferry_call_number(call);
	for (uint64_t left = call->steps->puts_to; left; left &= left - 1)
		if (!find(member, call, ferry_rankset_lowest(left), false) ||
		    !find(member, call, ferry_rankset_lowest(left), true))
			break;
	return true;
}

void ferry_put_targets_release(struct ferry_member *member, struct ferry_call *call)
{
	const struct ferry_half *half = &call->halves[FERRY_DIR_D2H];
	for (uint32_t i = 0; half->transfers && i < half->ntransfers; i++) { /* NULL: it has never run */
		struct ferry_transfer *transfer = &half->transfers[i];
		if (transfer->hold)
			member->ops->released(member, transfer->hold);
		transfer->hold = NULL;
	}
}

/* ---- the end ---- */

void ferry_put_targets_stop(struct ferry_member *member)
{
	if (member->stopped)
		return;
	member->stopped = true;
	atomic_store_explicit(&ferry_member_line(member)->stopped, 1, memory_order_release);
	ferry_wake(member->shared, 0, ferry_rankset_all(member->shared->nranks), 0);
}

/* Whether others put for the call. Reads the transfers as they were made: the D2H lane may be arming the call. */
static bool waits_for_puts(const struct ferry_call *call)
{
	const struct ferry_half *half = &call->halves[FERRY_DIR_H2D];
	uint32_t parity = 0;
	while (parity + 1 < FERRY_PARITIES && !half->prepared[parity])
		parity++;
	for (uint32_t i = 0; half->prepared[parity] && i < half->ntransfers; i++) {
		const struct ferry_transfer *transfer = &half->prepared[parity][i];
		if (transfer->step ? transfer->step->instr->opcode == FERRY_WAIT_PUT : transfer->puts)
			return true;
	}
	return false;
}

/*
 * Bit r: rank r, whose GPU reaches this rank's memory, may still put into it. A rank that has left does not put: its
 * calls are over. Its line may not say `stopped`, if its router had died by then.
 */
static uint64_t putting(const struct ferry_member *member)
{
	const struct ferry_job_arenas *shared = member->shared;
	uint64_t left = ferry_departed(shared);
	uint32_t ended = atomic_load_explicit(&ferry_member_line(member)->ended, memory_order_acquire);
	uint64_t ranks = 0;
	for (uint32_t rank = 0; rank < shared->nranks; rank++) {
		uint32_t domain = shared->rank_domain[rank];
		uint64_t reach = atomic_load_explicit(&shared->arenas[domain].header->reach[rank],
		                                      memory_order_relaxed);
		if (reach >> member->rank & 1 && !(ended >> domain & 1) && !(left >> rank & 1) &&
		    !atomic_load_explicit(&ferry_rank_line(shared, rank)->stopped, memory_order_acquire))
			ranks |= 1ull << rank;
	}
	return ranks;
}

bool ferry_put_targets_are_quiet(struct ferry_member *member, const struct ferry_call *call)
{
	char text[FERRY_RANKSET_TEXT];
	if (!member->awaits_quiet || member->unquiet_since == UINT64_MAX || !waits_for_puts(call))
		return true;
	uint64_t ranks = putting(member), now = ferry_now_ns();
	if (!ranks)
		return true;
	if (!member->unquiet_since)
		member->unquiet_since = now;
	if (now - member->unquiet_since < FERRY_PATIENCE_S * 1000000000ull)
		return false;
	member->unquiet_since = UINT64_MAX;
	ferry_log(FERRY_LOG_WARN,
	          "the job has failed, and for %d s nobody has said that copies of %s into memory of rank %u are over: "
	          "its streams go on all the same",
	          FERRY_PATIENCE_S, ferry_rankset_print(ranks, text), member->rank);
	return true;
}
