/* SPDX-License-Identifier: Apache-2.0 */
#include "router/engine/stall.h"

#include "ipc/error.h"
#include "ipc/publish.h"
#include "ipc/rankset.h"
#include "router/engine/order.h"
#include "router/engine/pair.h"
#include "router/engine/traffic.h"

#include <stdio.h>

#define UNKNOWN UINT32_MAX

/* ---- the instruction that all others wait for ---- */

static struct ferry_counter *counter_of(const struct ferry_job_arenas *shared, const struct ferry_instr *instr,
                                        uint64_t seq)
{
	return &shared->arenas[instr->domain].counters[seq % FERRY_PARITIES][instr->counter];
}

static uint32_t published(const struct ferry_job_arenas *shared, const struct ferry_instr *instr, uint64_t seq)
{
	uint64_t value = atomic_load_explicit(&counter_of(shared, instr, seq)->value, memory_order_acquire);
	return ferry_counter_slices(value, seq);
}

/*
 * In alltoallv the sender announces the length, which is also the receiver's. A transfer that is divided among paths
 * has its part in its own counter.
 */
static uint32_t slices_of(const struct ferry_job_arenas *shared, const struct ferry_plan *plan,
                          const struct ferry_instr *instr, uint64_t seq)
{
	const struct ferry_edge *edges = ferry_plan_edges(plan) + instr->first_edge;
	if (!(plan->flags & FERRY_PLAN_VARIABLE) || instr->opcode == FERRY_DIVIDE)
		return instr->nslices;
	for (uint32_t i = 0; instr->opcode == FERRY_H2D && i < instr->nedges; i++)
		if (!edges[i].lag)
			instr = &ferry_plan_instrs(plan)[edges[i].instr];
	const struct ferry_instr *division = instr->path ? ferry_plan_division(plan) : NULL;
	if (division && !published(shared, division, seq))
		return UNKNOWN;
	struct ferry_counter *counter = counter_of(shared, instr, seq);
	uint64_t value = atomic_load_explicit(&counter->value, memory_order_acquire);
	if ((uint32_t)(value >> 32) != (uint32_t)seq)
		return UNKNOWN;
	uint64_t length = atomic_load_explicit(division ? &counter->part : &counter->length, memory_order_relaxed);
	return (uint32_t)((length + plan->slice - 1) / plan->slice);
}

static bool may_run(const struct ferry_job_arenas *shared, const struct ferry_plan *plan,
                    const struct ferry_instr *instr, uint64_t seq, uint32_t slice)
{
	const struct ferry_edge *edges = ferry_plan_edges(plan) + instr->first_edge;
	for (uint32_t i = 0; i < instr->nedges; i++) {
		const struct ferry_instr *other = &ferry_plan_instrs(plan)[edges[i].instr];
		uint32_t nslices = slices_of(shared, plan, other, seq);
		uint32_t wanted = slice < nslices ? slice + 1 : nslices;
		if ((uint64_t)published(shared, other, seq) + edges[i].lag < wanted)
			return false;
	}
	return true;
}

/* Instructions without a counter, COPY and WAIT_PUT, hold up only their own rank's call. */
static bool is_counted(const struct ferry_instr *instr)
{
	return instr->opcode != FERRY_COPY && instr->opcode != FERRY_WAIT_PUT;
}

bool ferry_stall_find(const struct ferry_job_arenas *shared, const struct ferry_plan *plan, uint64_t seq,
                      struct ferry_stalled *stalled)
{
	stalled->instr = NULL;
	for (uint32_t i = 0; i < plan->ninstrs; i++) {
		const struct ferry_instr *instr = &ferry_plan_instrs(plan)[i];
		uint32_t nslices = slices_of(shared, plan, instr, seq), slice = published(shared, instr, seq);
		bool over = !is_counted(instr) || nslices == UNKNOWN || slice >= nslices;
		if (over || (stalled->instr && slice >= stalled->slice) || !may_run(shared, plan, instr, seq, slice))
			continue;
		*stalled = (struct ferry_stalled){.instr = instr, .slice = slice, .nslices = nslices};
	}
	if (!stalled->instr)
		return false;
	uint32_t owner = stalled->instr->owner;
	bool work = ferry_opcode_is_work(stalled->instr->opcode);
	stalled->router = work || atomic_load_explicit(&ferry_rank_line(shared, owner)->copy_quiesce,
	                                               memory_order_acquire) == FERRY_COPY_QUIESCE_ROUTER;
	stalled->number = stalled->router && !work ? shared->rank_domain[owner] : owner;
	return true;
}

