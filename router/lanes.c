/* SPDX-License-Identifier: Apache-2.0 */
#include "router/lanes.h"

#include "router/landings.h"
#include "router/lane_thread.h"

#include <string.h>

ferryResult_t ferry_lanes_open(struct ferry_lanes *lanes, const struct ferry_lanes_options *options)
{
	ferryResult_t result = ferrySuccess;
	memset(lanes, 0, sizeof *lanes);
	lanes->copier = options->copier;
	lanes->stall_ns = options->stall_ns;
	lanes->spin.limit_ns = options->spin_ns;
	lanes->priority = options->priority;
	lanes->lookout = options->lookout;
	pthread_mutex_init(&lanes->lock, NULL);
	pthread_cond_init(&lanes->changed, NULL);
	for (enum ferry_direction direction = FERRY_UP; !result && direction <= FERRY_DOWN; direction++)
		if (!(result = ferry_lane_thread_open(lanes, direction, options->bells[direction])))
			lanes->running++;
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
	for (uint32_t i = 0; i < lanes->running; i++)
		ferry_lane_thread_close(&lanes->lane[i]);
	pthread_cond_destroy(&lanes->changed);
	pthread_mutex_destroy(&lanes->lock);
	lanes->copier = NULL;
}

/* ---- members ---- */

void ferry_lanes_seat(struct ferry_member *member)
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
	for (enum ferry_direction direction = FERRY_UP; direction <= FERRY_DOWN; direction++) {
		ferry_lane_drop_calls(&member->seats[direction]); /* what one lane has taken after the other had left */
		pthread_mutex_destroy(&member->seats[direction].inbox_lock);
	}
	ferry_landings_stop(member);
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
