/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/call/short_call.h"

#include "ipc/environment.h"
#include "router/engine/order.h"
#include "router/engine/pair.h"

#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define RELAX_LOOKS 100   /* looks of a waiting thread, or of a maker; then it yields between looks, */
#define SPIN_NS 60000     /* for so long, and then sleeps; */
#define BEHIND_NS 20000   /* one that makes a call waits so long for the call's parity, and then the lanes get it */
#define YIELD_NS 1500     /* a yield that takes longer has let another thread run */
#define SLEEP_YIELDS 64   /* the wait after so many long yields in a row sleeps at once: see yield() */
#define LANES_US 50000    /* a thread sleeps or polls so long, then the lanes get the call */

/*
 * Which thread runs a call. Any thread may take a FREE one, by compare and swap, which makes it HELD; that thread alone
 * stores the next state. GIVEN: the lanes end it, but it is not yet in their line, so no later call may be put there.
 */
enum runner { FREE, HELD, GIVEN, LANES, OVER };

static struct ferry_short_call *of_call(const struct ferry_call *call)
{
	return (struct ferry_short_call *)((char *)call - offsetof(struct ferry_short_call, call));
}

static struct ferry_short_call *of_ticket(struct ferry_ticket *ticket)
{
	return (struct ferry_short_call *)((char *)ticket - offsetof(struct ferry_short_call, ticket));
}

static bool is_messages(const struct ferry_short_call *made)
{
	return !made->call.steps;
}

static struct ferry_rank_line *line_of(const struct ferry_short_call *made)
{
	return ferry_member_line(made->call.member);
}

/* ---- memory ---- */

static void recycle(struct ferry_short_call *made)
{
	struct ferry_half *halves = made->call.halves;
	if (halves[FERRY_DIR_D2H].prepared[0] != made->messages)
		free(halves[FERRY_DIR_D2H].prepared[0]);
	if (made->is_own)
		atomic_store_explicit(&made->shorts->own_used, 0, memory_order_release);
	else
		free(made);
}

static void release(struct ferry_ticket *ticket)
{
	struct ferry_short_call *made = of_ticket(ticket);
	struct ferry_holders *holders = made->shorts->direct->holders;
	recycle(made);
	ferry_holders_drop(holders);
}

/* ---- what the lanes, and the end of a call, ask ---- */

static bool started(const struct ferry_call *call)
{
	return ferry_ticket_started(&of_call(call)->ticket);
}

static void put_down(struct ferry_call *call)
{
	ferry_short_parts_put_down(call, &of_call(call)->parts);
}

static void conclude(struct ferry_call *call)
{
	if (call->steps)
		ferry_short_parts_conclude(call, &of_call(call)->parts);
}

static void finish(struct ferry_call *call, ferryResult_t result, const char *message)
{
	struct ferry_short_call *made = of_call(call);
	uint32_t runner = atomic_load_explicit(&made->runner, memory_order_relaxed);
	if (runner == GIVEN || runner == LANES) {
		ferry_direct_finish(made->shorts->direct, call, &made->ticket, result, message);
	} else if (made->shared) {
		ferry_ticket_finish(&made->ticket, result, message);
	} else {
		made->ticket.result = result;
		made->ticket.message = message;
	}
}

static bool never_forgotten(const struct ferry_call *call)
{
	(void)call;
	return false;
}

static void drop(struct ferry_call *call)
{
	ferry_ticket_drop(&of_call(call)->ticket);
}

static const struct ferry_call_ops short_ops = {.started = started,
                                                .beginning = put_down,
                                                .ending = conclude,
                                                .finish = finish,
                                                .finish_early = true,
                                                .forgotten = never_forgotten,
                                                .release = drop};

/* ---- running ---- */

static bool hold(struct ferry_short_call *made)
{
	uint32_t nobody = FREE;
	return atomic_compare_exchange_strong_explicit(&made->runner, &nobody, HELD, memory_order_acquire,
	                                               memory_order_relaxed);
}

static void ring_lanes(struct ferry_short_call *made)
{
	ferry_doorbell_ring(&line_of(made)->d2h);
	if (ferry_call_descends(&made->call))
		ferry_doorbell_ring(&line_of(made)->h2d);
}

/* Called by the thread that holds the call and has a reference beside the one that the lanes drop. */
static void give_to_lanes(struct ferry_short_call *made)
{
	if (is_messages(made))
		atomic_store_explicit(&line_of(made)->left_messages, 0, memory_order_relaxed);
	ferry_direct_give(made->shorts->direct, &made->call);
	atomic_store_explicit(&made->runner, GIVEN, memory_order_release);
	ferry_full_fence(); /* ranks that submit from now on ring the lane; and as in on_start */
	ferry_lanes_submit(made->call.member, &made->call);
	atomic_store_explicit(&made->runner, LANES, memory_order_release);
	if (ferry_ticket_started(&made->ticket))
		ring_lanes(made);
}