/* ---- the blocker of a call ---- */

enum blocker_kind {
	NO_BLOCKER, /* the call waits for its own stream, or is about to begin */
	NUMBERING,  /* rank 0, which has not reached the call, so that it has no number */
	REACHING,   /* ranks that have not reached the call */
	FINISHING,  /* ranks, or a router, that have not finished call `before`: this call may not begin */
	MESSAGES,   /* ranks that messages of the call come from, or go to */
	/* all ranks are in the call: the rank or router with an instruction that could run, or this lane itself */
	RUNNING
};

struct blocker {
	enum blocker_kind kind;
	const struct ferry_call *call;
	uint64_t ranks, before;
	const struct ferry_transfer *message; /* MESSAGES: the first one */
};

static const char *name_of(const struct ferry_call *call)
{
	return ferry_collective_name(call->shape & 0xff);
}

static const char *direction_name(enum ferry_direction direction)
{
	return direction == FERRY_DIR_D2H ? "D2H" : "H2D";
}

static void find_messages(const struct ferry_lane_rank *lane_rank, uint64_t among, struct blocker *blocker)
{
	const struct ferry_half *half = &blocker->call->halves[lane_rank->direction];
	blocker->kind = RUNNING;
	if (lane_rank->direction == FERRY_DIR_D2H && blocker->call->stage != FERRY_CALL_SUBMITTED)
		return;
	for (uint32_t i = 0; i < half->ntransfers; i++) {
		const struct ferry_transfer *transfer = &half->transfers[i];
		if (!(among >> transfer->peer & 1) || !ferry_pair_waits(lane_rank, transfer))
			continue;
		if (!blocker->ranks)
			blocker->message = transfer;
		blocker->kind = MESSAGES;
		blocker->ranks |= 1ull << transfer->peer;
	}
}

/* What the call waits for, as far as the lane of this lane rank knows. among: of peers only these. */
static struct blocker find_blocker(const struct ferry_lane_rank *lane_rank, const struct ferry_call *call,
                                   uint64_t among)
{
	const struct ferry_member *member = lane_rank->member;
	struct blocker blocker = {.call = call};
	if (!ferry_call_is_in_run(call, lane_rank->direction)) {
		/* rank 0's streams have not come to it, or run others first */
		bool unnumbered = lane_rank->direction == FERRY_DIR_D2H && member->rank && call->steps && call->name &&
		                  !atomic_load_explicit(&call->seq, memory_order_acquire) && call->ops->started(call);
		blocker.kind = unnumbered ? NUMBERING : NO_BLOCKER;
		blocker.ranks = unnumbered;
		return blocker;
	}
	if (!call->steps) {
		find_messages(lane_rank, among, &blocker);
		return blocker;
	}
	blocker.ranks = ferry_order_missing(member, call);
	blocker.kind = blocker.ranks ? REACHING : RUNNING;
	if (blocker.ranks >> member->rank & 1) { /* only the D2H lane reads the order of calls */
		blocker.before = lane_rank->direction == FERRY_DIR_D2H
		                         ? ferry_order_blocked_by(member, call, &blocker.ranks)
		                         : 0;
		blocker.kind = blocker.before ? FINISHING : NO_BLOCKER;
		blocker.ranks = blocker.before ? blocker.ranks : 0;
	}
	return blocker;
}

/*
 * The blocker of the first call that has begun, as later calls may wait for it; else of the first call without a
 * number.
 */
