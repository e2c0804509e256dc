/* SPDX-License-Identifier: Apache-2.0 */
#include "router/lane.h"

#include "ipc/error.h"
#include "ipc/ulimit.h"
#include "router/absence.h"
#include "router/landings.h"
#include "router/order.h"
#include "router/slices.h"
#include "router/traffic.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#define POLL_LEAST_US 5 /* below this, sleeping takes longer than looking again */
#define POLL_MOST_US FERRY_LOOKOUT_US
#define SLEEP_MOST_US 1000000
#define SHARED_MOST 8   /* copies under way for one seat, where a lane has several, of equal weights */

/* ---- calls ---- */

static void wake_descent(struct ferry_lane *lane, const struct ferry_call *call)
{
	const struct ferry_member *member = call->member;
	if (lane->lanes->copier->ops->polled && ferry_call_descends(call)) /* else its stream rings */
		ferry_wake(member->shared, 0, 1ull << member->rank, 0);
}

/* The stream waits: gives the call its number if it has none, and tells the others, once its bank is free. */
static bool begin(struct ferry_member *member, struct ferry_call *call)
{
	bool numbered = !call->name || call->resumed;
	if (!call->steps) {
		if (!numbered)
			ferry_order_begin_messages(member, call);
		call->resumed = false;
		return true;
	}
	if (numbered ? !ferry_order_may_begin(member, ferry_call_number(call), call->after)
	             : !ferry_order_begin(member, call))
		return false;
	member->order.last_seq[call->bank] = ferry_call_number(call);
	if (call->aside)
		memcpy(call->aside, call->aside_from, call->aside_bytes);
	ferry_order_submit(member, call);
	call->resumed = false;
	return true;
}

/* D2H lane: takes the call from stage to stage as far as it gets; true once its slices may move. */
static bool advance(struct ferry_lane *lane, struct ferry_call *call, bool *progress)
{
	struct ferry_member *member = call->member;
	switch (call->stage) {
	case FERRY_CALL_MADE:
		/* A captured call's last run may still go on in the other lane. */
		if ((call->captured && atomic_load_explicit(&call->seq, memory_order_acquire)) ||
		    !call->ops->started(call))
			return false;
		call->stage = FERRY_CALL_REACHED;
		if (call->timed)
			call->reached_ns = ferry_now_ns();
		if (!call->name)
			wake_descent(lane, call);
		/* fall through */
	case FERRY_CALL_REACHED:
		if (!begin(member, call))
			return false;
		if (call->name)
			wake_descent(lane, call);
		call->stage = FERRY_CALL_SUBMITTED;
		*progress = true;
		/* fall through */
	case FERRY_CALL_SUBMITTED:
		return true;
	}
	return false;
}

/*
 * Copies that the seat may have under way. Engines take them in order, so who has three times as many has three times
 * the turns. Never none; and one that is alone at work has as many as where all are, so that who comes next finds no
 * long queue.
 */
static uint32_t most_copies(const struct ferry_lane *lane, const struct ferry_seat *seat)
{
	uint64_t weight = ferry_member_weight(seat->member), all = weight, at_work = 1;
	if (lane->nseats <= 1)
		return FERRY_MOST_COPIES;
	for (uint32_t i = 0; i < lane->nseats; i++) {
		const struct ferry_seat *other = lane->seats[i];
		if (other == seat || (other->idle_since && !other->under_way))
			continue;
		at_work++;
		all += ferry_member_weight(other->member);
	}
	uint64_t room = at_work * SHARED_MOST < FERRY_MOST_COPIES ? at_work * SHARED_MOST : FERRY_MOST_COPIES;
	return room * weight < all ? 1 : (uint32_t)(room * weight / all);
}

