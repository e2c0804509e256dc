/* SPDX-License-Identifier: Apache-2.0 */
#include "router/lane.h"

#include "ipc/cache.h"
#include "ipc/error.h"
#include "router/order.h"
#include "router/pair.h"

#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#define POLL_LEAST_US 5 /* below this, sleeping takes longer than looking again */
#define POLL_MOST_US 1000
#define SHARED_MOST 8   /* copies under way for one seat, where a lane has several */

/* ---- slices ---- */

static void transfer_done(struct ferry_seat *seat, struct ferry_call *call, struct ferry_transfer *transfer)
{
	if (!transfer->step)
		ferry_pair_done(seat, transfer);
	call->halves[seat->direction].left--;
}

static uint64_t bytes_in_slice(const struct ferry_plan *plan, const struct ferry_transfer *transfer, uint32_t slice)
{
	uint64_t left = transfer->length - (uint64_t)slice * plan->slice;
	return left < plan->slice ? left : plan->slice;
}

/*
 * What a copy engine writes and no cache holds goes to a few ways of the last-level cache, and on to memory as soon as
 * those are full; what is in the cache already is written in place and stays. Cores that reduce bring the windows there
 * by reading them. Windows that only pass data on, from copy engine to copy engine, need a core that reads: this lane,
 * a part of each slice that has arrived, another part each time the slot comes round (AllToAll of 256 MiB:
 * docs/performance.md). Not of a window that nobody reads: its slots wait for nobody, and the next slice may be on its
 * way already.
 */
static void keep_window(const struct ferry_call *call, const struct ferry_transfer *transfer, uint32_t slice)
{
	const struct ferry_plan *plan = call->steps->plan;
	uint64_t seq = ferry_call_number(call), lap = slice / plan->window + ferry_plan_lap(plan, seq);
	ferry_keep_part(transfer->step->window + ferry_plan_slot(plan, seq, slice),
	                bytes_in_slice(plan, transfer, slice), lap);
}

/* A slice has arrived: publish it. */
static void slice_done(struct ferry_lane *lane, const struct ferry_copying *copying)
{
	struct ferry_seat *seat = copying->seat;
	struct ferry_call *call = copying->call;
	struct ferry_transfer *transfer = copying->transfer;
	transfer->finished++;
	if (!transfer->step)
		ferry_pair_publish(seat, transfer);
	else if (transfer->step->instr->opcode != FERRY_COPY)
		ferry_publish(seat->member->shared, transfer->step->instr, transfer->step->counter,
		              ferry_call_number(call), transfer->finished);
	if (lane->lanes->copier->ops->direct_memory_access && transfer->step && transfer->step->only_passes_on)
		keep_window(call, transfer, transfer->finished - 1);
	if (transfer->finished == transfer->nslices)
		transfer_done(seat, call, transfer);
}

static bool reap(struct ferry_lane *lane)
{
	struct ferry_copying copying;
	bool progress = false;
	if (!ferry_copies_any(&lane->copies))
		return false;
	uint64_t finished = ferry_copies_finished(&lane->copies);
	while (ferry_copies_take(&lane->copies, finished, &copying)) {
		slice_done(lane, &copying);
		progress = true;
	}
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
		uint64_t length = atomic_load_explicit(&gate->counter->length, memory_order_relaxed);
		if (slices < (length + slice - 1) / slice && slices < open)
			open = slices;
	}
	return open;
}

/* Variable plans, H2D: false until the sender has told its length; a different one ends the job. */
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