static struct blocker first_blocker(const struct ferry_lane_rank *lane_rank)
{
	struct blocker first = {0};
	for (const struct ferry_call *call = lane_rank->calls; call; call = call->halves[lane_rank->direction].next) {
		if (first.kind == NUMBERING && !ferry_call_is_in_run(call, lane_rank->direction))
			continue;
		struct blocker blocker = find_blocker(lane_rank, call, UINT64_MAX);
		if (ferry_call_is_in_run(call, lane_rank->direction))
			return blocker;
		if (blocker.kind == NUMBERING)
			first = blocker;
	}
	return first;
}

/* ---- a blocker that has left ---- */

static void format_departed(const struct ferry_lane_rank *lane_rank, const struct blocker *blocker, uint64_t departed,
                            char *text, size_t bytes)
{
	const struct ferry_call *call = blocker->call;
	const struct ferry_member *member = lane_rank->member;
	bool d2h = lane_rank->direction == FERRY_DIR_D2H;
	uint32_t rank = ferry_rankset_lowest(departed);
	const struct ferry_arena *arena = &member->shared->arenas[member->shared->rank_domain[rank]];
	bool died = atomic_load_explicit(&arena->header->gone, memory_order_relaxed) >> rank & 1;
	int said = died ? snprintf(text, bytes, "rank %u of %u died: ", rank, member->shared->nranks)
	                : snprintf(text, bytes, "rank %u has left the communicator: ", rank);
	text += said;
	bytes -= (size_t)said;
	if (blocker->kind == NUMBERING)
		snprintf(text, bytes, "it gives no number to a call (%s) of rank %u", name_of(call), member->rank);
	else if (blocker->kind == MESSAGES)
		snprintf(text, bytes, "it %s message %llu %s rank %u", d2h ? "takes no" : "sends no",
		         (unsigned long long)blocker->message->message, d2h ? "from" : "to", member->rank);
	else
		snprintf(text, bytes, "it takes no part in call %llu (%s) of rank %u",
		         (unsigned long long)ferry_call_number(call), name_of(call), member->rank);
}

bool ferry_stall_end_departed(struct ferry_lane_rank *lane_rank)
{
	struct ferry_member *member = lane_rank->member;
	char text[160];
	/* Read first: all that the lane reads of these ranks afterwards is final. */
	uint64_t departed = ferry_departed(member->shared);
	if (!departed)
		return false;
	for (const struct ferry_call *call = lane_rank->calls; call; call = call->halves[lane_rank->direction].next) {
		struct blocker blocker = find_blocker(lane_rank, call, departed);
		/* the call that has to finish first is in this list, too, or about to be over */
		if (blocker.kind == FINISHING || !(blocker.ranks & departed))
			continue;
		if (!ferry_departed_are_over(member->shared, departed))
			return false; /* the rank that finishes the last of those calls wakes this lane */
		format_departed(lane_rank, &blocker, blocker.ranks & departed, text, sizeof text);
		member->ops->fail(member, ferryRemoteError, text);
		return true;
	}
	return false;
}

/* ---- messages ---- */

/*
 * Communicators may share a stream, on GPUs the default one of all threads: two ranks that use them in different orders
 * wait for each other.
 */
static void format_beside(struct ferry_member *member, char *text, size_t bytes)
{
	uint32_t calls = member->ops->beside(member);
	if (calls)
		snprintf(text, bytes,
		         "; %u call%s of other communicators of its process %s not over, either: if they share a "
		         "stream, do all ranks call in the same order?",
		         calls, calls == 1 ? "" : "s", calls == 1 ? "is" : "are");
}

static void format_ranks(struct ferry_member *member, const struct blocker *blocker, char *text, size_t bytes)
{
	const struct ferry_call *call = blocker->call;
	char blamed[FERRY_RANKSET_TEXT] = "the routers", beside[160] = "";
	unsigned long long seq = ferry_call_number(call);
	uint32_t router;
	if (blocker->ranks)
		ferry_rankset_print(blocker->ranks, blamed);
	else if ((router = ferry_order_blocking_router(member, blocker->before)) < FERRY_MAX_DOMAINS)
		snprintf(blamed, sizeof blamed, "the router of domain %u", router);
	if (blocker->kind == REACHING)
		format_beside(member, beside, sizeof beside);
	if (blocker->kind == NUMBERING)
		snprintf(text, bytes, "for rank 0 to reach a %scall (%s)", call->captured ? "captured " : "",
		         name_of(call));
	else if (blocker->kind == REACHING)
		snprintf(text, bytes, "for %s to reach call %llu (%s)%s", blamed, seq, name_of(call), beside);
	else
		snprintf(text, bytes, "for %s to finish call %llu, before call %llu (%s)", blamed,
		         (unsigned long long)blocker->before, seq, name_of(call));
}