/* *ended: this lane's half of the call is over. */
static bool call_round(struct ferry_lane *lane, struct ferry_seat *seat, struct ferry_call *call, bool *ended)
{
	bool progress = false, up = seat->direction == FERRY_UP;
	*ended = false;
	if (!(up ? advance(lane, call, &progress) : ferry_call_is_in_run(call, FERRY_DOWN)))
		return progress;
	if (up && call->steps && call->steps->nputs)
		progress |= ferry_landings_find(seat->member, call);
	progress |= ferry_slices_move(&lane->copies, &lane->pushes, seat, call, most_copies(lane, seat));
	if (!call->halves[seat->direction].left)
		*ended = !up || !call->steps || ferry_order_agreed(seat->member, call);
	return progress || *ended;
}

static void end_half(struct ferry_seat *seat, struct ferry_call *call)
{
	call->halves[seat->direction].ended = ferry_call_number(call);
	ferry_traffic_ends_call(seat);
	if (seat->direction == FERRY_UP) {
		ferry_landings_let_go(seat->member, call);
		if (call->captured)
			call->stage = FERRY_CALL_MADE;
	}
	ferry_order_end_half(seat->member, call);
}

/* Its number is its place among the calls made: it begins only when the call FERRY_BANKS before it is over. */
static bool is_in_line(const struct ferry_call *call)
{
	return call->steps && !call->name;
}

static void unlink_call(struct ferry_seat *seat, struct ferry_call **link)
{
	struct ferry_call *call = *link;
	if (seat->direction == FERRY_UP)
		ferry_landings_let_go(seat->member, call);
	seat->out_of_line -= !is_in_line(call);
	*link = call->halves[seat->direction].next;
	if (!*link)
		seat->calls_end = link;
	ferry_call_drop(call);
}

/* The job has failed: whether its stream must not go on yet, as others put into what it receives. */
static bool is_put_into(struct ferry_seat *seat, const struct ferry_call *call)
{
	return seat->direction == FERRY_DOWN && !ferry_landings_are_quiet(seat->member, call);
}

/* The job has failed: ends this lane's half of the run that a captured call may be in, and any that is asked for. */
static bool fail_captured(struct ferry_seat *seat, struct ferry_call *call)
{
	uint64_t seq = atomic_load_explicit(&call->seq, memory_order_acquire);
	const char *message;
	if (seq && seq != call->halves[seat->direction].ended) {
		if (is_put_into(seat, call))
			return false;
		end_half(seat, call);
		return true;
	}
	if (seq || seat->direction == FERRY_DOWN || !call->ops->started(call))
		return false;
	ferryResult_t result = seat->member->ops->error(seat->member, &message);
	call->ops->finish(call, result, message);
	return true;
}

/* A captured call stays in the lane's list from run to run, until its last graph is gone. */
static bool captured_round(struct ferry_lane *lane, struct ferry_seat *seat, struct ferry_call **link, bool failed)
{
	struct ferry_call *call = *link;
	bool ended = false, progress = failed ? fail_captured(seat, call) : call_round(lane, seat, call, &ended);
	if (ended)
		end_half(seat, call);
	/* Whatever the rank says, its copies may be under way while this half of a run is. */
	uint64_t seq = atomic_load_explicit(&call->seq, memory_order_acquire);
	if ((seq && seq != call->halves[seat->direction].ended) || !call->ops->forgotten(call))
		return progress;
	if (seat->direction == FERRY_UP)
		wake_descent(lane, call);
	unlink_call(seat, link);
	return true;
}

static bool plain_round(struct ferry_lane *lane, struct ferry_seat *seat, struct ferry_call **link, bool failed)
{
	struct ferry_call *call = *link;
	bool ended = failed && (call->ops->finish_early || call->ops->started(call)) && !is_put_into(seat, call);
	bool progress = false;
	if (!failed)
		progress = call_round(lane, seat, call, &ended);
	if (!ended)
		return progress;
	end_half(seat, call);
	unlink_call(seat, link);
	return true;
}

/* ---- seats ---- */

/* True if a call is about to come: a lane that was asleep looks for it then. */
static bool is_announced(struct ferry_seat *seat)
{
	uint32_t announced = atomic_load_explicit(&seat->announced, memory_order_acquire);
	bool any = announced != seat->seen_announced;
	seat->seen_announced = announced;
	return any;
}

