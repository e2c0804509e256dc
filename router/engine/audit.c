/* SPDX-License-Identifier: Apache-2.0 */
#include "router/engine/audit.h"

#include "ipc/collective.h"
#include "router/engine/pair.h"

#include <stdio.h>

#define TEXT FERRY_MESSAGE_BYTES
#define NO_RANK UINT32_MAX

/* ---- numbers of calls ---- */

/* A field of a parity that holds the number of a call. It was read before its bounds, which only rise. */
struct number {
	enum { OWN, RANK, ROUTER } whose;
	uint32_t of;           /* RANK, ROUTER: which */
	bool finished;         /* else it is the call that one is at */
	uint64_t value;
	uint64_t least, most;  /* that it can be; the same: what has been stored */
};

static bool say_number(const struct number *number, uint32_t rank, char *text)
{
	char self[24] = "", subject[40] = "it", bound[64];
	if (rank != NO_RANK)
		snprintf(self, sizeof self, "rank %u: ", rank);
	if (number->whose == RANK)
		snprintf(subject, sizeof subject, "rank %u", number->of);
	else if (number->whose == ROUTER)
		snprintf(subject, sizeof subject, "the router of domain %u", number->of);
	if (number->value < number->least || (number->least && number->least == number->most))
		snprintf(bound, sizeof bound, "it has %s %llu", number->finished ? "finished" : "come to",
		         (unsigned long long)number->least);
	else
		snprintf(bound, sizeof bound, "none after %llu %s begun", (unsigned long long)number->most,
		         number->finished ? "has" : "can have");
	snprintf(text, TEXT, "%sthe arena says that %s %s call %llu, where %s", self, subject,
	         number->finished ? "has finished" : "is at", (unsigned long long)number->value, bound);
	return false;
}

/* rank: the rank whose lane checks. */
static bool number_fits(const struct number *number, uint32_t parity, uint32_t rank, char *text)
{
	bool fits = number->value >= number->least && number->value <= number->most &&
	            (!number->value || number->value % FERRY_PARITIES == parity);
	return fits || say_number(number, rank, text);
}

static uint64_t acquire(const _Atomic uint64_t *flag)
{
	return atomic_load_explicit(flag, memory_order_acquire);
}

/* The last call that the rank has begun in the parity; perhaps by a router before this one. */
static uint64_t begun_in(const struct ferry_member *member, uint32_t parity)
{
	uint64_t logged = acquire(&ferry_member_line(member)->ring[parity].seq);
	uint64_t last = acquire(&member->order.last_seq[parity]);
	return logged > last ? logged : last;
}

/* Checks the fields by which others begin calls. */
static bool order_fits(const struct ferry_member *member, uint32_t parity, char *text)
{
	for (uint32_t rank = 0; rank < member->shared->nranks; rank++) {
		const struct ferry_rank_line *line = ferry_rank_line(member->shared, rank);
		struct number at = {.whose = RANK, .of = rank, .value = acquire(&line->ring[parity].seq)};
		struct number over = {.whose = RANK,
		                      .of = rank,
		                      .finished = true,
		                      .value = acquire(&line->finished[parity])};
		at.most = acquire(&member->order.ending[parity]) + FERRY_PARITIES;
		over.most = begun_in(member, parity);
		if (!number_fits(&at, parity, member->rank, text) || !number_fits(&over, parity, member->rank, text))
			return false;
	}
	for (uint32_t domain = 0; domain < member->shared->ndomains; domain++) {
		const struct ferry_arena_header *header = member->shared->arenas[domain].header;
		struct number over = {.whose = ROUTER,
		                      .of = domain,
		                      .finished = true,
		                      .value = acquire(&header->finished[parity])};
		over.most = begun_in(member, parity);
		if (!number_fits(&over, parity, member->rank, text))
			return false;
	}
	struct number own = {.finished = true, .least = acquire(&member->order.ended[parity]), .most = UINT64_MAX};
	own.value = acquire(&ferry_member_line(member)->finished[parity]); /* it was stored before that */
	return number_fits(&own, parity, member->rank, text);
}

/* The call that the rank's line says it is at. */
static bool own_call_fits(const struct ferry_member *member, uint32_t parity, uint64_t stored, char *text)
{
	uint64_t logged = acquire(&ferry_member_line(member)->ring[parity].seq);
	const struct number at = {.value = logged, .least = stored, .most = stored};
	return number_fits(&at, parity, member->rank, text);
}

/* ---- counters ---- */

/*
 * Whether a counter can hold that, of `most` slices (UINT32_MAX: not known), as long as call `seq` of its parity is not
 * over: it has that call's tag, or that of one before in the parity.
 */
static bool counter_fits(uint64_t value, uint64_t seq, uint32_t most)
{
	int32_t ahead = (int32_t)((uint32_t)(value >> 32) - (uint32_t)seq);
	return !value || (ahead <= 0 && ahead % FERRY_PARITIES == 0 && (ahead || (uint32_t)value <= most));
}

/* A counter's value and its bounds. */
struct slices {
	const char *verb; /* of the counter's writer or reader: "has published", "waits for" */
	uint64_t value;
	uint32_t least, most;
};