static void on_start(struct ferry_ticket *ticket)
{
	struct ferry_short_call *made = of_ticket(ticket);
	ferry_full_fence(); /* `started` before `runner`; give_to_lanes does it the other way round */
	uint32_t runner = atomic_load_explicit(&made->runner, memory_order_relaxed);
	if (runner == GIVEN || runner == LANES)
		ring_lanes(made);
}

static bool run_collective(struct ferry_call *call)
{
	struct ferry_member *member = call->member;
	if (call->stage != FERRY_CALL_SUBMITTED && ferry_order_start(member, call))
		call->stage = FERRY_CALL_SUBMITTED;
	if (call->stage != FERRY_CALL_SUBMITTED || !ferry_short_parts_only_sends(call))
		return call->stage == FERRY_CALL_SUBMITTED && ferry_order_agreed(member, call);
	ferry_order_hear_later(member, call);
	return true;
}

static bool move(struct ferry_call *call, enum ferry_direction direction)
{
	struct ferry_half *half = &call->halves[direction];
	bool moved = false;
	for (uint32_t i = 0; half->left && i < half->ntransfers; i++)
		moved |= ferry_pair_move(&call->member->lane_ranks[direction], call, &half->transfers[i]);
	return moved;
}

/* Repeats while data moves: a rank may send to itself through a window shorter than the message. */
static bool run_messages(struct ferry_call *call)
{
	call->stage = FERRY_CALL_SUBMITTED;
	while (move(call, FERRY_DIR_D2H) | move(call, FERRY_DIR_H2D))
		;
	return !call->halves[FERRY_DIR_D2H].left && !call->halves[FERRY_DIR_H2D].left;
}

/* Called by the thread that holds the call: runs it as far as it gets. Returns true if it is over. */
static bool run(struct ferry_short_call *made)
{
	struct ferry_call *call = &made->call;
	bool over = is_messages(made) ? run_messages(call) : run_collective(call);
	if (over)
		ferry_order_end(call->member, call);
	return over;
}

/* The thread that runs the call lets it go; from then on another one may run it. */
static void unhold(struct ferry_short_call *made, bool over)
{
	if (!over && (made->call.stage != FERRY_CALL_SUBMITTED || ferry_rank_failed(made->shorts->direct->rank))) {
		give_to_lanes(made);
		return;
	}
	if (over && is_messages(made))
		atomic_store_explicit(&line_of(made)->left_messages, 0, memory_order_relaxed);
	atomic_store_explicit(&made->runner, over ? OVER : FREE, memory_order_release);
	if (over)
		ferry_ticket_drop(&made->ticket); /* in place of the lanes */
}

/* Whether running the call may get it further. */
static bool may_run(const struct ferry_short_call *made)
{
	return is_messages(made) || made->call.stage != FERRY_CALL_SUBMITTED ||
	       !ferry_order_missing(made->call.member, &made->call) ||
	       ferry_rank_failed(made->shorts->direct->rank);
}

/* Runs the call if no thread does. Returns true if it is over or the lanes have it. */
static bool look(struct ferry_short_call *made)
{
	uint32_t runner = atomic_load_explicit(&made->runner, memory_order_acquire);
	if (runner == FREE && may_run(made) && hold(made)) {
		unhold(made, run(made));
		runner = atomic_load_explicit(&made->runner, memory_order_acquire);
	}
	return runner == LANES || runner == OVER;
}

/* ---- waiting ---- */

/*
 * This rank is about to wait for others: wakes the lanes of those that have left their messages. They set left_messages
 * before they looked for the data of this rank, which moved its data before it announced its sleep.
 */
static void wake_left(const struct ferry_short_call *made)
{
	for (enum ferry_direction direction = FERRY_DIR_D2H; is_messages(made) && direction <= FERRY_DIR_H2D;
	     direction++)
		ferry_pair_wake_left(&made->call.member->lane_ranks[direction]);
}

