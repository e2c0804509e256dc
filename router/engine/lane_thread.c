/* SPDX-License-Identifier: Apache-2.0 */
#include "router/engine/lane_thread.h"

#include "ipc/error.h"
#include "ipc/process.h"
#include "router/engine/pair.h"
#include "router/engine/traffic.h"

#include <string.h>
#include <sys/prctl.h>

#define POLL_LEAST_US 5 /* below this, sleeping takes longer than looking again */
#define POLL_MOST_US  2000
#define SLEEP_MOST_US 1000000
/* microseconds: programs compute some ms between calls, and some tens per step: up to then the lane polls so often, */
#define PROMPT_US         100000
#define PROMPT_STEP_US    30  /* which takes a tenth of a core */
#define ADDS_STEP_US      10  /* while a kernel adds, which needs as long for some hundred KiB */
#define UNHURRIED_STEP_US 250 /* a lane that does not spin, as CPUs are short, polls no more often */

/* ---- when it sleeps ---- */

/*
 * Whether the lane spins before it sleeps. A lane of a GPU also spins after its last call: the next one often comes
 * soon, and waking up takes longer than a short call itself. Ranks of host devices usually outnumber the cores, and a
 * thread that spins keeps another from working.
 */
static bool may_look(const struct ferry_lane *lane)
{
	return (lane->busy || lane->lanes->copier->ops->polled) &&
	       !atomic_load_explicit(&lane->lanes->stopping, memory_order_relaxed);
}

/* Whether the D2H lane has a call that its stream has not reached, or may reach again. It also wakes the H2D lane. */
static bool awaits_start(const struct ferry_lane *lane)
{
	for (uint32_t i = 0; lane->direction == FERRY_DIR_D2H && i < lane->nlane_ranks; i++)
		for (const struct ferry_call *call = lane->lane_ranks[i]->calls; call;
		     call = call->halves[FERRY_DIR_D2H].next)
			if (call->stage == FERRY_CALL_MADE)
				return true;
	return false;
}

/* Whether a kernel of a rank adds for a call, or is about to: it rings no bell. */
static bool awaits_adds(const struct ferry_lane *lane)
{
	for (uint32_t i = 0; lane->direction == FERRY_DIR_H2D && i < lane->nlane_ranks; i++)
		for (const struct ferry_call *call = lane->lane_ranks[i]->calls; call;
		     call = call->halves[FERRY_DIR_H2D].next)
			if (call->steps && call->steps->nadds && ferry_call_is_in_run(call, FERRY_DIR_H2D))
				return true;
	return false;
}

/*
 * How many microseconds to sleep at most; 0: not at all. Never for ever: the bell is in the arena, where another rank
 * of the job may have overwritten the count of its sleepers. A GPU rings no bell. While a GPU copies for this lane, the
 * lane polls again at once. For a stream that has not reached a call, the lane polls after a 64th of the time that it
 * has waited, so it is late by less than 2%. It polls at first within PROMPT_STEP_US, and never later than after
 * POLL_MOST_US, as captured calls may be replayed after any time. A lane that never spins polls no more often than
 * every UNHURRIED_STEP_US.
 */
static int64_t sleep_us(struct ferry_lane *lane, uint64_t now)
{
	const struct ferry_copy_ops *ops = lane->lanes->copier->ops;
	int64_t most = lane->busy ? FERRY_STALL_LOOK_US : SLEEP_MOST_US;
	if (ferry_copies_any(&lane->copies)) {
		int64_t copy = ops->wait_us(&lane->copies.queue);
		most = copy < most ? copy : most;
	}
	most = ferry_pushes_wait_us(&lane->pushes, most);
	if (awaits_adds(lane)) {
		int64_t step = lane->lanes->spin.limit_ns ? ADDS_STEP_US : UNHURRIED_STEP_US;
		most = most < step ? most : step;
	}
	if (!ops->polled || most == 0 || !awaits_start(lane))
		return most;
	int64_t waited = (int64_t)(ferry_idle_ns(&lane->idle, now) / 1000), step = waited / 64;
	if (!lane->lanes->spin.limit_ns)
		step = step < UNHURRIED_STEP_US ? UNHURRIED_STEP_US : step;
	else if (waited < PROMPT_US)
		step = step < PROMPT_STEP_US ? step : PROMPT_STEP_US;
	if (step >= POLL_MOST_US)
		return most < POLL_MOST_US ? most : POLL_MOST_US;
	return step < POLL_LEAST_US ? 0 : step;
}