/* True if there was a call: it is looked for closely at first, however long the lane had nothing to do before. */
static bool take_inbox(struct ferry_seat *seat)
{
	if (!atomic_load_explicit(&seat->inbox_filled, memory_order_acquire))
		return false;
	pthread_mutex_lock(&seat->inbox_lock);
	if (seat->inbox) {
		seat->called = true;
		for (const struct ferry_call *call = seat->inbox; call; call = call->halves[seat->direction].next)
			seat->out_of_line += !is_in_line(call);
		*seat->calls_end = seat->inbox;
		seat->calls_end = seat->inbox_end;
		seat->inbox = NULL;
		seat->inbox_end = &seat->inbox;
	}
	atomic_store_explicit(&seat->inbox_filled, 0, memory_order_relaxed);
	pthread_mutex_unlock(&seat->inbox_lock);
	return true;
}

/*
 * The job has failed, and no copy is under way. Others' buffers: whether the calls end depends on the rank's streams,
 * or on what it says of them.
 */
static void stop_putting(struct ferry_seat *seat)
{
	for (struct ferry_call *call = seat->calls; call; call = call->halves[FERRY_UP].next)
		ferry_landings_let_go(seat->member, call);
	ferry_landings_stop(seat->member);
}

static bool seat_round(struct ferry_lane *lane, struct ferry_seat *seat)
{
	const struct ferry_member_ops *ops = seat->member->ops;
	bool progress = is_announced(seat);
	if (seat->direction == FERRY_UP && ops->take)
		progress |= ops->take(seat->member);
	progress |= take_inbox(seat);
	if (!seat->calls && (seat->direction == FERRY_DOWN || seat->member->stopped))
		return progress;
	/* for good, whatever anybody writes into the arenas: others have been told */
	bool stopped = seat->direction == FERRY_UP && seat->member->stopped;
	bool failed = stopped || ops->failed(seat->member);
	if (failed && seat->under_way)
		return progress; /* the device may still write to the buffers of what is under way */
	if (failed && seat->direction == FERRY_UP) /* also of calls that were taken since */
		stop_putting(seat);
	if (failed && ops->shut && !ops->shut(seat->member, seat->direction))
		return progress; /* others may */
	/*
	 * Callers run far ahead: of hundreds of calls in line the first of each bank can get on, and the rest is not
	 * looked at.
	 */
	uint32_t banks = 0; /* bit b: a call in line that runs in bank b has been looked at */
	for (struct ferry_call **link = &seat->calls; *link;) {
		struct ferry_call *call = *link;
		if (!failed && is_in_line(call)) {
			if (banks == (1u << FERRY_BANKS) - 1 && !seat->out_of_line)
				break;
			if (banks >> call->bank & 1) {
				link = &call->halves[seat->direction].next;
				continue;
			}
			banks |= 1u << call->bank;
		}
		progress |= call->captured ? captured_round(lane, seat, link, failed)
		                           : plain_round(lane, seat, link, failed);
		if (*link == call)
			link = &call->halves[seat->direction].next;
	}
	return progress || (!failed && ferry_absence_end(seat));
}

void ferry_lane_drop_calls(struct ferry_seat *seat)
{
	take_inbox(seat);
	while (seat->calls)
		unlink_call(seat, &seat->calls);
}

static bool make_room(struct ferry_lane *lane, uint32_t nseats)
{
	if (nseats <= lane->capacity)
		return true;
	uint32_t capacity = 2 * nseats;
	void *seats = realloc(lane->seats, capacity * sizeof *lane->seats);
	lane->seats = seats ? seats : lane->seats;
	void *bells = realloc(lane->bells, (capacity + 1) * sizeof *lane->bells);
	lane->bells = bells ? bells : lane->bells;
	if (seats && bells)
		lane->capacity = capacity;
	return seats && bells;
}

static void free_room(struct ferry_lane *lane)
{
	free(lane->seats);
	free(lane->bells);
	lane->seats = NULL;
	lane->bells = NULL;
}