static void format_messages(const struct ferry_lane_rank *lane_rank, const struct blocker *blocker, char *text,
                            size_t bytes)
{
	uint64_t others = blocker->ranks & ~(1ull << blocker->message->peer);
	char message[128], ranks[FERRY_RANKSET_TEXT];
	ferry_pair_format_wait(lane_rank, blocker->message, message, sizeof message);
	snprintf(text, bytes, "for %s%s%s", message, others ? "; so it has for " : "",
	         others ? ferry_rankset_print(others, ranks) : "");
}

static void format_instr(const struct ferry_job_arenas *shared, const struct ferry_call *call,
                         const struct ferry_stalled *stalled, char *text, size_t bytes)
{
	char blamed[96];
	uint32_t process = stalled->router ? 0
	                                   : atomic_load_explicit(&ferry_rank_line(shared, stalled->number)->process,
	                                                          memory_order_relaxed);
	if (stalled->router && !ferry_opcode_is_work(stalled->instr->opcode))
		snprintf(blamed, sizeof blamed, "the router of domain %u, which moves the data of rank %u,",
		         stalled->number, stalled->instr->owner);
	else if (stalled->router)
		snprintf(blamed, sizeof blamed, "the router of domain %u", stalled->number);
	else if (process)
		snprintf(blamed, sizeof blamed, "rank %u (process %u)", stalled->number, process);
	else
		snprintf(blamed, sizeof blamed, "rank %u", stalled->number);
	snprintf(text, bytes, "in call %llu (%s) for %s to run %s, slice %u of %u",
	         (unsigned long long)ferry_call_number(call), name_of(call), blamed,
	         ferry_opcode_name(stalled->instr->opcode), stalled->slice + 1, stalled->nslices);
}

/* What the lane has copied of the call. */
struct copied {
	uint32_t issued, finished, slices;
};

static struct copied count_copied(const struct ferry_half *half)
{
	struct copied copied = {0};
	for (uint32_t i = 0; i < half->ntransfers; i++) {
		copied.issued += half->transfers[i].issued;
		copied.finished += half->transfers[i].finished;
		copied.slices += half->transfers[i].nslices;
	}
	return copied;
}

/* The lane waits for its own copies, not for another rank. */
static void format_copies(const struct ferry_lane_rank *lane_rank, const struct ferry_call *call,
                          const struct copied *copied, unsigned long long seconds, char *line, size_t bytes)
{
	char what[64];
	snprintf(what, sizeof what, "%s", lane_rank->direction == FERRY_DIR_D2H ? "sends" : "receives");
	if (call->steps)
		snprintf(what, sizeof what, "call %llu (%s)", (unsigned long long)ferry_call_number(call),
		         name_of(call));
	snprintf(line, bytes,
	         "rank %u, %s lane: no progress for %llu s in %s: %u of %u slices copied, %u copies under way",
	         lane_rank->member->rank, direction_name(lane_rank->direction), seconds, what, copied->finished,
	         copied->slices, copied->issued - copied->finished);
}

static void format_blocker(struct ferry_lane_rank *lane_rank, const struct blocker *blocker, unsigned long long seconds,
                           char *line, size_t bytes)
{
	const struct ferry_call *call = blocker->call;
	struct copied copied = count_copied(&call->halves[lane_rank->direction]);
	struct ferry_member *member = lane_rank->member;
	struct ferry_stalled stalled;
	char what[FERRY_MESSAGE_BYTES - 96];
	bool idle = copied.issued == copied.finished, runs = blocker->kind == RUNNING && call->steps;
	if (blocker->kind == NUMBERING || blocker->kind == REACHING || blocker->kind == FINISHING) {
		format_ranks(member, blocker, what, sizeof what);
	} else if (blocker->kind == MESSAGES && idle) {
		format_messages(lane_rank, blocker, what, sizeof what);
	} else if (runs && idle &&
	           ferry_stall_find(member->shared, call->steps->plan, ferry_call_number(call), &stalled)) {
		format_instr(member->shared, call, &stalled, what, sizeof what);
	} else {
		format_copies(lane_rank, call, &copied, seconds, line, bytes);
		return;
	}
	snprintf(line, bytes, "rank %u has waited %llu s %s", member->rank, seconds, what);
}

