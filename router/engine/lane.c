/* SPDX-License-Identifier: Apache-2.0 */
#include "router/engine/lane.h"

#include "router/engine/order.h"
#include "router/engine/put_targets.h"
#include "router/engine/slices.h"
#include "router/engine/traffic.h"

#include <stdlib.h>
#include <string.h>

#define SHARED_MOST 8 /* copies under way for one lane rank, where a lane has several, of equal weights */

/* ---- calls ---- */

static void wake_child_keys(struct ferry_lane *lane, const struct ferry_call *call)
{
	const struct ferry_member *member = call->member;
	if (lane->lanes->copier->ops->polled && ferry_call_descends(call)) /* else its stream rings */
		ferry_wake(member->shared, 0, 1ull << member->rank, 0);
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
		if (!call->name)
			wake_child_keys(lane, call);
		/* fall through */
	case FERRY_CALL_REACHED:
		if (!ferry_order_start(member, call))
			return false;
		if (call->name)
			wake_child_keys(lane, call);
		call->stage = FERRY_CALL_SUBMITTED;
		*progress = true;
		/* fall through */
	case FERRY_CALL_SUBMITTED:
		return true;
	}
	return false;
}

/*
 * How many copies the lane rank may have under way, at least 1. Engines take copies in order, so a lane rank with three
 * times as many gets three times the turns. A lane rank that works alone gets no more than beside others, so that the
 * next one to come finds a short queue.
 */
static uint32_t most_copies(const struct ferry_lane *lane, const struct ferry_lane_rank *lane_rank)
{
	uint64_t weight = ferry_member_weight(lane_rank->member), all = weight, at_work = 1;
	if (lane->nlane_ranks <= 1)
		return FERRY_MOST_COPIES;
	for (uint32_t i = 0; i < lane->nlane_ranks; i++) {
		const struct ferry_lane_rank *other = lane->lane_ranks[i];
		if (other == lane_rank || (other->idle_since && !other->under_way))
			continue;
		at_work++;
		all += ferry_member_weight(other->member);
	}
	uint64_t room = at_work * SHARED_MOST < FERRY_MOST_COPIES ? at_work * SHARED_MOST : FERRY_MOST_COPIES;
	return room * weight < all ? 1 : (uint32_t)(room * weight / all);
}

/* *ended: this lane's half of the call is over. */
static bool call_round(struct ferry_lane *lane, struct ferry_lane_rank *lane_rank, struct ferry_call *call, bool *ended)
{
	bool progress = false, d2h = lane_rank->direction == FERRY_DIR_D2H;
	*ended = false;
	if (!(d2h ? advance(lane, call, &progress) : ferry_call_is_in_run(call, FERRY_DIR_H2D)))
		return progress;
	if (d2h && call->steps && call->steps->nputs)
		progress |= ferry_put_targets_find(lane_rank->member, call);
	progress |= ferry_slices_move(&lane->copies, &lane->pushes, lane_rank, call, most_copies(lane, lane_rank));
	if (!call->halves[lane_rank->direction].left)
		*ended = !d2h || !call->steps || ferry_order_agreed(lane_rank->member, call);
	return progress || *ended;
}

static void end_half(struct ferry_lane_rank *lane_rank, struct ferry_call *call)
{
	call->halves[lane_rank->direction].ended = ferry_call_number(call);
	ferry_traffic_ends_call(lane_rank);
	if (lane_rank->direction == FERRY_DIR_D2H) {
		ferry_put_targets_release(lane_rank->member, call);
		if (call->captured)
			call->stage = FERRY_CALL_MADE;
	}
	ferry_order_end_half(lane_rank->member, call);
}

/* Whether its number is its place among the calls made. It begins when the call FERRY_PARITIES before it is over. */
static bool is_in_line(const struct ferry_call *call)
{
	return call->steps && !call->name;
}

static void unlink_call(struct ferry_lane_rank *lane_rank, struct ferry_call **link)
{
	struct ferry_call *call = *link;
	if (lane_rank->direction == FERRY_DIR_D2H)
		ferry_put_targets_release(lane_rank->member, call);
	lane_rank->out_of_line -= !is_in_line(call);
	*link = call->halves[lane_rank->direction].next;
	if (!*link)
		lane_rank->calls_end = link;
	ferry_call_drop(call);
}

/* The job has failed. Whether the call must not end yet, as other ranks may still put into its receive buffer. */
static bool is_put_into(struct ferry_lane_rank *lane_rank, const struct ferry_call *call)
{
	return lane_rank->direction == FERRY_DIR_H2D && !ferry_put_targets_are_quiet(lane_rank->member, call);
}