/* Looks at the list of members again. True if it may have changed. */
static bool refresh(struct ferry_lane *lane)
{
	struct ferry_lanes *lanes = lane->lanes;
	if (!lane->anybody_leaves && lane->generation == atomic_load_explicit(&lanes->generation, memory_order_relaxed))
		return false;
	if (lane->nbells)
		return true; /* the bell of who leaves goes with it, and the lane is about to touch it again */
	uint64_t before = lane->generation;
	pthread_mutex_lock(&lanes->lock);
	lane->generation = atomic_load_explicit(&lanes->generation, memory_order_relaxed);
	lane->nseats = 0;
	lane->anybody_leaves = false;
	for (struct ferry_member *member = lanes->members; member; member = member->next) {
		struct ferry_seat *seat = &member->seats[lane->direction];
		if (seat->leaves && !seat->left && !seat->under_way) {
			ferry_lane_drop_calls(seat);
			seat->left = true;
			pthread_cond_broadcast(&lanes->changed);
		}
		if (seat->left)
			continue;
		lane->anybody_leaves |= seat->leaves;
		if (make_room(lane, lane->nseats + 1))
			lane->seats[lane->nseats++] = seat;
		else
			lane->generation = before; /* again, when there is memory */
	}
	pthread_mutex_unlock(&lanes->lock);
	return true;
}

/* ---- rounds ---- */

/* Nothing of a captured call is under way in this lane, and may not be for hours. */
static bool is_at_rest(const struct ferry_call *call, enum ferry_direction direction)
{
	if (!call->captured)
		return false;
	if (direction == FERRY_UP)
		return call->stage == FERRY_CALL_MADE;
	uint64_t seq = atomic_load_explicit(&call->seq, memory_order_acquire);
	return !seq || seq == call->halves[direction].ended;
}

static bool any_at_work(const struct ferry_seat *seat)
{
	const struct ferry_call *call = seat->calls;
	while (call && is_at_rest(call, seat->direction))
		call = call->halves[seat->direction].next;
	return call;
}

static bool lane_round(struct ferry_lane *lane)
{
	bool progress = refresh(lane), busy = false;
	uint64_t now = 0;
	progress |= ferry_slices_reap(&lane->copies, &lane->pushes);
	for (uint32_t i = 0; i < lane->nseats; i++) {
		struct ferry_seat *seat = lane->seats[(lane->turn + i) % lane->nseats];
		bool found = seat_round(lane, seat);
		if (found) {
			seat->idle_since = 0;
			seat->reported = false;
			if (seat->awaiting)
				ferry_traffic_awaits(seat, 0, 0);
		} else if (!seat->idle_since) {
			seat->idle_since = now = now ? now : ferry_now_ns();
		}
		progress |= found;
		busy |= any_at_work(seat);
	}
	lane->turn++;
	atomic_store_explicit(&lane->busy, busy, memory_order_relaxed);
	return progress;
}

static bool is_busy(const struct ferry_lane *lane)
{
	return atomic_load_explicit(&lane->busy, memory_order_relaxed);
}

/*
 * Whether it looks before it sleeps. For a GPU also behind the last call: the next one often comes soon, and to be
 * woken takes longer than a short one itself. Ranks of host devices usually outnumber the cores, and who looks keeps
 * another from working.
 */
static bool may_look(const struct ferry_lane *lane)
{
	return (is_busy(lane) || lane->lanes->copier->ops->polled) &&
	       !atomic_load_explicit(&lane->lanes->stopping, memory_order_relaxed);
}

/* Whether the D2H lane has a call that its stream has not reached, or may reach again. It wakes the other one. */
static bool awaits_start(const struct ferry_lane *lane)
{
	for (uint32_t i = 0; lane->direction == FERRY_UP && i < lane->nseats; i++)
		for (const struct ferry_call *call = lane->seats[i]->calls; call; call = call->halves[FERRY_UP].next)
			if (call->stage == FERRY_CALL_MADE)
				return true;
	return false;
}

