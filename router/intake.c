/* SPDX-License-Identifier: Apache-2.0 */
#include "router/intake.h"

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
	return call->captured ? atomic_load_explicit(&mapped->word->word, memory_order_acquire) == 1
	                      : ferry_word_reached(mapped->word, mapped->turn);
}

static void ending(struct ferry_call *call)
{
	const struct ferry_mapped_call *mapped = mapped_of(call);
	char text[FERRY_MESSAGE_BYTES];
	if (mapped->lost) {
		snprintf(text, sizeof text,
		         "rank %u replays a captured call whose buffers were freed before its router died",
		         mapped->intake->member.rank);
		ferry_job_fail(mapped->intake->job, ferryInvalidUsage, text);
	}
	ferry_word_end(mapped->word, mapped->turn);
}

static void finish(struct ferry_call *call, ferryResult_t result, const char *message)
{
	const struct ferry_mapped_call *mapped = mapped_of(call);
	(void)result, (void)message; /* the rank asks its communicator */
	if (call->reached_ns)
		ferry_ring_stamp(mapped->intake->ring, mapped->stamp, ferry_now_ns() - call->reached_ns);
	ferry_word_pass(mapped->word, mapped->turn);
	if (call->captured) /* the next run's: nobody looks before its number is 0 again */
		((struct ferry_mapped_call *)call)->turn++;
}

static uint64_t run(const struct ferry_call *call)
{
	const struct ferry_mapped_call *mapped = mapped_of(call);
	return ferry_intake_run((uint32_t)(mapped->word - mapped->intake->words), mapped->turn);
}

static void passed(const struct ferry_call *call, enum ferry_direction direction, uint32_t peer)
{
	atomic_fetch_or_explicit(&mapped_of(call)->word->passed[direction], 1ull << peer, memory_order_release);
}

static bool forgotten(const struct ferry_call *call)
{
	return atomic_load_explicit(&mapped_of(call)->word->forgotten, memory_order_acquire);
}

/* Under the lock: which submissions other domains' routers need not keep anything for (router/imports.h). */
static void say_over(struct ferry_intake *intake)
{
	uint64_t before = intake->first ? intake->first->number - 1 : UINT64_MAX;
	atomic_store_explicit(&intake->ring->over, before < intake->listed ? before : intake->listed,
	                      memory_order_release);
}

static void list_call(struct ferry_mapped_call *mapped)
{
	struct ferry_intake *intake = mapped->intake;
	if (mapped->call.captured) /* what it names is pinned */
		return;
	pthread_mutex_lock(&intake->over_lock);
	mapped->before = intake->last;
	*(intake->last ? &intake->last->after : &intake->first) = mapped;
	intake->last = mapped;
	pthread_mutex_unlock(&intake->over_lock);
}

static void unlist_call(struct ferry_mapped_call *mapped)
{
	struct ferry_intake *intake = mapped->intake;
	if (mapped->call.captured)
		return;
	pthread_mutex_lock(&intake->over_lock);
	*(mapped->before ? &mapped->before->after : &intake->first) = mapped->after;
	*(mapped->after ? &mapped->after->before : &intake->last) = mapped->before;
	say_over(intake);
	pthread_mutex_unlock(&intake->over_lock);
}

void ferry_intake_listed(struct ferry_intake *intake, uint64_t number)
{
	pthread_mutex_lock(&intake->over_lock);
	if (number > intake->listed) /* captured ones are taken again that are older than what is over */
		intake->listed = number;
	say_over(intake);
	pthread_mutex_unlock(&intake->over_lock);
}

void ferry_intake_count_ended(struct ferry_intake *intake)
{
	atomic_fetch_add_explicit(&intake->counting, 1, memory_order_release);
	atomic_fetch_add_explicit(&intake->ring->ended, 1, memory_order_release);
	atomic_fetch_add_explicit(&intake->counted, 1, memory_order_release);
	ferry_doorbell_ring(&ferry_member_line(&intake->member)->app);
}

/* The other lane ends calls meanwhile: what it has told, then the ring, then what it was about to tell. */
bool ferry_intake_ring_is_sane(const struct ferry_intake *intake, char *text, size_t bytes)
{
	uint64_t least = atomic_load_explicit(&intake->counted, memory_order_acquire);
	uint64_t ended = atomic_load_explicit(&intake->ring->ended, memory_order_acquire);
	uint64_t most = atomic_load_explicit(&intake->counting, memory_order_acquire);
	uint64_t taken = atomic_load_explicit(&intake->ring->taken, memory_order_relaxed);
	if (taken == intake->taken && ended >= least && ended <= most)
		return true;
	snprintf(text, bytes,
	         "rank %u: the arena says that its router has taken %llu bytes of submissions and ended %llu calls, "
	         "where that has taken %llu and ended %llu to %llu",
	         intake->member.rank, (unsigned long long)taken, (unsigned long long)ended,
	         (unsigned long long)intake->taken, (unsigned long long)least, (unsigned long long)most);
	return false;
}

void ferry_mapped_call_free(struct ferry_mapped_call *mapped)
{
	for (uint32_t i = 0; i < mapped->nimports; i++)
		ferry_imports_release(mapped->imports[i]);
	unlist_call(mapped); /* whose submission is over, of that nothing is held */
	if (mapped->plan)
		ferry_job_release_plan(mapped->plan);
	ferry_call_unprepare(&mapped->call);
	atomic_fetch_sub_explicit(&mapped->intake->calls, 1, memory_order_relaxed);
	free(mapped);
}

static void release(struct ferry_call *call)
{
	struct ferry_mapped_call *mapped = (struct ferry_mapped_call *)call;
	struct ferry_word *word = call->captured ? mapped->word : NULL;
	uint32_t one = 1;
	ferry_mapped_call_free(mapped);
	if (word) /* last: the rank may use it again */
		atomic_compare_exchange_strong_explicit(&word->forgotten, &one, 2, memory_order_acq_rel,
		                                        memory_order_relaxed);
}

static const struct ferry_call_ops call_ops = {.started = started,
                                               .ending = ending,
                                               .finish = finish,
                                               .run = run,
                                               .passed = passed,
                                               .forgotten = forgotten,
                                               .release = release};

struct ferry_mapped_call *ferry_mapped_call_new(struct ferry_intake *intake, const struct ferry_submission *head,
                                                uint32_t imports, uint32_t ups, uint32_t downs, uint32_t banks)
{
	size_t bytes = sizeof(struct ferry_mapped_call) + imports * sizeof(struct ferry_import *),
	       unit = _Alignof(struct ferry_mapped_call);
	struct ferry_mapped_call *mapped = aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
	if (!mapped)
		return NULL;
	memset(mapped, 0, bytes);
	mapped->intake = intake;
	mapped->number = head->number;
	atomic_fetch_add_explicit(&intake->calls, 1, memory_order_relaxed);
	mapped->word = &intake->words[head->word];
	mapped->turn = head->turn;
	mapped->call.ops = &call_ops;
	mapped->call.member = &intake->member;
	mapped->call.captured = head->flags & FERRY_SUBMIT_CAPTURED;
	mapped->stamp = head->stamp;
	mapped->call.timed = head->stamp && !mapped->call.captured;
	if (!ferry_call_prepare(&mapped->call, ups, downs, banks)) {
		atomic_fetch_sub_explicit(&intake->calls, 1, memory_order_relaxed);
		free(mapped);
		return NULL;
	}
	list_call(mapped);
	return mapped;
}
