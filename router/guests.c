/* SPDX-License-Identifier: Apache-2.0 */
#include "router/guests.h"

#include "ipc/error.h"

#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

ferryResult_t ferry_guests_open(struct ferry_job *job)
{
	for (uint32_t rank = 0; rank < job->shared.nranks; rank++) {
		struct ferry_imports *imports = job->imports[rank];
		if (!imports || !imports->guest)
			continue;
		struct ferry_guest *guest = calloc(1, sizeof *guest);
		if (!guest)
			return ferry_fail(ferrySystemError, "no memory for rank %u of another domain", rank);
		*guest = (struct ferry_guest){.job = job, .imports = imports, .client = -1};
		job->guests[rank] = guest;
		ferry_imports_follow(imports, &ferry_rank_ring(&job->shared, rank)->over);
	}
	return ferrySuccess;
}

bool ferry_guest_is_open(const struct ferry_job *job, uint32_t rank)
{
	return atomic_load_explicit(&job->ready, memory_order_acquire) && job->guests[rank];
}

static void guest_close(struct ferry_guest *guest)
{
	const struct ferry_job_arenas *shared = &guest->job->shared;
	uint32_t rank = guest->imports->rank;
	ferry_imports_shut(guest->imports);
	/* Its own router says no more of calls that it has not taken up. */
	ferry_imports_ended(guest->imports, UINT64_MAX);
	ferry_imports_follow(guest->imports, &guest->imports->ended);
	/* Behind the last bytes: who sees it may let the rank's streams go on, and free what was put into. */
	atomic_fetch_or_explicit(&shared->arenas[guest->job->domain].header->let_go, 1ull << rank,
	                         memory_order_release);
	ferry_doorbell_ring(&ferry_rank_line(shared, rank)->app);
	free(guest);
}

/* By the reaper. */
static void end_guest(struct ferry_ending *ending)
{
	struct ferry_guest *guest = (struct ferry_guest *)((char *)ending - offsetof(struct ferry_guest, ending));
	int client = guest->client;
	bool answer = guest->answer;
	guest_close(guest);
	if (answer && ferry_attach_reply(client, ferrySuccess, "", -1))
		ferry_log(FERRY_LOG_INFO, "%s", ferry_last_message()); /* it has gone, which is told elsewhere */
	close(client);
}

struct ferry_ending *ferry_guest_leave(struct ferry_job *job, uint32_t rank, int client, bool answer)
{
	if (!ferry_guest_is_open(job, rank))
		return NULL;
	struct ferry_guest *guest = job->guests[rank];
	job->guests[rank] = NULL;
	guest->client = client;
	guest->answer = answer;
	guest->ending = (struct ferry_ending){.end = end_guest};
	return &guest->ending;
}

void ferry_guests_close(struct ferry_job *job)
{
	for (uint32_t rank = 0; rank < job->shared.nranks; rank++)
		if (job->guests[rank]) {
			guest_close(job->guests[rank]);
			job->guests[rank] = NULL;
		}
}
