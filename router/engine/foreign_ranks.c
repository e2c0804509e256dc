/* SPDX-License-Identifier: Apache-2.0 */
#include "router/engine/foreign_ranks.h"

#include "ipc/error.h"

#include <stddef.h>
#include <stdlib.h>

ferryResult_t ferry_foreign_ranks_open(struct ferry_job *job)
{
	for (uint32_t rank = 0; rank < job->shared.nranks; rank++) {
		struct ferry_imports *imports = job->imports[rank];
		if (!imports || !imports->foreign_rank)
			continue;
		struct ferry_foreign_rank *foreign_rank = calloc(1, sizeof *foreign_rank);
		if (!foreign_rank)
			return ferry_fail(ferrySystemError, "no memory for rank %u of another domain", rank);
		*foreign_rank = (struct ferry_foreign_rank){.job = job, .imports = imports, .client = -1};
		job->foreign_ranks[rank] = foreign_rank;
		ferry_imports_follow(imports, &ferry_rank_ring(&job->shared, rank)->over);
	}
	return ferrySuccess;
}

bool ferry_foreign_rank_is_open(const struct ferry_job *job, uint32_t rank)
{
	return atomic_load_explicit(&job->ready, memory_order_acquire) && job->foreign_ranks[rank];
}

static void foreign_rank_close(struct ferry_foreign_rank *foreign_rank)
{
	const struct ferry_job_arenas *shared = &foreign_rank->job->shared;
	uint32_t rank = foreign_rank->imports->rank;
	ferry_imports_shut(foreign_rank->imports);
	/* The rank's own router reports no more ends of calls: all submissions count as ended from here on. */
	ferry_imports_ended(foreign_rank->imports, UINT64_MAX);
	ferry_imports_follow(foreign_rank->imports, &foreign_rank->imports->ended);
	/*
	 * The bit is set after the last bytes: a rank that sees it may let its streams go on, and free the buffers that
	 * others put into.
	 */
	atomic_fetch_or_explicit(&shared->arenas[foreign_rank->job->domain].header->released, 1ull << rank,
	                         memory_order_release);
	ferry_doorbell_ring(&ferry_rank_line(shared, rank)->app);
	free(foreign_rank);
}

/* By the reaper. */
static void end_foreign_rank(struct ferry_ending *ending)
{
	struct ferry_foreign_rank *foreign_rank = (struct ferry_foreign_rank *)((char *)ending -
	                                                                        offsetof(struct ferry_foreign_rank,
	                                                                                 ending));
	int client = foreign_rank->client;
	bool answer = foreign_rank->answer;
	const struct ferry_job *job = foreign_rank->job;
	foreign_rank_close(foreign_rank);
	if (answer && ferry_attach_reply(client, ferrySuccess, "", -1))
		ferry_log(FERRY_LOG_INFO, "%s", ferry_last_message()); /* it has gone: poll reports that */
	ferry_job_close_client(job, client);
}

struct ferry_ending *ferry_foreign_rank_leave(struct ferry_job *job, uint32_t rank, int client, bool answer)
{
	if (!ferry_foreign_rank_is_open(job, rank))
		return NULL;
	struct ferry_foreign_rank *foreign_rank = job->foreign_ranks[rank];
	job->foreign_ranks[rank] = NULL;
	foreign_rank->client = client;
	foreign_rank->answer = answer;
	foreign_rank->ending = (struct ferry_ending){.end = end_foreign_rank};
	return &foreign_rank->ending;
}

void ferry_foreign_ranks_close(struct ferry_job *job)
{
	for (uint32_t rank = 0; rank < job->shared.nranks; rank++)
		if (job->foreign_ranks[rank]) {
			foreign_rank_close(job->foreign_ranks[rank]);
			job->foreign_ranks[rank] = NULL;
		}
}
