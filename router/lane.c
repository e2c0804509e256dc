/* SPDX-License-Identifier: Apache-2.0 */
#include "router/lane.h"

#include "router/landings.h"
#include "router/order.h"
#include "router/slices.h"
#include "router/traffic.h"

#include <stdlib.h>
#include <string.h>

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
	return progress || (!failed && ferry_stall_end_departed(seat));
}

void ferry_lane_drop_calls(struct ferry_seat *seat)
{
	take_inbox(seat);
	while (seat->calls)
		unlink_call(seat, &seat->calls);
}

bool ferry_lane_make_room(struct ferry_lane *lane, uint32_t nseats)
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

void ferry_lane_free_room(struct ferry_lane *lane)
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
		if (ferry_lane_make_room(lane, lane->nseats + 1))
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

bool ferry_lane_round(struct ferry_lane *lane)
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