/*
 * How long to sleep at most; 0: not at all. Never for ever: the bell is in the arena, where another rank of the job may
 * have written that nobody sleeps at it. A GPU rings no bell. While it copies for this lane, the lane looks again at
 * once. A call that it has not reached is looked for after a 64th of the time already spent waiting, which finds it
 * late by less than 2%, and after POLL_MOST_US at most: a router has a lookout for that, and the lane sleeps on.
 */
static int64_t sleep_us(struct ferry_lane *lane, uint64_t now)
{
	const struct ferry_copy_ops *ops = lane->lanes->copier->ops;
	/* The other lane may still have calls where this one has none, and hang in the driver. */
	bool busy = is_busy(lane) || (ops->polled && is_busy(&lane->lanes->lane[!lane->direction]));
	int64_t most = busy ? FERRY_WATCH_US : SLEEP_MOST_US;
	if (ferry_copies_any(&lane->copies)) {
		int64_t copy = ops->wait_us(&lane->copies.queue);
		most = copy < most ? copy : most;
	}
	most = ferry_pushes_wait_us(&lane->pushes, most);
	if (!ops->polled || most == 0 || !awaits_start(lane))
		return most;
	int64_t step = (int64_t)(ferry_idle_ns(&lane->idle, now) / 1000 / 64);
	if (step >= POLL_MOST_US)
		return lane->lanes->lookout ? most : POLL_MOST_US;
	return step < POLL_LEAST_US ? 0 : step;
}

/*
 * By the lookout, while the lane sleeps: for streams that have come to a call, and for graphs that have gone, whose
 * buffers the lane would hold on to.
 */
static void look_for_start(struct ferry_sleeper *sleeper)
{
	const struct ferry_lane *lane = (struct ferry_lane *)((char *)sleeper - offsetof(struct ferry_lane, sleeper));
	for (uint32_t i = 0; i < lane->nseats; i++)
		for (const struct ferry_call *call = lane->seats[i]->calls; call; call = call->halves[FERRY_UP].next)
			if (call->stage == FERRY_CALL_MADE &&
			    (call->ops->started(call) || (call->captured && call->ops->forgotten(call)))) {
				ferry_doorbell_ring(lane->bell);
				return;
			}
}

/* Nothing is copied any more. */
static void fail_all(struct ferry_lane *lane)
{
	struct ferry_copying copying;
	for (uint32_t i = 0; i < lane->nseats; i++)
		if (lane->seats[i]->calls)
			lane->seats[i]->member->ops->fail(lane->seats[i]->member, ferryUnhandledDeviceError,
			                                  ferry_last_message());
	while (ferry_copies_take(&lane->copies, UINT64_MAX, &copying))
		;
	for (uint32_t i = 0; i < FERRY_PUSH_QUEUES; i++)
		while (ferry_copies_take(&lane->pushes.queues[i], UINT64_MAX, &copying))
			;
}

static void watch(struct ferry_lane *lane, uint64_t now)
{
	if (!ferry_watch_due(&lane->watch, now))
		return;
	const struct ferry_lane *other = &lane->lanes->lane[!lane->direction];
	ferry_watch_other(&lane->watch, !lane->direction, &other->driving, lane->lanes->stall_ns, now);
	for (uint32_t i = 0; i < lane->nseats; i++)
		if (lane->seats[i]->idle_since)
			ferry_watch_seat(lane->seats[i], now);
	/* With nothing under way one lane stays out of the driver: when the other hangs in there, it can still tell. */
	if (is_busy(lane) && (lane->direction == FERRY_UP || ferry_copies_any(&lane->copies)) &&
	    (ferry_copies_check(&lane->copies) || ferry_pushes_check(&lane->pushes)))
		fail_all(lane);
}

/* ---- the thread ---- */

static void prepare_sleep(struct ferry_lane *lane)
{
	for (uint32_t i = 0; i < lane->nseats; i++)
		ferry_traffic_rests(lane->seats[i]);
	lane->bells[lane->nbells++] = ferry_bell_prepare(lane->bell);
	for (uint32_t i = 0; i < lane->nseats; i++)
		if (lane->seats[i]->bell != lane->bell)
			lane->bells[lane->nbells++] = ferry_bell_prepare(lane->seats[i]->bell);
}