/* The device has failed: fails the jobs, and drops all copies, which will not finish. */
static void fail_all(struct ferry_lane *lane)
{
	struct ferry_copying copying;
	for (uint32_t i = 0; i < lane->nlane_ranks; i++)
		if (lane->lane_ranks[i]->calls)
			lane->lane_ranks[i]->member->ops->fail(lane->lane_ranks[i]->member, ferryUnhandledDeviceError,
			                                       ferry_last_message());
	while (ferry_copies_take(&lane->copies, UINT64_MAX, &copying))
		;
	for (uint32_t i = 0; i < FERRY_PUSH_QUEUES; i++)
		while (ferry_copies_take(&lane->pushes.queues[i], UINT64_MAX, &copying))
			;
}

static void watch(struct ferry_lane *lane, uint64_t now)
{
	if (!ferry_stall_due(&lane->checked, now))
		return;
	for (uint32_t i = 0; i < lane->nlane_ranks; i++)
		if (lane->lane_ranks[i]->idle_since && lane->lane_ranks[i]->calls)
			ferry_stall_watch_lane_rank(lane->lane_ranks[i], now);
	if (lane->busy && (ferry_copies_check(&lane->copies) || ferry_pushes_check(&lane->pushes)))
		fail_all(lane);
}

/* ---- the thread ---- */

static void prepare_sleep(struct ferry_lane *lane)
{
	for (uint32_t i = 0; i < lane->nlane_ranks; i++)
		ferry_traffic_rests(lane->lane_ranks[i]);
	lane->bells[lane->nbells++] = ferry_bell_prepare(lane->bell);
	for (uint32_t i = 0; i < lane->nlane_ranks; i++)
		if (lane->lane_ranks[i]->bell != lane->bell)
			lane->bells[lane->nbells++] = ferry_bell_prepare(lane->lane_ranks[i]->bell);
}

static void cancel_sleep(struct ferry_lane *lane)
{
	ferry_bells_cancel(lane->bells, lane->nbells);
	lane->nbells = 0;
}

/* Behind prepare_sleep. */
static void sleep_at_bells(struct ferry_lane *lane, int64_t timeout)
{
	for (uint32_t i = 0; i < lane->nlane_ranks; i++)
		ferry_pair_wake_left(lane->lane_ranks[i]);
	ferry_bells_wait(lane->bells, lane->nbells, timeout);
	lane->nbells = 0;
}

static bool may_end(struct ferry_lane *lane)
{
	return atomic_load_explicit(&lane->lanes->stopping, memory_order_acquire) && !lane->nlane_ranks;
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
		bool found = ferry_lane_round(lane);
		/* a thread that does not spin needs no clock as long as it finds something */
		uint64_t now = found && !lane->lanes->spin.limit_ns ? 0 : ferry_now_ns();
		ferry_idle_looked(&lane->idle, now);
		if (found) {
			ferry_idle_found(&lane->idle);
			if (now && lane->nlane_ranks > 1) /* while one lane rank works, another may stall */
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
		if (ferry_lane_round(lane)) {
			cancel_sleep(lane);
			ferry_idle_found(&lane->idle);
			continue;
		}
		if (may_end(lane)) {
			cancel_sleep(lane);
			ferry_idle_close(&lane->idle);
			return NULL;
		}
		/* again: the round may have found a new call, for which no bell rings */
		int64_t timeout = sleep_us(lane, now);
		if (timeout == 0) {
			cancel_sleep(lane);
			continue;
		}
		sleep_at_bells(lane, timeout);
	}
}

ferryResult_t ferry_lane_thread_open(struct ferry_lanes *lanes, enum ferry_direction direction,
                                     struct ferry_doorbell *bell)
{
	struct ferry_lane *lane = &lanes->lane[direction];
	lane->lanes = lanes;
	lane->direction = direction;
	lane->bell = bell ? bell : &lanes->own_bells[direction];
	lane->pushes.copier = lanes->copier;
	if (!ferry_lane_make_room(lane, 1)) {
		ferry_lane_free_room(lane);
		return ferry_fail(ferrySystemError, "no memory for a lane");
	}
	ferryResult_t result = lanes->copier->ops->queue_open(lanes->copier, direction, &lane->copies.queue);
	if (result) {
		ferry_lane_free_room(lane);
		return result;
	}
	int refused = pthread_create(&lane->thread, NULL, lane_main, lane);
	if (refused) {
		lanes->copier->ops->queue_close(&lane->copies.queue);
		ferry_lane_free_room(lane);
		return ferry_fail(ferrySystemError, "a lane thread: %s%s", strerror(refused),
		                  ferry_ulimit_threads_hint(refused));
	}
	return ferrySuccess;
}

void ferry_lane_thread_close(struct ferry_lane *lane)
{
	ferry_doorbell_ring(lane->bell);
	pthread_join(lane->thread, NULL);
	lane->lanes->copier->ops->queue_close(&lane->copies.queue);
	ferry_pushes_close(&lane->pushes);
	ferry_lane_free_room(lane);
}