/* The job has failed. Ends this lane's half of the call's run, or (D2H) a run that the stream has just asked for. */
static bool fail_captured(struct ferry_lane_rank *lane_rank, struct ferry_call *call)
{
	uint64_t seq = atomic_load_explicit(&call->seq, memory_order_acquire);
	const char *message;
	if (seq && seq != call->halves[lane_rank->direction].ended) {
		if (is_put_into(lane_rank, call))
			return false;
		end_half(lane_rank, call);
		return true;
	}
	if (seq || lane_rank->direction == FERRY_DIR_H2D || !call->ops->started(call))
		return false;
	ferryResult_t result = lane_rank->member->ops->error(lane_rank->member, &message);
	call->ops->finish(call, result, message);
	return true;
}

/* A captured call stays in the lane's list from run to run, until its last graph is gone. */
static bool captured_round(struct ferry_lane *lane, struct ferry_lane_rank *lane_rank, struct ferry_call **link,
                           bool failed)
{
	struct ferry_call *call = *link;
	bool ended = false,
	     progress = failed ? fail_captured(lane_rank, call) : call_round(lane, lane_rank, call, &ended);
	if (ended)
		end_half(lane_rank, call);
	/* Even if no graph has the call any more, its copies may be under way while this half of a run is. */
	uint64_t seq = atomic_load_explicit(&call->seq, memory_order_acquire);
	if ((seq && seq != call->halves[lane_rank->direction].ended) || !call->ops->forgotten(call))
		return progress;
	if (lane_rank->direction == FERRY_DIR_D2H)
		wake_child_keys(lane, call);
	unlink_call(lane_rank, link);
	return true;
}

static bool plain_round(struct ferry_lane *lane, struct ferry_lane_rank *lane_rank, struct ferry_call **link,
                        bool failed)
{
	struct ferry_call *call = *link;
	bool ended = failed && (call->ops->finish_early || call->ops->started(call)) && !is_put_into(lane_rank, call);
	bool progress = false;
	if (!failed)
		progress = call_round(lane, lane_rank, call, &ended);
	if (!ended)
		return progress;
	end_half(lane_rank, call);
	unlink_call(lane_rank, link);
	return true;
}

/* ---- lane ranks ---- */

/* True if there was a call: as after any progress the lane then spins, even if it was idle for long before. */
static bool take_inbox(struct ferry_lane_rank *lane_rank)
{
	if (!atomic_load_explicit(&lane_rank->inbox_filled, memory_order_acquire))
		return false;
	pthread_mutex_lock(&lane_rank->inbox_lock);
	if (lane_rank->inbox) {
		for (const struct ferry_call *call = lane_rank->inbox; call;
		     call = call->halves[lane_rank->direction].next)
			lane_rank->out_of_line += !is_in_line(call);
		*lane_rank->calls_end = lane_rank->inbox;
		lane_rank->calls_end = lane_rank->inbox_end;
		lane_rank->inbox = NULL;
		lane_rank->inbox_end = &lane_rank->inbox;
	}
	atomic_store_explicit(&lane_rank->inbox_filled, 0, memory_order_relaxed);
	pthread_mutex_unlock(&lane_rank->inbox_lock);
	return true;
}

/*
 * The job has failed, and no copy is under way. Releases other ranks' buffers now: the calls that hold them may end
 * much later, when the rank's streams reach them, or when it drops its graphs.
 */
static void stop_putting(struct ferry_lane_rank *lane_rank)
{
	for (struct ferry_call *call = lane_rank->calls; call; call = call->halves[FERRY_DIR_D2H].next)
		ferry_put_targets_release(lane_rank->member, call);
	ferry_put_targets_stop(lane_rank->member);
}

static bool lane_rank_round(struct ferry_lane *lane, struct ferry_lane_rank *lane_rank)
{
	const struct ferry_member_ops *ops = lane_rank->member->ops;
	bool progress = lane_rank->direction == FERRY_DIR_D2H && ops->take && ops->take(lane_rank->member);
	progress |= take_inbox(lane_rank);
	if (!lane_rank->calls && (lane_rank->direction == FERRY_DIR_H2D || lane_rank->member->stopped))
		return progress;
	/* once true, always true: other ranks have read it, whatever is written into the arenas later */
	bool stopped = lane_rank->direction == FERRY_DIR_D2H && lane_rank->member->stopped;
	bool failed = stopped || ops->failed(lane_rank->member);
	if (failed && lane_rank->under_way)
		return progress; /* the device may still write to the buffers of copies under way */
	if (failed && lane_rank->direction == FERRY_DIR_D2H) /* each round: calls may have come since the last */
		stop_putting(lane_rank);
	if (failed && ops->shut && !ops->shut(lane_rank->member, lane_rank->direction))
		return progress; /* other ranks may still write there */
	/*
	 * Callers run far ahead: of hundreds of calls in line only the first of each parity can make progress, and the
	 * rest is skipped.
	 */
	uint32_t parities = 0; /* bit b: a call in line that runs in parity b was tried */
	for (struct ferry_call **link = &lane_rank->calls; *link;) {
		struct ferry_call *call = *link;
		if (!failed && is_in_line(call)) {
			if (parities == (1u << FERRY_PARITIES) - 1 && !lane_rank->out_of_line)
				break;
			if (parities >> call->parity & 1) {
				link = &call->halves[lane_rank->direction].next;
				continue;
			}
			parities |= 1u << call->parity;
		}
		progress |= call->captured ? captured_round(lane, lane_rank, link, failed)
		                           : plain_round(lane, lane_rank, link, failed);
		if (*link == call)
			link = &call->halves[lane_rank->direction].next;
	}
	return progress || (!failed && ferry_stall_end_departed(lane_rank));
}