static bool say_slices(const struct slices *slices, const char *subject, uint64_t seq, char *text)
{
	snprintf(text, TEXT,
	         "%s %s says %u slices of call %u, where there are %u to %u of call %u", subject, slices->verb,
	         (uint32_t)slices->value, (uint32_t)(slices->value >> 32), slices->least, slices->most, (uint32_t)seq);
	return false;
}

/* The last call of its parity that the rank or router that executes the instruction has finished. */
static uint64_t finished_by(const struct ferry_job_arenas *shared, const struct ferry_instr *instr, uint32_t parity)
{
	return acquire(ferry_opcode_is_work(instr->opcode) ? &shared->arenas[instr->owner].header->finished[parity]
	                                                   : &ferry_rank_line(shared, instr->owner)->finished[parity]);
}

/*
 * Checks an instruction's gates; *slices: the one that does not fit. A rank or router that has finished the call has
 * published all of it.
 */
static bool gates_fit(const struct ferry_job_arenas *shared, const struct ferry_plan *plan,
                      const struct ferry_instr *instr, const struct ferry_gate *gates, uint32_t ngates, uint64_t seq,
                      struct slices *slices)
{
	for (uint32_t i = 0; i < ngates; i++) {
		const struct ferry_edge *edge = &ferry_plan_edges(plan)[instr->first_edge + i];
		uint32_t most = plan->flags & FERRY_PLAN_VARIABLE ? UINT32_MAX : gates[i].nslices;
		if (!gates[i].nslices)
			continue;
		bool over = finished_by(shared, &ferry_plan_instrs(plan)[edge->instr], seq % FERRY_PARITIES) >= seq;
		uint64_t value = acquire(&gates[i].counter->value); /* after finished_by */
		uint32_t least = over && most != UINT32_MAX ? most : 0;
		if (counter_fits(value, seq, most) && ferry_counter_slices(value, seq) >= least)
			continue;
		*slices = (struct slices){"waits for", value, least, gates[i].nslices};
		return false;
	}
	return true;
}

/* ---- a lane's calls ---- */

static bool descriptor_fits(const struct ferry_member *member, const struct ferry_call *call, char *text)
{
	const struct ferry_descriptor *own = &ferry_member_line(member)->ring[call->parity];
	if (!own_call_fits(member, call->parity, ferry_call_number(call), text))
		return false;
	uint64_t name = atomic_load_explicit(&own->name, memory_order_relaxed);
	uint32_t domains = atomic_load_explicit(&own->domains, memory_order_relaxed);
	if (name == call->name && domains == call->steps->domains)
		return true;
	snprintf(text, TEXT,
	         "rank %u: the arena says that its call %llu (%s) has name %llu and routers %#x, where it has "
	         "submitted it with name %llu and routers %#x",
	         member->rank, (unsigned long long)ferry_call_number(call), ferry_collective_name(call->shape & 0xff),
	         (unsigned long long)name, domains, (unsigned long long)call->name, call->steps->domains);
	return false;
}

static bool publishes(const struct ferry_transfer *transfer)
{
	return transfer->step->instr->opcode != FERRY_COPY && transfer->step->instr->opcode != FERRY_WAIT_PUT;
}

static bool transfer_fits(const struct ferry_member *member, const struct ferry_call *call,
                          const struct ferry_transfer *transfer, struct slices *slices)
{
	const struct ferry_step *step = transfer->step;
	uint64_t seq = ferry_call_number(call);
	if (transfer->finished && publishes(transfer)) {
		uint32_t stored = transfer->finished;
		*slices = (struct slices){"has published", acquire(&step->counter->value), stored, stored};
		if (slices->value != ferry_counter_value((uint32_t)seq, stored))
			return false;
	}
	return transfer->finished == transfer->nslices || gates_fit(member->shared, call->steps->plan, step->instr,
	                                                            step->gates, step->ngates, seq, slices);
}

/* A half that is this lane's, or over. */
static bool half_fits(const struct ferry_member *member, const struct ferry_call *call, enum ferry_direction direction,
                      char *text)
{
	const struct ferry_half *half = &call->halves[direction];
	uint64_t seq = ferry_call_number(call);
	struct slices slices;
	char subject[96];
	for (uint32_t i = 0; i < half->ntransfers; i++) {
		if (transfer_fits(member, call, &half->transfers[i], &slices))
			continue;
		snprintf(subject, sizeof subject, "rank %u, call %llu (%s): a counter that it", member->rank,
		         (unsigned long long)seq, ferry_collective_name(call->shape & 0xff));
		return say_slices(&slices, subject, seq, text);
	}
	return true;
}

static bool collective_fits(const struct ferry_lane_rank *lane_rank, const struct ferry_call *call, char *text)
{
	/* the other lane's half is over: acquires what it wrote in it, which stays */
	bool alone = atomic_load_explicit(&call->lanes, memory_order_acquire) == 1;
	if (lane_rank->direction == FERRY_DIR_D2H && call->stage != FERRY_CALL_SUBMITTED)
		return true;
	if ((lane_rank->direction == FERRY_DIR_D2H || alone) && !descriptor_fits(lane_rank->member, call, text))
		return false;
	return half_fits(lane_rank->member, call, lane_rank->direction, text) &&
	       (!alone || half_fits(lane_rank->member, call, !lane_rank->direction, text));
}

