/* SPDX-License-Identifier: Apache-2.0 */
#include "router/audit.h"

#include "ipc/collective.h"
#include "router/pair.h"

#include <stdio.h>

#define TEXT FERRY_MESSAGE_BYTES

static const char *name_of(const struct ferry_call *call)
{
	return ferry_collective_name(call->shape & 0xff);
}

/* ---- numbers of calls ---- */

/* The last call that the rank has begun in the bank; perhaps by a router before this one. */
static uint64_t begun_in(const struct ferry_member *member, uint32_t bank)
{
	uint64_t told = atomic_load_explicit(&ferry_member_line(member)->ring[bank].seq, memory_order_acquire);
	return told > member->order.last_seq[bank] ? told : member->order.last_seq[bank];
}

/* The words of a rank by which others begin calls. Each is read before what it is compared with, which only rises. */
static bool rank_is_sane(const struct ferry_member *member, uint32_t rank, uint32_t bank, char *text)
{
	const struct ferry_rank_line *line = ferry_rank_line(member->shared, rank);
	uint64_t seq = atomic_load_explicit(&line->ring[bank].seq, memory_order_acquire);
	uint64_t over = atomic_load_explicit(&line->finished[bank], memory_order_acquire);
	uint64_t most = atomic_load_explicit(&member->order.ending[bank], memory_order_acquire) + FERRY_BANKS;
	uint64_t begun = begun_in(member, bank);
	if (seq && (seq > most || seq % FERRY_BANKS != bank)) {
		snprintf(text, TEXT,
		         "rank %u: the arena says that rank %u is at call %llu, where none after %llu can have begun",
		         member->rank, rank, (unsigned long long)seq, (unsigned long long)most);
		return false;
	}
	if (over && (over > begun || over % FERRY_BANKS != bank)) {
		snprintf(text, TEXT,
		         "rank %u: the arena says that rank %u has finished call %llu, where none after %llu has begun",
		         member->rank, rank, (unsigned long long)over, (unsigned long long)begun);
		return false;
	}
	return true;
}

static bool routers_are_sane(const struct ferry_member *member, uint32_t bank, char *text)
{
	for (uint32_t domain = 0; domain < member->shared->ndomains; domain++) {
		uint64_t over = atomic_load_explicit(&member->shared->arenas[domain].header->finished[bank],
		                                     memory_order_acquire);
		uint64_t begun = begun_in(member, bank);
		if (over <= begun && (!over || over % FERRY_BANKS == bank))
			continue;
		snprintf(text, TEXT,
		         "rank %u: the arena says that domain %u's router has finished call %llu, where none after "
		         "%llu has begun",
		         member->rank, domain, (unsigned long long)over, (unsigned long long)begun);
		return false;
	}
	return true;
}

/* What the rank itself has said. */
static bool own_is_there(const struct ferry_member *member, uint32_t bank, char *text)
{
	uint64_t ended = atomic_load_explicit(&member->order.ended[bank], memory_order_acquire);
	uint64_t said = atomic_load_explicit(&ferry_member_line(member)->finished[bank], memory_order_acquire);
	if (said >= ended)
		return true;
	snprintf(text, TEXT, "rank %u: the arena says that it has finished call %llu, where it has finished %llu",
	         member->rank, (unsigned long long)said, (unsigned long long)ended);
	return false;
}

/* By the D2H lane, which numbers calls. */
static bool order_is_sane(const struct ferry_member *member, char *text)
{
	for (uint32_t bank = 0; bank < FERRY_BANKS; bank++) {
		for (uint32_t rank = 0; rank < member->shared->nranks; rank++)
			if (!rank_is_sane(member, rank, bank, text))
				return false;
		if (!routers_are_sane(member, bank, text) || !own_is_there(member, bank, text))
			return false;
	}
	return true;
}

/* ---- calls under way ---- */

