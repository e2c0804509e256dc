/* SPDX-License-Identifier: Apache-2.0 */
#include "router/daemon/job_thread.h"

#include "ipc/error.h"
#include "ipc/process.h"
#include "router/daemon/sigbus.h"
#include "router/engine/foreign_ranks.h"
#include "router/engine/parts.h"
#include "router/engine/remote_ranks.h"
#include "router/gpu/mapper.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOOK_US 1000000 /* how long it sleeps before it checks whether its job is over */

/* All but `asked` is written before the job thread sees it. */
struct ferry_job_thread {
	struct ferry_workers *workers;
	pthread_t thread;
	int client; /* the client that has asked for the job to be made ready */
	/* 0 to 1 by the connection thread, to 2 by the job thread, when it has answered, or ends unasked */
	_Atomic uint32_t asked;
	_Atomic bool joined; /* the job's ranks have gone; the reaper */
};

/* All ranks wait for the header's `ready` before they ask for more (rank-lib/attach/attach.c). */
static void report_ready(struct ferry_job *job)
{
	struct ferry_arena_header *header = job->shared.arenas[job->domain].header;
	atomic_store_explicit(&job->ready, 1, memory_order_release);
	atomic_store_explicit(&header->ready, 1, memory_order_release);
	ferry_futex_wake(&header->ready, -1, true);
}

/* No client waits for an answer: the connection thread polls `opened` (router/failover/adoption.c). */
static void open_imported_arena(struct ferry_job *job)
{
	ferry_remote_ranks_find_reach(job);
	ferry_mapper_map_put_targets(job->mapper, job); /* before a lane asks for one */
	ferryResult_t result = ferry_remote_ranks_open(job);
	if (!result)
		result = ferry_foreign_ranks_open(job);
	if (!result)
		atomic_store_explicit(&job->opened, 1, memory_order_release);
	else if (!atomic_load_explicit(&job->dead, memory_order_acquire))
		ferry_job_fail(job, result, ferry_last_message());
}

static void answer_ready(struct ferry_job *job)
{
	ferry_remote_ranks_find_reach(job);
	ferryResult_t result = ferry_remote_ranks_open(job);
	if (!result)
		result = ferry_foreign_ranks_open(job);
	if (atomic_load_explicit(&job->dead, memory_order_acquire))
		result = ferry_job_failure(job); /* then that is why they could not be opened, too */
	else if (result)
		ferry_job_fail(job, result, ferry_last_message());
	else
		report_ready(job);
	ferry_attach_reply(job->job_thread->client, result, result ? ferry_last_message() : "", -1);
	ferry_job_close_client(job, job->job_thread->client);
}

/* Ranks map the arena meanwhile, and hand it to other routers. None touches its windows before the job is ready. */
static void allocate(struct ferry_job *job)
{
	const struct ferry_arena *arena = &job->shared.arenas[job->domain];
	ferryResult_t result = ferry_arena_allocate(arena, &job->dead);
	if (result && !atomic_load_explicit(&job->dead, memory_order_acquire))
		ferry_job_fail(job, result, ferry_last_message());
}

/* Whether there is work, or a call is about to come: waking up takes about as long as the call takes to get here. */
static bool has_work(struct ferry_workers *workers, struct ferry_job *job)
{
	ferry_workers_enter(workers, job);
	bool found = ferry_job_expects(job);
	found |= ferry_parts_any(job);
	if (!found)
		ferry_job_report_again(job);
	ferry_workers_leave(workers, job);
	return found;
}

/* False: a client has asked meanwhile, and is to be answered first. */
static bool end_unasked(struct ferry_job_thread *job_thread)
{
	uint32_t asked = 0;
	return atomic_compare_exchange_strong(&job_thread->asked, &asked, 2) || asked == 2;
}

/* The job is dead. Stays, as another rank may overwrite the failure before all ranks have read it. */
static void stay_by(struct ferry_job *job)
{
	struct ferry_doorbell *bell = &job->shared.arenas[job->domain].header->router;
	while (1) {
		uint32_t seen = ferry_doorbell_prepare(bell);
		if (atomic_load_explicit(&job->job_thread->joined, memory_order_acquire)) {
			ferry_doorbell_cancel(bell);
			return;
		}
		ferry_doorbell_wait(bell, seen, LOOK_US);
		ferry_job_repeat(job);
	}
}