void ferry_lane_drop_calls(struct ferry_lane_rank *lane_rank)
{
	take_inbox(lane_rank);
	while (lane_rank->calls)
		unlink_call(lane_rank, &lane_rank->calls);
}

bool ferry_lane_make_room(struct ferry_lane *lane, uint32_t nlane_ranks)
{
	if (nlane_ranks <= lane->capacity)
		return true;
	uint32_t capacity = 2 * nlane_ranks;
	void *lane_ranks = realloc(lane->lane_ranks, capacity * sizeof *lane->lane_ranks);
	lane->lane_ranks = lane_ranks ? lane_ranks : lane->lane_ranks;
	void *bells = realloc(lane->bells, (capacity + 1) * sizeof *lane->bells);
	lane->bells = bells ? bells : lane->bells;
	if (lane_ranks && bells)
		lane->capacity = capacity;
	return lane_ranks && bells;
}

void ferry_lane_free_room(struct ferry_lane *lane)
{
	free(lane->lane_ranks);
	free(lane->bells);
	lane->lane_ranks = NULL;
	lane->bells = NULL;
}

/* Reads the list of members again. True if it may have changed. */
static bool refresh(struct ferry_lane *lane)
{
	struct ferry_lanes *lanes = lane->lanes;
	if (!lane->anybody_leaves && lane->generation == atomic_load_explicit(&lanes->generation, memory_order_relaxed))
		return false;
	if (lane->nbells)
		/* the bell of a member that leaves goes with it, and the lane is about to touch it again */
		return true;
	uint64_t before = lane->generation;
	pthread_mutex_lock(&lanes->lock);
	lane->generation = atomic_load_explicit(&lanes->generation, memory_order_relaxed);
	lane->nlane_ranks = 0;
	lane->anybody_leaves = false;
	for (struct ferry_member *member = lanes->members; member; member = member->next) {
		struct ferry_lane_rank *lane_rank = &member->lane_ranks[lane->direction];
		if (lane_rank->leaves && !lane_rank->left && !lane_rank->under_way) {
			ferry_lane_drop_calls(lane_rank);
			lane_rank->left = true;
			pthread_cond_broadcast(&lanes->changed);
		}
		if (lane_rank->left)
			continue;
		lane->anybody_leaves |= lane_rank->leaves;
		if (ferry_lane_make_room(lane, lane->nlane_ranks + 1))
			lane->lane_ranks[lane->nlane_ranks++] = lane_rank;
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
	if (direction == FERRY_DIR_D2H)
		return call->stage == FERRY_CALL_MADE;
	uint64_t seq = atomic_load_explicit(&call->seq, memory_order_acquire);
	return !seq || seq == call->halves[direction].ended;
}

static bool any_at_work(const struct ferry_lane_rank *lane_rank)
{
	const struct ferry_call *call = lane_rank->calls;
	while (call && is_at_rest(call, lane_rank->direction))
		call = call->halves[lane_rank->direction].next;
	return call;
}

bool ferry_lane_round(struct ferry_lane *lane)
{
	bool progress = refresh(lane), busy = false;
	uint64_t now = 0;
	progress |= ferry_slices_reap(&lane->copies, &lane->pushes);
	for (uint32_t i = 0; i < lane->nlane_ranks; i++) {
		struct ferry_lane_rank *lane_rank = lane->lane_ranks[(lane->turn + i) % lane->nlane_ranks];
		bool found = lane_rank_round(lane, lane_rank);
		if (found) {
			lane_rank->idle_since = 0;
			lane_rank->reported = false;
			if (lane_rank->awaiting)
				ferry_traffic_awaits(lane_rank, 0, 0);
		} else if (!lane_rank->idle_since) {
			lane_rank->idle_since = now = now ? now : ferry_now_ns();
		}
		progress |= found;
		busy |= any_at_work(lane_rank);
	}
	lane->turn++;
	lane->busy = busy;
	return progress;
}