/* Sleeps until another rank rings; after LANES_US the lanes get the call. Returns as `look`. */
static bool sleep_at_bell(struct ferry_short_call *made)
{
	struct ferry_doorbell *bell = &line_of(made)->app;
	uint32_t seen = ferry_doorbell_prepare(bell);
	if (look(made)) {
		ferry_doorbell_cancel(bell);
		return true;
	}
	if (atomic_load_explicit(&made->runner, memory_order_relaxed) != FREE) {
		/* its holder may have looked before the others rang, and rings nobody as it releases the call */
		ferry_doorbell_cancel(bell);
		sched_yield();
		return false;
	}
	wake_left(made);
	uint64_t before = ferry_now_ns();
	ferry_doorbell_wait(bell, seen, LANES_US);
	if (look(made))
		return true;
	if (ferry_now_ns() - before < LANES_US * 1000ull || !hold(made))
		return false;
	give_to_lanes(made);
	return true;
}

/* Looks of a thread at what it waits for. */
struct spin {
	uint32_t looks, relaxes;
	uint64_t since, now;
};


/*
 * Yields, and counts the yields in a row in which another thread ran: the next wait then yields after its first look.
 * Two ranks may share a CPU for long while another CPU is idle, as threads that stay runnable may stay where they are.
 * So now and then a wait sleeps instead: the kernel chooses a CPU for a thread that it wakes.
 */
static uint64_t yield(struct ferry_short_calls *shorts, uint64_t now)
{
	uint32_t taken = atomic_load_explicit(&shorts->yields_taken, memory_order_relaxed);
	sched_yield();
	uint64_t then = ferry_now_ns();
	atomic_store_explicit(&shorts->yields_taken, then - now < YIELD_NS ? 0 : taken + 1, memory_order_relaxed);
	return then;
}

/* Between two looks. False, without a pause, once most_ns have passed since the first yield. */
static bool pause_between(struct ferry_short_calls *shorts, struct spin *spin, uint64_t most_ns)
{
	if (spin->looks++ < spin->relaxes) {
		ferry_relax();
		return true;
	}
	if (!spin->since)
		spin->since = spin->now = ferry_now_ns();
	if (spin->now - spin->since >= most_ns)
		return false;
	spin->now = yield(shorts, spin->now);
	return true;
}

static void wait_for(struct ferry_short_call *made)
{
	struct ferry_short_calls *shorts = made->shorts;
	uint32_t taken = atomic_load_explicit(&shorts->yields_taken, memory_order_relaxed);
	struct spin spin = {.relaxes = taken ? 1 : RELAX_LOOKS};
	/* this thread runs the call now; by now a later call may be the one that was left */
	if (is_messages(made) && !pthread_mutex_trylock(shorts->lock)) {
		if (shorts->left == made)
			atomic_store_explicit(&line_of(made)->left_messages, 0, memory_order_relaxed);
		pthread_mutex_unlock(shorts->lock);
	}
	bool sleeps = taken % SLEEP_YIELDS == SLEEP_YIELDS - 1;
	while (!look(made))
		if (!pause_between(shorts, &spin, sleeps ? 0 : SPIN_NS) && sleep_at_bell(made))
			break;
	if (sleeps && spin.since)
		atomic_store_explicit(&shorts->yields_taken, taken + 1, memory_order_relaxed);
	if (spin.looks && !spin.since) /* as soon as its maker might have seen it: see run_at_once */
		atomic_store_explicit(&shorts->looks, RELAX_LOOKS, memory_order_relaxed);
}

/*
 * Runs a call that may not begin yet, held by this thread: this rank has run ahead of ranks that have not finished the
 * parity's last call. Their callers do so soon, or the lanes get this call. Returns true if it is over.
 */
static bool run_behind(struct ferry_short_call *made)
{
	struct spin spin = {0};
	bool over = false;
	while (!over && made->call.stage != FERRY_CALL_SUBMITTED && pause_between(made->shorts, &spin, BEHIND_NS))
		over = run(made);
	return over;
}

/* Looks without waiting. The lanes get a call that was polled for LANES_US, as in sleep_at_bell. */
static void poll(struct ferry_short_call *made)
{
	uint64_t now = ferry_now_ns(), before = 0;
	if (look(made) || atomic_compare_exchange_strong_explicit(&made->looked_at, &before, now, memory_order_relaxed,
	                                                          memory_order_relaxed))
		return;
	if (now - before > LANES_US * 1000ull && hold(made))
		give_to_lanes(made);
}

static void help(struct ferry_ticket *ticket, bool waits)
{
	if (waits)
		wait_for(of_ticket(ticket));
	else
		poll(of_ticket(ticket));
}

/* ---- making ---- */

void ferry_short_calls_free(struct ferry_short_calls *shorts)
{
	free(shorts->own);
}