static bool issue_step(struct ferry_lane *lane, struct ferry_seat *seat, struct ferry_call *call,
                       struct ferry_transfer *transfer)
{
	const struct ferry_plan *plan = call->steps->plan;
	const struct ferry_step *step = transfer->step;
	bool variable = plan->flags & FERRY_PLAN_VARIABLE;
	if (variable && step->instr->opcode == FERRY_H2D && !transfer->current) {
		if (!lengths_agree(seat->member, call, transfer))
			return false;
		if (!transfer->nslices) {
			transfer_done(seat, call, transfer);
			return true;
		}
	}
	uint32_t slice = transfer->issued;
	if (slice >= transfer->nslices)
		return false;
	if (slice >= transfer->open) {
		transfer->open = variable ? open_variable(call, transfer)
		                          : ferry_gates_open(step->gates, step->ngates, ferry_call_number(call),
		                                             transfer->nslices);
		if (slice >= transfer->open)
			return false;
	}
	uint64_t start = (uint64_t)slice * plan->slice, bytes = bytes_in_slice(plan, transfer, slice);
	if (step->instr->opcode == FERRY_COPY)
		return ferry_copies_start(&lane->copies, seat, call, transfer, transfer->destination + start,
		                          transfer->user + start, bytes, false);
	char *slot = step->window + ferry_plan_slot(plan, ferry_call_number(call), slice);
	bool up = lane->direction == FERRY_UP;
	return ferry_copies_start(&lane->copies, seat, call, transfer, up ? slot : transfer->user + start,
	                          up ? transfer->user + start : slot, bytes, true);
}

/* One slice of each transfer that has one ready. */
static bool move_slices(struct ferry_lane *lane, struct ferry_seat *seat, struct ferry_call *call)
{
	struct ferry_half *half = &call->halves[seat->direction];
	uint32_t count = half->ntransfers, most = lane->nseats > 1 ? SHARED_MOST : FERRY_MOST_COPIES;
	bool progress = false;
	for (uint32_t i = 0; i < count && half->left; i++) {
		if (seat->under_way >= most || ferry_copies_full(&lane->copies))
			break;
		struct ferry_transfer *transfer = &half->transfers[(half->turn + i) % count];
		if (!(transfer->step ? issue_step(lane, seat, call, transfer)
		                     : ferry_pair_issue(&lane->copies, seat, call, transfer)))
			continue;
		progress = true;
		reap(lane);
	}
	if (count)
		half->turn = (half->turn + 1) % count;
	return progress;
}

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
	if (!call->steps) {
		if (call->name)
			ferry_order_begin_messages(member, call);
		return true;
	}
	if (call->name ? !ferry_order_begin(member, call)
	               : !ferry_order_may_begin(member, ferry_call_number(call), call->after))
		return false;
	member->order.last_seq[call->bank] = ferry_call_number(call);
	ferry_order_submit(member, call);
	return true;
}