static bool descriptor_is_there(const struct ferry_member *member, const struct ferry_call *call, char *text)
{
	const struct ferry_descriptor *own = &ferry_member_line(member)->ring[call->bank];
	uint64_t seq = atomic_load_explicit(&own->seq, memory_order_acquire);
	uint64_t name = atomic_load_explicit(&own->name, memory_order_relaxed);
	uint32_t domains = atomic_load_explicit(&own->domains, memory_order_relaxed);
	if (seq != ferry_call_number(call)) {
		snprintf(text, TEXT,
		         "rank %u: the arena says that it is at call %llu, where it has submitted %llu (%s)",
		         member->rank, (unsigned long long)seq, (unsigned long long)ferry_call_number(call),
		         name_of(call));
		return false;
	}
	if (name == call->name && domains == call->steps->domains)
		return true;
	snprintf(text, TEXT,
	         "rank %u: the arena says that its call %llu (%s) has name %llu and routers %#x, where it has "
	         "submitted it with name %llu and routers %#x",
	         member->rank, (unsigned long long)seq, name_of(call), (unsigned long long)name, domains,
	         (unsigned long long)call->name, call->steps->domains);
	return false;
}

static bool publishes(const struct ferry_transfer *transfer)
{
	return transfer->step->instr->opcode != FERRY_COPY && transfer->step->instr->opcode != FERRY_LAND;
}

/* The last call of its bank that whoever executes the instruction says is over. */
static uint64_t finished_by(const struct ferry_job_arenas *shared, const struct ferry_instr *instr, uint32_t bank)
{
	const _Atomic uint64_t *word = ferry_opcode_is_work(instr->opcode)
	                                       ? &shared->arenas[instr->owner].header->finished[bank]
	                                       : &ferry_rank_line(shared, instr->owner)->finished[bank];
	return atomic_load_explicit(word, memory_order_acquire);
}

bool ferry_audit_gate(const struct ferry_job_arenas *shared, const struct ferry_plan *plan,
                      const struct ferry_instr *instr, const struct ferry_gate *gates, uint32_t i, uint64_t seq,
                      uint64_t *value)
{
	const struct ferry_edge *edge = &ferry_plan_edges(plan)[instr->first_edge + i];
	uint32_t slices = plan->flags & FERRY_PLAN_VARIABLE ? 0 : gates[i].nslices;
	bool over = finished_by(shared, &ferry_plan_instrs(plan)[edge->instr], seq % FERRY_BANKS) >= seq;
	*value = atomic_load_explicit(&gates[i].counter->value, memory_order_acquire); /* behind that word */
	return ferry_audit_counter(*value, seq, slices ? slices : UINT32_MAX) &&
	       !(over && ferry_counter_slices(*value, seq) < slices);
}

static bool say_counter(const struct ferry_member *member, const struct ferry_call *call, const char *whose,
                        uint64_t value, uint32_t slices, char *text)
{
	uint64_t seq = ferry_call_number(call);
	snprintf(text, TEXT,
	         "rank %u, call %llu (%s): a counter that it %s says %u slices of call %u, where there are %u of call "
	         "%u",
	         member->rank, (unsigned long long)seq, name_of(call), whose, (uint32_t)value, (uint32_t)(value >> 32),
	         slices, (uint32_t)seq);
	return false;
}

static bool gates_are_sane(const struct ferry_member *member, const struct ferry_call *call,
                           const struct ferry_transfer *transfer, char *text)
{
	const struct ferry_step *step = transfer->step;
	uint64_t value, seq = ferry_call_number(call);
	for (uint32_t i = 0; i < step->ngates; i++)
		if (step->gates[i].nslices && !ferry_audit_gate(member->shared, call->steps->plan, step->instr,
		                                                step->gates, i, seq, &value))
			return say_counter(member, call, "waits for", value, step->gates[i].nslices, text);
	return true;
}