static bool messages_fit(const struct ferry_lane_rank *lane_rank, const struct ferry_call *call, char *text)
{
	const struct ferry_half *half = &call->halves[lane_rank->direction];
	for (uint32_t i = 0; i < half->ntransfers; i++) {
		const struct ferry_transfer *transfer = &half->transfers[i];
		if (transfer->current && transfer->finished < transfer->nslices &&
		    !ferry_pair_is_sane(lane_rank, transfer, text, TEXT))
			return false;
	}
	return true;
}

/* The D2H lane numbers calls. What no call has any more others may still wait to read. */
static bool lane_rank_fits(const struct ferry_lane_rank *lane_rank, char *text)
{
	const struct ferry_member *member = lane_rank->member;
	uint32_t parities = lane_rank->direction == FERRY_DIR_D2H ? FERRY_PARITIES : 0;
	for (uint32_t parity = 0; parity < parities; parity++)
		if (!order_fits(member, parity, text))
			return false;
	for (const struct ferry_call *call = lane_rank->calls; call; call = call->halves[lane_rank->direction].next)
		if (ferry_call_is_in_run(call, lane_rank->direction) &&
		    !(call->steps ? collective_fits : messages_fit)(lane_rank, call, text))
			return false;
	for (uint32_t parity = 0; parity < parities; parity++)
		if (!own_call_fits(member, parity, acquire(&member->order.last_seq[parity]), text))
			return false;
	return ferry_pair_published_is_there(lane_rank, text, TEXT);
}

void ferry_audit_lane_rank(struct ferry_lane_rank *lane_rank)
{
	char text[TEXT];
	const struct ferry_member_ops *ops = lane_rank->member->ops;
	const struct ferry_order *order = &lane_rank->member->order;
	if (ops->failed(lane_rank->member))
		return;
	/* not called: the rank may move its data itself, as mapping failed when it was tried */
	uint64_t went = acquire(&order->callers_went);
	bool fits = !lane_rank->called || lane_rank_fits(lane_rank, text);
	if (!fits && acquire(&order->callers_came) != went)
		fits = true; /* a short call was begun or ended meanwhile */
	if (!fits ||
	    (lane_rank->direction == FERRY_DIR_D2H && ops->ring_is_sane &&
	     !ops->ring_is_sane(lane_rank->member, text, TEXT)))
		ops->fail(lane_rank->member, ferryInternalError, text);
}

/* ---- a job's works ---- */

/* Workers publish meanwhile: so this reads what they have logged, then the counter, then what they are about to log. */
static bool work_fits(const struct ferry_job *job, const struct ferry_plan *plan, const struct ferry_work *work,
                      uint64_t seq, struct slices *slices)
{
	uint32_t logged = atomic_load_explicit(&work->logged, memory_order_acquire);
	uint64_t value = acquire(&work->counter->value);
	uint32_t published = atomic_load_explicit(&work->published, memory_order_acquire);
	*slices = (struct slices){"has published", value, logged, published};
	return counter_fits(value, seq, published) && ferry_counter_slices(value, seq) >= logged &&
	       gates_fit(&job->shared, plan, work->instr, work->gates, work->instr->nedges, seq, slices);
}

/* The call may end meanwhile, and the next one begin: what was found is of the call only if it runs still. */
static bool run_fits(const struct ferry_job *job, uint32_t parity, char *text)
{
	const struct ferry_run *run = &job->runs[parity];
	uint64_t seq = acquire(&run->seq);
	const struct ferry_job_plan *entry = seq ? atomic_load_explicit(&run->plan, memory_order_relaxed) : NULL;
	struct slices slices;
	char subject[64];
	for (uint32_t i = 0; entry && i < entry->works.nworks; i++) {
		if (work_fits(job, entry->plan, &entry->works.works[parity][i], seq, &slices))
			continue;
		snprintf(subject, sizeof subject, "call %llu: a counter that the router", (unsigned long long)seq);
		return acquire(&run->seq) != seq || say_slices(&slices, subject, seq, text);
	}
	struct number over = {.whose = ROUTER, .of = job->domain, .finished = true, .most = UINT64_MAX};
	over.least = acquire(&run->ended);
	over.value = acquire(&job->shared.arenas[job->domain].header->finished[parity]); /* it was stored before that */
	return number_fits(&over, parity, NO_RANK, text);
}

void ferry_audit_job(struct ferry_job *job)
{
	char text[TEXT];
	if (!atomic_load_explicit(&job->ready, memory_order_acquire) ||
	    atomic_load_explicit(&job->dead, memory_order_acquire))
		return;
	ferry_job_report_again(job);
	for (uint32_t parity = 0; parity < FERRY_PARITIES; parity++)
		if (!run_fits(job, parity, text)) {
			ferry_job_fail(job, ferryInternalError, text);
			return;
		}
}
