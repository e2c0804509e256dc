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

void ferry_wake_all(const struct ferry_job_arenas *job)
{
	uint64_t ranks = ferry_rankset_all(job->nranks);
	ferry_wake(job, ranks, ranks, (1u << job->ndomains) - 1);
	for (uint32_t rank = 0; rank < job->nranks; rank++)
		wake_if_asleep(&ferry_rank_line(job, rank)->app);
}
