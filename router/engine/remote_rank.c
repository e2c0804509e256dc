/* SPDX-License-Identifier: Apache-2.0 */
#include "router/engine/remote_rank.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct ferry_mapped_call *mapped_of(const struct ferry_call *call)
{
	return (const struct ferry_mapped_call *)call;
}

static bool started(const struct ferry_call *call)
{
	const struct ferry_mapped_call *mapped = mapped_of(call);
	return call->captured ? atomic_load_explicit(&mapped->flag->flag, memory_order_acquire) == 1
	                      : ferry_stream_flag_reached(mapped->flag, mapped->turn);
}

static void ending(struct ferry_call *call)
{
	const struct ferry_mapped_call *mapped = mapped_of(call);
	char text[FERRY_MESSAGE_BYTES];
	if (mapped->lost) {
		snprintf(text, sizeof text,
		         "rank %u replays a captured call whose buffers were freed before its router died",
		         mapped->remote_rank->member.rank);
		ferry_job_fail(mapped->remote_rank->job, ferryInvalidUsage, text);
	}
	ferry_stream_flag_end(mapped->flag, mapped->turn);
}

static void finish(struct ferry_call *call, ferryResult_t result, const char *message)
{
	const struct ferry_mapped_call *mapped = mapped_of(call);
	(void)result, (void)message; /* the rank asks its communicator */
	ferry_stream_flag_pass(mapped->flag, mapped->turn);
	if (call->captured) /* for the next run: no lane reads it before the number is 0 again */
		((struct ferry_mapped_call *)call)->turn++;
}

static uint64_t run(const struct ferry_call *call)
{
	const struct ferry_mapped_call *mapped = mapped_of(call);
	return ferry_remote_rank_run((uint32_t)(mapped->flag - mapped->remote_rank->flags), mapped->turn);
}

static void passed(const struct ferry_call *call, enum ferry_direction direction, uint32_t peer)
{
	atomic_fetch_or_explicit(&mapped_of(call)->flag->passed[direction], 1ull << peer, memory_order_release);
}

static bool forgotten(const struct ferry_call *call)
{
	return atomic_load_explicit(&mapped_of(call)->flag->forgotten, memory_order_acquire);
}

/* Under the lock. Publishes the last submission for which other routers need keep nothing (router/gpu/imports.h). */
static void publish_over(struct ferry_remote_rank *remote_rank)
{
	uint64_t before = remote_rank->first ? remote_rank->first->number - 1 : UINT64_MAX;
	atomic_store_explicit(&remote_rank->ring->over, before < remote_rank->listed ? before : remote_rank->listed,
	                      memory_order_release);
}

static void list_call(struct ferry_mapped_call *mapped)
{
	struct ferry_remote_rank *remote_rank = mapped->remote_rank;
	if (mapped->call.captured) /* what it names is pinned */
		return;
	pthread_mutex_lock(&remote_rank->over_lock);
	mapped->before = remote_rank->last;
	*(remote_rank->last ? &remote_rank->last->after : &remote_rank->first) = mapped;
	remote_rank->last = mapped;
	pthread_mutex_unlock(&remote_rank->over_lock);
}

static void unlist_call(struct ferry_mapped_call *mapped)
{
	struct ferry_remote_rank *remote_rank = mapped->remote_rank;
	if (mapped->call.captured)
		return;
	pthread_mutex_lock(&remote_rank->over_lock);
	*(mapped->before ? &mapped->before->after : &remote_rank->first) = mapped->after;
	*(mapped->after ? &mapped->after->before : &remote_rank->last) = mapped->before;
	publish_over(remote_rank);
	pthread_mutex_unlock(&remote_rank->over_lock);
}

void ferry_remote_rank_listed(struct ferry_remote_rank *remote_rank, uint64_t number)
{
	pthread_mutex_lock(&remote_rank->over_lock);
	if (number > remote_rank->listed) /* a captured call that is taken again may be older than the last one */
		remote_rank->listed = number;
	publish_over(remote_rank);
	pthread_mutex_unlock(&remote_rank->over_lock);
}

void ferry_remote_rank_count_ended(struct ferry_remote_rank *remote_rank)
{
	atomic_fetch_add_explicit(&remote_rank->ring->ended, 1, memory_order_release);
	ferry_doorbell_ring(&ferry_member_line(&remote_rank->member)->app);
}

void ferry_mapped_call_free(struct ferry_mapped_call *mapped)
{
	for (uint32_t i = 0; i < mapped->nimports; i++)
		ferry_imports_release(mapped->imports[i]);
	unlist_call(mapped); /* after the imports: of a submission that is over nothing is held */
	if (mapped->plan)
		ferry_job_release_plan(mapped->plan);
	ferry_call_unprepare(&mapped->call);
	atomic_fetch_sub_explicit(&mapped->remote_rank->calls, 1, memory_order_relaxed);
	free(mapped);
}

static void release(struct ferry_call *call)
{
	struct ferry_mapped_call *mapped = (struct ferry_mapped_call *)call;
	struct ferry_stream_flag *flag = call->captured ? mapped->flag : NULL;
	uint32_t one = 1;
	ferry_mapped_call_free(mapped);
	if (flag) /* last: the rank may use it again */
		atomic_compare_exchange_strong_explicit(&flag->forgotten, &one, 2, memory_order_acq_rel,
		                                        memory_order_relaxed);
}

static const struct ferry_call_ops call_ops = {.started = started,
                                               .ending = ending,
                                               .finish = finish,
                                               .run = run,
                                               .passed = passed,
                                               .forgotten = forgotten,
                                               .release = release};

struct ferry_mapped_call *ferry_mapped_call_new(struct ferry_remote_rank *remote_rank,
                                                const struct ferry_submission *head, uint32_t imports, uint32_t ups,
                                                uint32_t downs, uint32_t parities)
{
	size_t bytes = sizeof(struct ferry_mapped_call) + imports * sizeof(struct ferry_import *),
	       unit = _Alignof(struct ferry_mapped_call);
	struct ferry_mapped_call *mapped = aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
	if (!mapped)
		return NULL;
	memset(mapped, 0, bytes);
	mapped->remote_rank = remote_rank;
	mapped->number = head->number;
	atomic_fetch_add_explicit(&remote_rank->calls, 1, memory_order_relaxed);
	mapped->flag = &remote_rank->flags[head->flag];
	mapped->turn = head->turn;
	mapped->call.ops = &call_ops;
	mapped->call.member = &remote_rank->member;
	mapped->call.captured = head->flags & FERRY_SUBMIT_CAPTURED;
	if (!ferry_call_prepare(&mapped->call, ups, downs, parities)) {
		atomic_fetch_sub_explicit(&remote_rank->calls, 1, memory_order_relaxed);
		free(mapped);
		return NULL;
	}
	list_call(mapped);
	return mapped;
}
