/* SPDX-License-Identifier: Apache-2.0 */
#include "router/engine/lanes.h"

#include "router/engine/lane_thread.h"
#include "router/engine/put_targets.h"

#include <string.h>

ferryResult_t ferry_lanes_open(struct ferry_lanes *lanes, const struct ferry_lanes_options *options)
{
	ferryResult_t result = ferrySuccess;
	memset(lanes, 0, sizeof *lanes);
	lanes->copier = options->copier;
	lanes->spin.limit_ns = options->spin_ns;
	lanes->priority = options->priority;
	pthread_mutex_init(&lanes->lock, NULL);
	pthread_cond_init(&lanes->changed, NULL);
	for (enum ferry_direction direction = FERRY_DIR_D2H; !result && direction <= FERRY_DIR_H2D; direction++)
		if (!(result = ferry_lane_thread_open(lanes, direction, options->bells[direction])))
			lanes->running++;
	if (result)
		ferry_lanes_close(lanes);
	return result;
}

static void ring_lanes(struct ferry_lanes *lanes)
{
	for (enum ferry_direction direction = FERRY_DIR_D2H; direction <= FERRY_DIR_H2D; direction++)
		ferry_doorbell_ring(lanes->lane[direction].bell);
}

void ferry_lanes_close(struct ferry_lanes *lanes)
{
	if (!lanes->copier)
		return;
	atomic_store_explicit(&lanes->stopping, true, memory_order_release);
	for (uint32_t i = 0; i < lanes->running; i++)
		ferry_lane_thread_close(&lanes->lane[i]);
	pthread_cond_destroy(&lanes->changed);
	pthread_mutex_destroy(&lanes->lock);
	lanes->copier = NULL;
}

/* ---- members ---- */

void ferry_lanes_lane_rank(struct ferry_member *member)
{
	struct ferry_rank_line *line = ferry_member_line(member);
	for (enum ferry_direction direction = FERRY_DIR_D2H; direction <= FERRY_DIR_H2D; direction++) {
		struct ferry_lane_rank *lane_rank = &member->lane_ranks[direction];
		lane_rank->member = member;
		lane_rank->direction = direction;
		lane_rank->bell = direction == FERRY_DIR_D2H ? &line->d2h : &line->h2d;
		lane_rank->inbox_end = &lane_rank->inbox;
		lane_rank->calls_end = &lane_rank->calls;
		pthread_mutex_init(&lane_rank->inbox_lock, NULL);
		for (uint32_t peer = 0; peer < member->shared->nranks; peer++)
			lane_rank->message[peer] = 1;
	}
}

void ferry_lanes_join(struct ferry_lanes *lanes, struct ferry_member *member)
{
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
	member->lane_ranks[FERRY_DIR_D2H].leaves = member->lane_ranks[FERRY_DIR_H2D].leaves = true;
	atomic_fetch_add_explicit(&lanes->generation, 1, memory_order_relaxed);
	pthread_mutex_unlock(&lanes->lock);
	ring_lanes(lanes);
	pthread_mutex_lock(&lanes->lock);
	while (!member->lane_ranks[FERRY_DIR_D2H].left || !member->lane_ranks[FERRY_DIR_H2D].left)
		pthread_cond_wait(&lanes->changed, &lanes->lock);
	for (struct ferry_member **link = &lanes->members; *link; link = &(*link)->next)
		if (*link == member) {
			*link = member->next;
			break;
		}
	pthread_mutex_unlock(&lanes->lock);
	for (enum ferry_direction direction = FERRY_DIR_D2H; direction <= FERRY_DIR_H2D; direction++) {
		ferry_lane_drop_calls(
		        &member->lane_ranks[direction]); /* what one lane has taken after the other had left */
		pthread_mutex_destroy(&member->lane_ranks[direction].inbox_lock);
	}
	ferry_put_targets_stop(member);
	member->lanes = NULL;
}

void ferry_lanes_submit(struct ferry_member *member, struct ferry_call *call)
{
	const struct ferry_copy_ops *ops = member->lanes->copier->ops;
	bool descends = ferry_call_descends(call);
	atomic_store_explicit(&call->holders, 1 + descends, memory_order_relaxed);
	for (enum ferry_direction direction = FERRY_DIR_D2H; direction <= (descends ? FERRY_DIR_H2D : FERRY_DIR_D2H);
	     direction++) {
		struct ferry_lane_rank *lane_rank = &member->lane_ranks[direction];
		struct ferry_half *half = &call->halves[direction];
		pthread_mutex_lock(&lane_rank->inbox_lock);
		half->next = NULL;
		*lane_rank->inbox_end = call;
		lane_rank->inbox_end = &half->next;
		atomic_store_explicit(&lane_rank->inbox_filled, 1, memory_order_release);
		pthread_mutex_unlock(&lane_rank->inbox_lock);
		/*
		 * A device that is polled rings no bell, and waking a thread takes longer than many calls: so it is
		 * woken now. The thread that fails the job rings once: either the lane then finds the call in the
		 * inbox, or this thread sees here that the job has failed.
		 */
		ferry_full_fence();
		if (ops->polled || member->ops->failed(member))
			ferry_doorbell_ring(lane_rank->bell);
	}
}