static bool own_counter_is_there(const struct ferry_member *member, const struct ferry_call *call,
                                 const struct ferry_transfer *transfer, char *text)
{
	uint64_t value = atomic_load_explicit(&transfer->step->counter->value, memory_order_acquire);
	if (value == ferry_counter_value((uint32_t)ferry_call_number(call), transfer->finished))
		return true;
	return say_counter(member, call, "has published", value, transfer->finished, text);
}

/* Of a half that is this lane's, or over. */
static bool half_is_sane(const struct ferry_member *member, const struct ferry_call *call,
                         enum ferry_direction direction, char *text)
{
	const struct ferry_half *half = &call->halves[direction];
	for (uint32_t i = 0; i < half->ntransfers; i++) {
		const struct ferry_transfer *transfer = &half->transfers[i];
		if (transfer->finished && publishes(transfer) && !own_counter_is_there(member, call, transfer, text))
			return false;
		if (transfer->finished < transfer->nslices && !gates_are_sane(member, call, transfer, text))
			return false;
	}
	return true;
}

static bool collective_is_sane(const struct ferry_seat *seat, const struct ferry_call *call, char *text)
{
	/* the other lane's half is over: acquires what it wrote in it, which stays */
	bool alone = atomic_load_explicit(&call->lanes, memory_order_acquire) == 1;
	if (seat->direction == FERRY_UP && call->stage != FERRY_CALL_SUBMITTED)
		return true;
	if ((seat->direction == FERRY_UP || alone) && !descriptor_is_there(seat->member, call, text))
		return false;
	return half_is_sane(seat->member, call, seat->direction, text) &&
	       (!alone || half_is_sane(seat->member, call, !seat->direction, text));
}

static bool messages_are_sane(const struct ferry_seat *seat, const struct ferry_call *call, char *text)
{
	const struct ferry_half *half = &call->halves[seat->direction];
	for (uint32_t i = 0; i < half->ntransfers; i++) {
		const struct ferry_transfer *transfer = &half->transfers[i];
		if (transfer->current && transfer->finished < transfer->nslices &&
		    !ferry_pair_is_sane(seat, transfer, text, TEXT))
			return false;
	}
	return true;
}

/* What others may wait to read that has no call any more: the D2H lane's numbers and slices of messages, or those. */
static bool told_is_there(const struct ferry_seat *seat, char *text)
{
	const struct ferry_member *member = seat->member;
	for (uint32_t bank = 0; seat->direction == FERRY_UP && bank < FERRY_BANKS; bank++) {
		uint64_t told = atomic_load_explicit(&ferry_member_line(member)->ring[bank].seq, memory_order_acquire);
		if (told == member->order.last_seq[bank])
			continue;
		snprintf(text, TEXT, "rank %u: the arena says that it is at call %llu, where it has come to %llu",
		         member->rank, (unsigned long long)told, (unsigned long long)member->order.last_seq[bank]);
		return false;
	}
	return ferry_pair_told_is_there(seat, text, TEXT);
}

static bool is_sane(const struct ferry_seat *seat, char *text)
{
	if (seat->direction == FERRY_UP && !order_is_sane(seat->member, text))
		return false;
	for (const struct ferry_call *call = seat->calls; call; call = call->halves[seat->direction].next) {
		if (!ferry_call_is_in_run(call, seat->direction))
			continue;
		if (!(call->steps ? collective_is_sane : messages_are_sane)(seat, call, text))
			return false;
	}
	return told_is_there(seat, text);
}

void ferry_audit_seat(struct ferry_seat *seat)
{
	char text[TEXT];
	const struct ferry_member_ops *ops = seat->member->ops;
	if (ops->failed(seat->member))
		return;
	/* not called: the rank may move its data itself, as mapping failed when it was tried */
	if ((seat->called && !is_sane(seat, text)) ||
	    (seat->direction == FERRY_UP && ops->ring_is_sane && !ops->ring_is_sane(seat->member, text, TEXT)))
		ops->fail(seat->member, ferryInternalError, text);
}