/* Logs the line, once per wait; where the wait is too long to go on, fails the job with it. */
static void notify(struct ferry_lane_rank *lane_rank, const struct ferry_timeout *timeout, uint64_t waited,
                   const char *line)
{
	const struct ferry_member_ops *ops = lane_rank->member->ops;
	char text[FERRY_MESSAGE_BYTES];
	if (ferry_timeout_over(timeout->fails, waited)) {
		snprintf(text, sizeof text, "FERRY_TIMEOUT: %s", line);
		ops->fail(lane_rank->member, ferryRemoteError, text);
	} else if (!lane_rank->reported) {
		ferry_log(FERRY_LOG_WARN, "%s", line);
	}
	lane_rank->reported = true;
}

/* True once for each call: the lane may have slept when it began, so the wait counts from now on. */
static bool is_new(struct ferry_lane_rank *lane_rank, const struct ferry_call *call)
{
	uint64_t number = ferry_call_number(call);
	if (lane_rank->watched == call && lane_rank->watched_number == number)
		return false;
	lane_rank->watched = call;
	lane_rank->watched_number = number;
	return true;
}

/* Whether the wait counts. A wait for the rank's own stream does not; the D2H lane reports ranks that have not come. */
static bool is_to_be_reported(struct ferry_lane_rank *lane_rank, const struct blocker *blocker)
{
	if (!blocker->call ||
	    (lane_rank->direction == FERRY_DIR_H2D && blocker->call->steps && blocker->kind != RUNNING))
		return false;
	return blocker->kind == NUMBERING || !is_new(lane_rank, blocker->call);
}

static void report(struct ferry_lane_rank *lane_rank, const struct blocker *blocker, uint64_t now)
{
	struct ferry_member *member = lane_rank->member;
	struct ferry_timeout timeout = member->ops->timeout ? member->ops->timeout(member) : (struct ferry_timeout){0};
	char line[FERRY_MESSAGE_BYTES - 16];
	if (member->ops->failed(member))
		return;
	if (!is_to_be_reported(lane_rank, blocker))
		lane_rank->excused_at = now;
	uint64_t since = lane_rank->idle_since > lane_rank->excused_at ? lane_rank->idle_since
	                                                               : lane_rank->excused_at;
	uint64_t waited = now > since && lane_rank->idle_since ? now - since : 0;
	if (!(ferry_timeout_over(timeout.reports, waited) && !lane_rank->reported) &&
	    !ferry_timeout_over(timeout.fails, waited))
		return;
	if (blocker->kind == NO_BLOCKER) {
		lane_rank->reported = true;
		return;
	}
	format_blocker(lane_rank, blocker, waited / 1000000000, line, sizeof line);
	notify(lane_rank, &timeout, waited, line);
}

void ferry_stall_watch_lane_rank(struct ferry_lane_rank *lane_rank, uint64_t now)
{
	struct blocker blocker = first_blocker(lane_rank);
	uint64_t ranks = blocker.ranks & ~(1ull << lane_rank->member->rank);
	if (lane_rank->direction == FERRY_DIR_H2D && blocker.kind != MESSAGES)
		ranks = 0;
	if (lane_rank->idle_since && now - lane_rank->idle_since >= FERRY_STALL_LOOK_US * 1000ull)
		ferry_traffic_awaits(lane_rank, ranks, lane_rank->idle_since);
	atomic_store_explicit(&ferry_traffic_of(lane_rank)->looked, now, memory_order_relaxed);
	report(lane_rank, &blocker, now);
	lane_rank->member->ops->check(lane_rank->member);
}