static void *job_thread_main(void *argument)
{
	struct ferry_job *job = argument;
	struct ferry_workers *workers = job->job_thread->workers;
	struct ferry_doorbell *bell = &job->shared.arenas[job->domain].header->router;
	struct ferry_idle idle;
	bool priority_asked = false;
	ferry_idle_open(&idle, &workers->spin);
	if (workers->pin)
		ferry_layout_pin(&workers->layout, workers->domain);
	allocate(job);
	while (1) {
		ferry_priority_take(workers->priority, &priority_asked);
		uint32_t seen = ferry_doorbell_prepare(bell);
		bool asked = atomic_load_explicit(&job->job_thread->asked, memory_order_acquire) == 1;
		if (!asked && atomic_load_explicit(&job->dead, memory_order_acquire) && end_unasked(job->job_thread)) {
			ferry_doorbell_cancel(bell);
			ferry_idle_close(&idle);
			stay_by(job);
			return NULL;
		}
		if (asked) {
			ferry_doorbell_cancel(bell);
			if (job->imported_arena)
				open_imported_arena(job);
			else
				answer_ready(job);
			atomic_store_explicit(&job->job_thread->asked, 2, memory_order_release);
		} else if (has_work(workers, job)) {
			ferry_doorbell_cancel(bell);
			ferry_workers_attend(workers, job, &idle);
		} else {
			/*
			 * Not for ever: a rank may have truncated the arena, and the bell in it
			 * (router/daemon/sigbus.h).
			 */
			ferry_doorbell_wait(bell, seen, LOOK_US);
		}
	}
}

ferryResult_t ferry_job_thread_start(struct ferry_job *job, struct ferry_workers *workers)
{
	struct ferry_job_thread *job_thread = calloc(1, sizeof *job_thread);
	if (!job_thread)
		return ferry_fail(ferrySystemError, "no memory for a job's thread");
	job_thread->workers = workers;
	job->job_thread = job_thread;
	int refused = pthread_create(&job_thread->thread, NULL, job_thread_main, job);
	if (!refused)
		return ferrySuccess;
	free(job_thread);
	return ferry_fail(ferrySystemError, "a thread for the job: %s%s", strerror(refused),
	                  ferry_ulimit_threads_hint(refused));
}

void ferry_job_thread_join(struct ferry_job *job)
{
	atomic_store_explicit(&job->job_thread->joined, true, memory_order_release);
	ferry_doorbell_ring(&job->shared.arenas[job->domain].header->router);
	ferry_workers_release(job->job_thread->workers);
	pthread_join(job->job_thread->thread, NULL);
	free(job->job_thread);
	job->job_thread = NULL;
}

bool ferry_job_thread_open(struct ferry_job *job)
{
	uint32_t unasked = 0;
	if (!atomic_compare_exchange_strong(&job->job_thread->asked, &unasked, 1))
		return false;
	ferry_doorbell_ring(&job->shared.arenas[job->domain].header->router);
	return true;
}

bool ferry_job_thread_was_requested(const struct ferry_job *job)
{
	return atomic_load(&job->job_thread->asked);
}

ferryResult_t ferry_job_thread_request(struct ferry_job *job, int descriptor)
{
	struct ferry_job_thread *job_thread = job->job_thread;
	uint32_t unasked = 0;
	if (atomic_load(&job_thread->asked))
		return atomic_load(&job->dead) ? ferry_job_failure(job)
		                               : ferry_fail(ferryInvalidUsage, "READY a second time");
	job_thread->client = fcntl(descriptor, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	if (job_thread->client < 0)
		return ferry_fail(ferrySystemError, "the router has no descriptor to answer READY with: %s%s",
		                  strerror(errno), ferry_descriptors_hint(errno));
	if (!atomic_compare_exchange_strong(&job_thread->asked, &unasked, 1)) { /* it has failed the job, and ended */
		ferry_job_close_client(job, job_thread->client);
		return ferry_job_failure(job);
	}
	ferry_doorbell_ring(&job->shared.arenas[job->domain].header->router);
	return ferrySuccess;
}
