/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/publish.h"

#include "ipc/rankset.h"

ferryResult_t ferry_job_arenas_back(const struct ferry_job_arenas *job, const struct ferry_plan *plan)
{
	ferryResult_t result = ferrySuccess;
	for (uint32_t domain = 0; domain < job->ndomains && !result; domain++)
		result = ferry_arena_back_counters(&job->arenas[domain], plan->counters[domain]);
	return result;
}

static uint64_t progress_in(const struct ferry_arena *arena)
{
	uint64_t sum = 0, npairs = (uint64_t)arena->nranks * arena->nranks;
	for (uint32_t parity = 0; parity < FERRY_PARITIES; parity++) {
		sum += atomic_load_explicit(&arena->header->finished[parity], memory_order_relaxed);
		for (uint32_t rank = 0; rank < arena->nranks; rank++)
			sum += atomic_load_explicit(&arena->rank_lines[rank].finished[parity], memory_order_relaxed);
		for (uint32_t i = 0; i < arena->ncounters; i++)
			sum += atomic_load_explicit(&arena->counters[parity][i].value, memory_order_relaxed);
	}
	for (uint64_t pair = 0; pair < npairs; pair++)
		sum += atomic_load_explicit(&arena->pair_lines[pair].d2h.value, memory_order_relaxed) +
		       atomic_load_explicit(&arena->pair_lines[pair].h2d.value, memory_order_relaxed);
	for (uint32_t rank = 0; rank < arena->nranks; rank++)
		sum += atomic_load_explicit(&arena->rings[rank].ended, memory_order_relaxed);
	return sum;
}

uint64_t ferry_job_progress(const struct ferry_job_arenas *job)
{
	uint64_t sum = 0;
	for (uint32_t domain = 0; domain < job->ndomains; domain++)
		sum += progress_in(&job->arenas[domain]);
	return sum;
}

static void wake_if_asleep(struct ferry_doorbell *bell)
{
	if (atomic_load_explicit(&bell->sleepers, memory_order_relaxed))
		ferry_doorbell_wake(bell, -1);
}

void ferry_wake(const struct ferry_job_arenas *job, uint64_t d2h_ranks, uint64_t h2d_ranks, uint32_t domains)
{
	ferry_full_fence(); /* the counter before the sleepers: the waiter does it the other way round */
	for (uint32_t domain = 0; domains; domain++, domains >>= 1)
		if (domains & 1)
			wake_if_asleep(&job->arenas[domain].header->router);
	for (; d2h_ranks; d2h_ranks &= d2h_ranks - 1)
		wake_if_asleep(&ferry_rank_line(job, ferry_rankset_lowest(d2h_ranks))->d2h);
	for (; h2d_ranks; h2d_ranks &= h2d_ranks - 1)
		wake_if_asleep(&ferry_rank_line(job, ferry_rankset_lowest(h2d_ranks))->h2d);
}

void ferry_wake_callers(const struct ferry_job_arenas *job, bool callers)
{
	for (uint32_t rank = 0; rank < job->nranks; rank++) {
		struct ferry_rank_line *line = ferry_rank_line(job, rank);
		if (callers)
			wake_if_asleep(&line->app);
		if (atomic_load_explicit(&line->lane_calls, memory_order_relaxed))
			wake_if_asleep(&line->d2h);
	}
}

void ferry_wake_end(const struct ferry_job_arenas *job, uint32_t rank, bool receiver)
{
	struct ferry_rank_line *line = ferry_rank_line(job, rank);
	ferry_full_fence(); /* as above; a rank adds to `lane_calls` before its lanes can sleep on that call */
	wake_if_asleep(&line->app);
	if (atomic_load_explicit(&line->lane_calls, memory_order_relaxed) ||
	    atomic_load_explicit(&line->copy_quiesce, memory_order_relaxed) != FERRY_COPY_QUIESCE_HOST_LANES)
		wake_if_asleep(receiver ? &line->h2d : &line->d2h);
}

void ferry_wake_all(const struct ferry_job_arenas *job)
{
	uint64_t ranks = ferry_rankset_all(job->nranks);
	ferry_wake(job, ranks, ranks, (1u << job->ndomains) - 1);
	for (uint32_t rank = 0; rank < job->nranks; rank++)
		wake_if_asleep(&ferry_rank_line(job, rank)->app);
}

uint64_t ferry_departed(const struct ferry_job_arenas *job)
{
	uint64_t departed = 0;
	for (uint32_t domain = 0; domain < job->ndomains; domain++)
		departed |= atomic_load_explicit(&job->arenas[domain].header->left, memory_order_acquire);
	return departed & ferry_rankset_all(job->nranks); /* callers do not read beyond the lines of these ranks */
}

static uint64_t finished(const struct ferry_job_arenas *job, uint32_t rank, uint32_t parity)
{
	return atomic_load_explicit(&ferry_rank_line(job, rank)->finished[parity], memory_order_acquire);
}

bool ferry_departed_are_over(const struct ferry_job_arenas *job, uint64_t departed)
{
	for (uint32_t parity = 0; parity < FERRY_PARITIES; parity++) {
		uint64_t last = UINT64_MAX; /* that all of them took part in */
		for (uint32_t rank = 0; rank < job->nranks; rank++)
			if (departed >> rank & 1 && finished(job, rank, parity) < last)
				last = finished(job, rank, parity);
		for (uint32_t rank = 0; rank < job->nranks; rank++)
			if (!(departed >> rank & 1) && finished(job, rank, parity) < last)
				return false;
	}
	return true;
}