/* Memory for a call, held by this thread; NULL: there is none. */
static struct ferry_short_call *call_new(struct ferry_short_calls *shorts)
{
	struct ferry_short_call *made = shorts->own;
	bool used = !made || atomic_load_explicit(&shorts->own_used, memory_order_acquire);
	if (used && !(made = aligned_alloc(_Alignof(struct ferry_short_call), sizeof *made)))
		return NULL;
	shorts->own = shorts->own ? shorts->own : made;
	memset(made, 0, offsetof(struct ferry_short_call, messages));
	made->is_own = made == shorts->own;
	if (made->is_own)
		atomic_store_explicit(&shorts->own_used, 1, memory_order_relaxed);
	made->shorts = shorts;
	made->call.ops = &short_ops;
	made->call.member = &shorts->direct->member;
	atomic_store_explicit(&made->runner, HELD, memory_order_relaxed);
	made->call.halves[FERRY_DIR_D2H].prepared[0] = made->messages;
	return made;
}

/* Makes room for so many messages. False: no memory, and the call is freed. */
static bool has_room(struct ferry_short_call *made, uint32_t count)
{
	struct ferry_half *halves = made->call.halves;
	if (count > FERRY_SHORT_MESSAGES &&
	    !(halves[FERRY_DIR_D2H].prepared[0] = malloc(2 * count * sizeof *made->messages))) {
		halves[FERRY_DIR_D2H].prepared[0] = made->messages;
		recycle(made);
		return false;
	}
	halves[FERRY_DIR_H2D].prepared[0] = halves[FERRY_DIR_D2H].prepared[0] + count;
	return true;
}

/*
 * Runs the call, and looks again for the other ranks' data where it is not there yet. Where ranks call together the
 * data comes a moment later, and a call that never leaves this thread takes a third less time. Looks that find nothing
 * make later calls look less often, down to never: one thread may have several ranks, or work to do before it waits.
 */
static bool run_at_once(struct ferry_short_call *made)
{
	struct ferry_short_calls *shorts = made->shorts;
	uint32_t most = atomic_load_explicit(&shorts->looks, memory_order_relaxed);
	bool over = run(made);
	for (uint32_t looks = 0; !over && looks < most; looks++) {
		ferry_relax();
		over = may_run(made) && run(made);
	}
	if (!over)
		atomic_store_explicit(&shorts->looks, most / 2, memory_order_relaxed);
	return over;
}

/* The stream's lock is held: the stream stays at the call meanwhile. */
static bool enter(struct ferry_ticket *ticket, bool idle)
{
	struct ferry_short_call *made = of_ticket(ticket);
	atomic_store_explicit(&ticket->started, idle, memory_order_relaxed);
	if (idle && run_at_once(made))
		return true;
	ferry_holders_add(made->shorts->direct->holders);
	/* the thread that runs it, the stream, and this thread, or `left` */
	atomic_store_explicit(&ticket->holders, 3, memory_order_relaxed);
	made->shared = true;
	return false;
}

/* Called by the thread that has made the call and holds it: leaves it to the threads that wait. */
static void leave(struct ferry_short_call *made)
{
	/* runs again: either ranks that wait see left_messages, or this run sees their data */
	if (is_messages(made))
		atomic_exchange_explicit(&line_of(made)->left_messages, 1, memory_order_seq_cst);
	unhold(made, is_messages(made) ? run(made) : run_behind(made));
	uint32_t runner = atomic_load_explicit(&made->runner, memory_order_acquire);
	if (runner == LANES || runner == OVER)
		ferry_ticket_drop(&made->ticket);
	else
		made->shorts->left = made;
}

/* Puts the call into its stream, and takes it as far as it gets. */
static ferryResult_t start(struct ferry_short_call *made, ferryStream_t stream)
{
	struct ferry_direct *direct = made->shorts->direct;
	made->ticket.enter = enter;
	made->ticket.on_start = on_start;
	made->ticket.help = help;
	made->ticket.release = release;
	ferryResult_t result = direct->device->ops->enqueue_ticket(stream, &made->ticket);
	if (result) /* as in direct.c: the other ranks may wait for it */
		ferry_rank_fail(direct->rank, result, ferry_last_message());
	if (!made->shared) {
		recycle(made);
	} else if (ferry_ticket_started(&made->ticket)) {
		leave(made);
	} else {
		give_to_lanes(made);
		ferry_ticket_drop(&made->ticket);
	}
	return result;
}

void ferry_short_calls_settle(struct ferry_short_calls *shorts)
{
	struct ferry_short_call *made = shorts->left;
	if (!made)
		return;
	shorts->left = NULL;
	while (!look(made)) {
		if (hold(made)) {
			give_to_lanes(made);
			break;
		}
		sched_yield(); /* another thread holds it, for as long as it sums */
	}
	ferry_ticket_drop(&made->ticket);
}