/* D2H lane: takes the call from stage to stage as far as it gets; true once its slices may move. */
static bool advance(struct ferry_lane *lane, struct ferry_call *call, bool *progress)
{
	struct ferry_member *member = call->member;
	switch (call->stage) {
	case FERRY_CALL_MADE:
		/* A captured call's last run may still go on in the other lane. */
		if ((call->captured && ferry_call_number(call)) || !call->ops->started(call))
			return false;
		call->stage = FERRY_CALL_REACHED;
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

/* H2D lane: whether the stream has reached the call and, where rank 0 decides, the call has its number. */
static bool may_descend(const struct ferry_call *call)
{
	if (!call->name)
		return call->ops->started(call);
	uint64_t seq = atomic_load_explicit(&call->seq, memory_order_acquire);
	return seq && seq != call->halves[FERRY_DOWN].ended;
}

/* *ended: this lane's half of the call is over. */
static bool call_round(struct ferry_lane *lane, struct ferry_seat *seat, struct ferry_call *call, bool *ended)
{
	bool progress = false, up = seat->direction == FERRY_UP;
	*ended = false;
	if (!(up ? advance(lane, call, &progress) : may_descend(call)))
		return progress;
	progress |= move_slices(lane, seat, call);
	if (!call->halves[seat->direction].left)
		*ended = !up || !call->steps || ferry_order_agreed(seat->member, call);
	return progress || *ended;
}

static void end_half(struct ferry_seat *seat, struct ferry_call *call)
{
	call->halves[seat->direction].ended = ferry_call_number(call);
	if (seat->direction == FERRY_UP && call->captured)
		call->stage = FERRY_CALL_MADE;
	ferry_order_end_half(seat->member, call);
}

static void unlink_call(struct ferry_seat *seat, struct ferry_call **link)
{
	struct ferry_call *call = *link;
	*link = call->halves[seat->direction].next;
	if (!*link)
		seat->calls_end = link;
	ferry_call_drop(call);
}

/* The job has failed: ends this lane's half of the run that a captured call may be in, and any that is asked for. */
static bool fail_captured(struct ferry_seat *seat, struct ferry_call *call)
{
	uint64_t seq = atomic_load_explicit(&call->seq, memory_order_acquire);
	const char *message;
	if (seq && seq != call->halves[seat->direction].ended) {
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
	if (!call->ops->forgotten(call))
		return progress;
	if (seat->direction == FERRY_UP)
		wake_descent(lane, call);
	unlink_call(seat, link);
	return true;
}

static bool plain_round(struct ferry_lane *lane, struct ferry_seat *seat, struct ferry_call **link, bool failed)
{
	struct ferry_call *call = *link;
	bool ended = failed && (call->ops->finish_early || call->ops->started(call)), progress = false;
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
		*seat->calls_end = seat->inbox;
		seat->calls_end = seat->inbox_end;
		seat->inbox = NULL;
		seat->inbox_end = &seat->inbox;
	}
	atomic_store_explicit(&seat->inbox_filled, 0, memory_order_relaxed);
	pthread_mutex_unlock(&seat->inbox_lock);
	return true;
}

static bool seat_round(struct ferry_lane *lane, struct ferry_seat *seat)
{
	const struct ferry_member_ops *ops = seat->member->ops;
	bool progress = is_announced(seat);
	if (seat->direction == FERRY_UP && ops->take)
		progress |= ops->take(seat->member);
	progress |= take_inbox(seat);
	if (!seat->calls)
		return progress;
	bool failed = ops->failed(seat->member);
	if (failed && seat->under_way)
		return progress; /* the device may still write to the buffers of what is under way */
	for (struct ferry_call **link = &seat->calls; *link;) {
		struct ferry_call *call = *link;
		progress |= call->captured ? captured_round(lane, seat, link, failed)
		                           : plain_round(lane, seat, link, failed);
		if (*link == call)
			link = &call->halves[seat->direction].next;
	}
	return progress;
}

static void drop_calls(struct ferry_seat *seat)
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
	void *tickets = realloc(lane->tickets, (capacity + 1) * sizeof *lane->tickets);
	lane->tickets = tickets ? tickets : lane->tickets;
	if (seats && tickets)
		lane->capacity = capacity;
	return seats && tickets;
}

/* Looks at the list of members again. True if it may have changed. */
static bool refresh(struct ferry_lane *lane)
{
	struct ferry_lanes *lanes = lane->lanes;
	if (!lane->anybody_leaves && lane->generation == atomic_load_explicit(&lanes->generation, memory_order_relaxed))
		return false;
	uint64_t before = lane->generation;
	pthread_mutex_lock(&lanes->lock);
	lane->generation = atomic_load_explicit(&lanes->generation, memory_order_relaxed);
	lane->nseats = 0;
	lane->anybody_leaves = false;
	for (struct ferry_member *member = lanes->members; member; member = member->next) {
		struct ferry_seat *seat = &member->seats[lane->direction];
		if (seat->leaves && !seat->left && !seat->under_way) {
			drop_calls(seat);
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

static bool lane_round(struct ferry_lane *lane)
{
	bool progress = refresh(lane), busy = false;
	uint64_t now = 0;
	progress |= reap(lane);
	for (uint32_t i = 0; i < lane->nseats; i++) {
		struct ferry_seat *seat = lane->seats[(lane->turn + i) % lane->nseats];
		bool found = seat_round(lane, seat);
		if (found) {
			seat->idle_since = 0;
			seat->reported = false;
		} else if (!seat->idle_since) {
			seat->idle_since = now = now ? now : ferry_now_ns();
		}
		progress |= found;
		busy |= seat->calls != NULL;
	}
	lane->turn++;
	atomic_store_explicit(&lane->busy, busy, memory_order_relaxed);
	return progress;
}

static bool has_calls(const struct ferry_lane *lane)
{
	return atomic_load_explicit(&lane->busy, memory_order_relaxed);
}

static bool look_once(struct ferry_lane *lane)
{
	bool found = lane_round(lane);
	if (lane->lanes->spin.limit_ns)
		ferry_spin_looked(&lane->lanes->spin, &lane->looker, ferry_now_ns());
	return found;
}

/*
 * For a GPU also behind the last call: the next one often comes soon, and to be woken takes longer than a short one
 * itself. Ranks of host devices usually outnumber the cores, and who looks keeps another from working.
 */
static bool look(struct ferry_lane *lane)
{
	struct ferry_spin *spin = &lane->lanes->spin;
	if (!spin->limit_ns || lane->idle_since || (!has_calls(lane) && !lane->lanes->copier->ops->polled))
		return false;
	uint64_t now = ferry_now_ns(), begun = now;
	while (now - begun < ferry_spin_ns(spin, now) &&
	       !atomic_load_explicit(&lane->lanes->stopping, memory_order_relaxed)) {
		if (look_once(lane))
			return true;
		ferry_relax();
		now = ferry_now_ns();
	}
	return false;
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
 * How long to sleep at most; 0: not at all. A GPU rings no bell. While it copies for this lane, the lane looks again at
 * once. A call that it has not reached is looked for after a 64th of the time already spent waiting, and after
 * POLL_MOST_US at most: that finds it late by less than 2% and costs an idle process next to nothing.
 */
static int64_t sleep_us(struct ferry_lane *lane, uint64_t now)
{
	const struct ferry_copy_ops *ops = lane->lanes->copier->ops;
	/* The other lane may still have calls where this one has none, and hang in the driver. */
	bool busy = has_calls(lane) || (ops->polled && has_calls(&lane->lanes->lane[!lane->direction]));
	int64_t most = busy ? FERRY_WATCH_US : -1;
	if (ferry_copies_any(&lane->copies)) {
		int64_t copy = ops->wait_us(&lane->copies.queue);
		most = copy < most ? copy : most;
	}
	if (!ops->polled || most == 0 || !awaits_start(lane))
		return most;
	int64_t step = (int64_t)((now - lane->idle_since) / 1000 / 64);
	return step < POLL_LEAST_US ? 0 : step < POLL_MOST_US ? step : POLL_MOST_US;
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
}

static void watch(struct ferry_lane *lane, uint64_t now)
{
	if (!ferry_watch_due(&lane->watch, now))
		return;
	ferry_watch_other(&lane->watch, &lane->lanes->lane[!lane->direction].copies, lane->lanes->stall_ns, now);
	for (uint32_t i = 0; i < lane->nseats; i++)
		if (lane->seats[i]->calls)
			ferry_watch_seat(lane->seats[i], now);
	/* With nothing under way one lane stays out of the driver: when the other hangs in there, it can still tell. */
	if (has_calls(lane) && (lane->direction == FERRY_UP || ferry_copies_any(&lane->copies)) &&
	    ferry_copies_check(&lane->copies))
		fail_all(lane);
}

/* ---- the thread ---- */

static uint32_t prepare_sleep(struct ferry_lane *lane)
{
	uint32_t count = 0;
	lane->tickets[count++] = ferry_bell_prepare(lane->bell);
	for (uint32_t i = 0; i < lane->nseats; i++)
		if (lane->seats[i]->bell != lane->bell)
			lane->tickets[count++] = ferry_bell_prepare(lane->seats[i]->bell);
	return count;
}

static bool may_end(struct ferry_lane *lane)
{
	return atomic_load_explicit(&lane->lanes->stopping, memory_order_acquire) && !lane->nseats;
}

static void *lane_main(void *argument)
{
	struct ferry_lane *lane = argument;
	ferry_looker_open(&lane->looker, &lane->lanes->spin);
	if (lane->lanes->copier->ops->polled)
		prctl(PR_SET_TIMERSLACK, 1000ul); /* nanoseconds: short sleeps are short */
	while (1) {
		if (look_once(lane) || look(lane)) {
			lane->idle_since = 0;
			continue;
		}
		uint64_t now = ferry_now_ns();
		if (!lane->idle_since)
			lane->idle_since = now;
		watch(lane, now);
		if (sleep_us(lane, now) == 0) {
			ferry_relax();
			continue;
		}
		uint32_t count = prepare_sleep(lane);
		if (lane_round(lane)) {
			ferry_bells_cancel(lane->tickets, count);
			lane->idle_since = 0;
			continue;
		}
		if (may_end(lane)) {
			ferry_bells_cancel(lane->tickets, count);
			ferry_looker_close(&lane->looker);
			return NULL;
		}
		/* again: the round may have found a new call, for which nobody rings */
		int64_t timeout = sleep_us(lane, now);
		if (timeout == 0)
			ferry_bells_cancel(lane->tickets, count);
		else
			ferry_bells_wait(lane->tickets, count, timeout);
	}
}

/* ---- open, close ---- */

static ferryResult_t lane_open(struct ferry_lanes *lanes, enum ferry_direction direction, struct ferry_doorbell *bell)
{
	struct ferry_lane *lane = &lanes->lane[direction];
	lane->lanes = lanes;
	lane->direction = direction;
	lane->bell = bell ? bell : &lanes->own_bells[direction];
	if (!make_room(lane, 1))
		return ferry_fail(ferrySystemError, "no memory for a lane");
	ferryResult_t result = lanes->copier->ops->queue_open(lanes->copier, direction, &lane->copies.queue);
	if (result)
		return result;
	int refused = pthread_create(&lane->thread, NULL, lane_main, lane);
	if (refused) {
		lanes->copier->ops->queue_close(&lane->copies.queue);
		return ferry_fail(ferrySystemError, "a lane thread: %s", strerror(refused));
	}
	lanes->running++;
	return ferrySuccess;
}

ferryResult_t ferry_lanes_open(struct ferry_lanes *lanes, const struct ferry_lanes_options *options)
{
	ferryResult_t result = ferrySuccess;
	memset(lanes, 0, sizeof *lanes);
	lanes->copier = options->copier;
	lanes->stall_ns = options->stall_ns;
	lanes->spin.limit_ns = options->spin_ns;
	pthread_mutex_init(&lanes->lock, NULL);
	pthread_cond_init(&lanes->changed, NULL);
	for (enum ferry_direction direction = FERRY_UP; !result && direction <= FERRY_DOWN; direction++)
		result = lane_open(lanes, direction, options->bells[direction]);
	if (result)
		ferry_lanes_close(lanes);
	return result;
}

static void ring_lanes(struct ferry_lanes *lanes)
{
	for (enum ferry_direction direction = FERRY_UP; direction <= FERRY_DOWN; direction++)
		ferry_doorbell_ring(lanes->lane[direction].bell);
}

void ferry_lanes_close(struct ferry_lanes *lanes)
{
	if (!lanes->copier)
		return;
	atomic_store_explicit(&lanes->stopping, true, memory_order_release);
	for (uint32_t i = 0; i < lanes->running; i++) {
		ferry_doorbell_ring(lanes->lane[i].bell);
		pthread_join(lanes->lane[i].thread, NULL);
		lanes->copier->ops->queue_close(&lanes->lane[i].copies.queue);
	}
	for (uint32_t i = 0; i < 2; i++) {
		free(lanes->lane[i].seats);
		free(lanes->lane[i].tickets);
	}
	pthread_cond_destroy(&lanes->changed);
	pthread_mutex_destroy(&lanes->lock);
	lanes->copier = NULL;
}

/* ---- members ---- */

void ferry_lanes_join(struct ferry_lanes *lanes, struct ferry_member *member)
{
	struct ferry_rank_line *line = ferry_member_line(member);
	for (enum ferry_direction direction = FERRY_UP; direction <= FERRY_DOWN; direction++) {
		struct ferry_seat *seat = &member->seats[direction];
		seat->member = member;
		seat->direction = direction;
		seat->bell = direction == FERRY_UP ? &line->d2h : &line->h2d;
		seat->inbox_end = &seat->inbox;
		seat->calls_end = &seat->calls;
		pthread_mutex_init(&seat->inbox_lock, NULL);
		for (uint32_t peer = 0; peer < member->shared->nranks; peer++)
			seat->message[peer] = 1;
	}
	pthread_mutex_lock(&lanes->lock);
	member->lanes = lanes;
	member->next = lanes->members;
	lanes->members = member;
	atomic_fetch_add_explicit(&lanes->generation, 1, memory_order_relaxed);
	pthread_mutex_unlock(&lanes->lock);
	ring_lanes(lanes);
}

void ferry_lanes_leave(struct ferry_member *member)
{
	struct ferry_lanes *lanes = member->lanes;
	pthread_mutex_lock(&lanes->lock);
	member->seats[FERRY_UP].leaves = member->seats[FERRY_DOWN].leaves = true;
	atomic_fetch_add_explicit(&lanes->generation, 1, memory_order_relaxed);
	pthread_mutex_unlock(&lanes->lock);
	ring_lanes(lanes);
	pthread_mutex_lock(&lanes->lock);
	while (!member->seats[FERRY_UP].left || !member->seats[FERRY_DOWN].left)
		pthread_cond_wait(&lanes->changed, &lanes->lock);
	for (struct ferry_member **link = &lanes->members; *link; link = &(*link)->next)
		if (*link == member) {
			*link = member->next;
			break;
		}
	pthread_mutex_unlock(&lanes->lock);
	for (enum ferry_direction direction = FERRY_UP; direction <= FERRY_DOWN; direction++)
		pthread_mutex_destroy(&member->seats[direction].inbox_lock);
	member->lanes = NULL;
}

void ferry_lanes_submit(struct ferry_member *member, struct ferry_call *call)
{
	const struct ferry_copy_ops *ops = member->lanes->copier->ops;
	bool descends = ferry_call_descends(call);
	atomic_store_explicit(&call->holders, 1 + descends, memory_order_relaxed);
	for (enum ferry_direction direction = FERRY_UP; direction <= (descends ? FERRY_DOWN : FERRY_UP); direction++) {
		struct ferry_seat *seat = &member->seats[direction];
		struct ferry_half *half = &call->halves[direction];
		pthread_mutex_lock(&seat->inbox_lock);
		half->next = NULL;
		*seat->inbox_end = call;
		seat->inbox_end = &half->next;
		atomic_store_explicit(&seat->inbox_filled, 1, memory_order_release);
		pthread_mutex_unlock(&seat->inbox_lock);
		/*
		 * A device that is polled rings nobody; and waking a thread takes longer than many a call, so it starts
		 * now. Who ends the job rings once: either finds the call in the inbox, or is seen here to have done
		 * so.
		 */
		ferry_full_fence();
		if (ops->polled || member->ops->failed(member))
			ferry_doorbell_ring(seat->bell);
	}
}

void ferry_lanes_announce(struct ferry_member *member, const struct ferry_call *call, uint64_t seq)
{
	bool descends = ferry_call_descends(call);
	for (enum ferry_direction direction = FERRY_UP; direction <= (descends ? FERRY_DOWN : FERRY_UP); direction++) {
		struct ferry_seat *seat = &member->seats[direction];
		atomic_fetch_add_explicit(&seat->announced, 1, memory_order_release);
		ferry_doorbell_ring(seat->bell);
	}
	if (!call->steps || !call->steps->domains)
		return;
	atomic_store_explicit(&ferry_member_line(member)->announced, seq, memory_order_release);
	ferry_wake(member->shared, 0, 0, call->steps->domains);
}
