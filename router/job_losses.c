/* SPDX-License-Identifier: Apache-2.0 */
#include "router/job_losses.h"

#include "ipc/error.h"
#include "ipc/loss.h"
#include "ipc/wait.h"

#include <stdio.h>

/* What the rank has got done so far: it never gets less, and no router that goes on where another was repeats it. */
static uint64_t progress_of(const struct ferry_job *job, uint32_t rank)
{
	const struct ferry_arena *own = &job->shared.arenas[job->domain];
	const struct ferry_rank_line *line = &own->rank_lines[rank];
	/* before that the other arenas are not there, and no message is under way */
	bool ready = job->brought || atomic_load_explicit(&job->ready, memory_order_acquire);
	uint64_t sum = 0;
	for (uint32_t bank = 0; bank < FERRY_BANKS; bank++)
		sum += atomic_load_explicit(&line->finished[bank], memory_order_relaxed);
	for (uint32_t peer = 0; ready && peer < job->shared.nranks; peer++) {
		const struct ferry_arena *theirs = &job->shared.arenas[job->shared.rank_domain[peer]];
		const struct ferry_pair_line *to = &own->pair_lines[rank * own->nranks + peer];
		const struct ferry_pair_line *from = &theirs->pair_lines[peer * own->nranks + rank];
		sum += atomic_load_explicit(&to->up.value, memory_order_relaxed) +
		       atomic_load_explicit(&from->down.value, memory_order_relaxed);
	}
	return sum;
}

void ferry_job_losses_add(struct ferry_job *job, uint32_t rank, const char *why)
{
	struct ferry_loss *loss = &job->shared.arenas[job->domain].rank_lines[rank].loss;
	char text[FERRY_MESSAGE_BYTES];
	uint32_t count = ferry_loss_add(loss, progress_of(job, rank), ferry_now_ns(), why);
	if (count < FERRY_MOST_LOSSES)
		return;
	snprintf(text, sizeof text, "%u routers of domain %u in a row lost their context on rank %u's %.300s", count,
	         job->domain, rank, why);
	ferry_job_fail(job, ferryUnhandledDeviceError, text);
}