void ferry_short_calls_hear(struct ferry_short_calls *shorts)
{
	if (!ferry_rank_failed(shorts->direct->rank))
		ferry_order_hear(&shorts->direct->member);
}

/* ---- which calls are short ---- */

/* Called by a lane that a rank has woken, as it waits for messages left here. Always returns true. */
static bool settle_left(struct ferry_direct *direct)
{
	struct ferry_short_calls *shorts = direct->shorts;
	if (pthread_mutex_trylock(shorts->lock))
		return true; /* a call is made: it settles the one left, or is left itself; the lane tries again */
	ferry_short_calls_settle(shorts);
	pthread_mutex_unlock(shorts->lock);
	return true;
}

ferryResult_t ferry_short_calls_open(struct ferry_short_calls *shorts)
{
	const struct ferry_job_arenas *shared = &shorts->direct->rank->shared;
	ferryResult_t result = ferry_env_bytes("FERRY_SHORT", 0, 1ull << 30, 1ull << 20, &shorts->most);
	shorts->place = UINT64_MAX;
	for (uint32_t domain = 0; domain < shared->ndomains; domain++) {
		uint64_t place = shared->arenas[domain].staging_bytes / shared->nranks / 128 * 128;
		shorts->place = place < shorts->place ? place : shorts->place;
	}
	shorts->most = shorts->most < shorts->place ? shorts->most : shorts->place;
	atomic_store_explicit(&shorts->looks, RELAX_LOOKS, memory_order_relaxed);
	shorts->plan.hash = FERRY_SHORT_CALL;
	shorts->steps.plan = &shorts->plan;
	shorts->direct->shorts = shorts;
	shorts->direct->settle = settle_left;
	return result;
}

bool ferry_short_calls_fit(const struct ferry_short_calls *shorts, const struct ferry_request *request)
{
	uint32_t nranks = shorts->direct->member.shared->nranks;
	uint64_t most = shorts->most / ferry_type_size(request->type);
	if (request->collective == FERRY_ALLTOALLV || request->program || request->left_out.count)
		return false;
	if (ferry_collective_sends_blocks(request->collective) && nranks > 2)
		most /= nranks - 1;
	return shorts->most && request->count <= most;
}

ferryResult_t ferry_short_calls_make(struct ferry_short_calls *shorts, const struct ferry_request *request,
                                     uint32_t shape, const struct ferry_redop *factor, uint64_t seq,
                                     ferryStream_t stream)
{
	struct ferry_short_call *made = call_new(shorts);
	if (!made)
		return ferry_fail(ferrySystemError, "no memory for a call");
	struct ferry_call *call = &made->call;
	made->parts = (struct ferry_short_parts){request->send, request->receive, shorts->place};
	call->steps = &shorts->steps;
	call->count = request->count;
	call->root = ferry_collective_has_root(request->collective) ? (uint32_t)request->root : 0;
	call->shape = shape;
	call->scalar = factor->scalar;
	call->device_scalar = factor->device_scalar;
	call->parity = seq % FERRY_PARITIES;
	atomic_store_explicit(&call->lanes, 1, memory_order_relaxed);
	atomic_store_explicit(&call->seq, seq, memory_order_relaxed);
	return start(made, stream);
}

bool ferry_short_messages_fit(const struct ferry_short_calls *shorts, const struct ferry_request *requests,
                              uint32_t nrequests, const struct ferry_fabrics *fabrics)
{
	if (!shorts->most || fabrics ||
	    atomic_load_explicit(&shorts->direct->lane_messages, memory_order_acquire))
		return false;
	for (uint32_t i = 0; i < nrequests; i++)
		if (requests[i].count > shorts->most / ferry_type_size(requests[i].type))
			return false;
	return true;
}

ferryResult_t ferry_short_messages_make(struct ferry_short_calls *shorts, const struct ferry_request *requests,
                                        uint32_t nrequests, ferryStream_t stream,
                                        const struct ferry_fabrics *fabrics)
{
	struct ferry_short_call *made = call_new(shorts);
	if (!made || !has_room(made, nrequests))
		return ferry_fail(ferrySystemError, "no memory for %u sends and receives", nrequests);
	struct ferry_call *call = &made->call;
	for (uint32_t i = 0; i < nrequests; i++) {
		struct ferry_half *half = &call->halves[requests[i].direction];
		ferry_direct_fill_message(shorts->direct, &requests[i], fabrics,
		                          &half->prepared[0][half->ntransfers++]);
		half->all++;
	}
	ferry_call_arm(call, 0);
	atomic_store_explicit(&call->lanes, 1 + ferry_call_descends(call), memory_order_relaxed);
	return start(made, stream);
}