static void cancel_sleep(struct ferry_lane *lane)
{
	ferry_bells_cancel(lane->bells, lane->nbells);
	lane->nbells = 0;
}

/* bells: of prepare_sleep. */
static void sleep_at_bells(struct ferry_lane *lane, int64_t timeout)
{
	bool looked_for = lane->lanes->lookout && (timeout < 0 || timeout >= POLL_MOST_US) && awaits_start(lane);
	if (looked_for)
		ferry_lookout_enter(lane->lanes->lookout, &lane->sleeper);
	ferry_bells_wait(lane->bells, lane->nbells, timeout);
	if (looked_for)
		ferry_lookout_leave(lane->lanes->lookout, &lane->sleeper);
	lane->nbells = 0;
}

static bool may_end(struct ferry_lane *lane)
{
	return atomic_load_explicit(&lane->lanes->stopping, memory_order_acquire) && !lane->nseats;
}

static void *lane_main(void *argument)
{
	struct ferry_lane *lane = argument;
	bool asked = false;
	ferry_priority_take(lane->lanes->priority, &asked);
	ferry_idle_open(&lane->idle, &lane->lanes->spin);
	if (lane->lanes->copier->ops->polled)
		prctl(PR_SET_TIMERSLACK, 1000ul); /* nanoseconds: short sleeps are short */
	while (1) {
		bool found = lane_round(lane);
		/* who does not spin needs no clock as long as he finds something */
		uint64_t now = found && !lane->lanes->spin.limit_ns ? 0 : ferry_now_ns();
		ferry_idle_looked(&lane->idle, now);
		if (found) {
			ferry_idle_found(&lane->idle);
			if (now && lane->nseats > 1) /* one's work is no reason to leave another alone */
				watch(lane, now);
			continue;
		}
		if (ferry_idle_looks_on(&lane->idle, now) && may_look(lane)) {
			ferry_relax();
			continue;
		}
		watch(lane, now);
		if (sleep_us(lane, now) == 0) {
			ferry_relax();
			continue;
		}
		prepare_sleep(lane);
		if (lane_round(lane)) {
			cancel_sleep(lane);
			ferry_idle_found(&lane->idle);
			continue;
		}
		if (may_end(lane)) {
			cancel_sleep(lane);
			ferry_idle_close(&lane->idle);
			return NULL;
		}
		/* again: the round may have found a new call, for which nobody rings */
		int64_t timeout = sleep_us(lane, now);
		if (timeout == 0) {
			cancel_sleep(lane);
			continue;
		}
		sleep_at_bells(lane, timeout);
	}
}

ferryResult_t ferry_lane_open(struct ferry_lanes *lanes, enum ferry_direction direction, struct ferry_doorbell *bell)
{
	struct ferry_lane *lane = &lanes->lane[direction];
	lane->lanes = lanes;
	lane->direction = direction;
	lane->bell = bell ? bell : &lanes->own_bells[direction];
	lane->sleeper.look = look_for_start;
	lane->pushes.copier = lanes->copier;
	lane->pushes.driving = &lane->driving;
	if (!make_room(lane, 1)) {
		free_room(lane);
		return ferry_fail(ferrySystemError, "no memory for a lane");
	}
	ferryResult_t result = ferry_copies_open(&lane->copies, lanes->copier, direction, &lane->driving);
	if (result) {
		free_room(lane);
		return result;
	}
	int refused = pthread_create(&lane->thread, NULL, lane_main, lane);
	if (refused) {
		lanes->copier->ops->queue_close(&lane->copies.queue);
		free_room(lane);
		return ferry_fail(ferrySystemError, "a lane thread: %s%s", strerror(refused),
		                  ferry_ulimit_threads_hint(refused));
	}
	return ferrySuccess;
}

void ferry_lane_close(struct ferry_lane *lane)
{
	ferry_doorbell_ring(lane->bell);
	pthread_join(lane->thread, NULL);
	lane->lanes->copier->ops->queue_close(&lane->copies.queue);
	ferry_pushes_close(&lane->pushes);
	free_room(lane);
}
