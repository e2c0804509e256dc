/* SPDX-License-Identifier: Apache-2.0 */
#include "router/failover/adoption.h"

#include "ipc/deadline.h"
#include "ipc/environment.h"
#include "ipc/error.h"
#include "ipc/process.h"
#include "ipc/publish.h"
#include "ipc/rankset.h"
#include "router/daemon/job_thread.h"
#include "router/engine/foreign_ranks.h"
#include "router/engine/remote_ranks.h"
#include "router/failover/imported_arena.h"
#include "router/failover/recovery.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOOK_MS 10

/* A job that ranks are bringing. */
struct ferry_adoption {
	uint64_t come;     /* bit r: rank r has handed over everything */
	uint64_t since_ns; /* the first of them has had no router since then */
	uint64_t until_ns; /* when the router stops waiting for ranks that have not come */
	bool opening;      /* all have come; the job thread makes ready what moves their data, or has */
};

/* ---- the job ---- */

/* On the connection thread: the arenas are closed in quarantine, which ferry_job_free by itself would not do. */
static void discard(struct ferry_job *job)
{
	ferry_imported_arena_unmap(&job->shared);
	ferry_job_free(job);
}

static ferryResult_t open_job(const struct ferry_jobs *jobs, const struct ferry_attach_message *message,
                              int *descriptors, struct ferry_job **made)
{
	struct ferry_job_arenas shared;
	long seconds;
	ferryResult_t result = ferry_deadline_seconds(&seconds);
	if (!result)
		result = ferry_imported_arena_map(message, jobs->domain, descriptors, &shared);
	if (result)
		return result;
	if ((result = ferry_job_new_of(message->key, &shared, jobs->domain, jobs->workers.limit, made))) {
		ferry_imported_arena_unmap(&shared);
		return result;
	}
	uint64_t now = ferry_now_ns();
	struct ferry_job *job = *made;
	job->adoption = calloc(1, sizeof *job->adoption);
	if (!job->adoption) {
		discard(job);
		return ferry_fail(ferrySystemError, "no memory for a job");
	}
	job->adoption->since_ns = now;
	job->adoption->until_ns = now + (uint64_t)seconds * 1000000000u;
	for (uint32_t parity = 0; parity < FERRY_PARITIES; parity++) {
		job->runs[parity].last = atomic_load_explicit(&shared.arenas[jobs->domain].header->finished[parity],
		                                              memory_order_acquire);
		job->runs[parity].resumes = true;
	}
	/* The threads that slept there have ended: none needs to be woken. */
	atomic_store_explicit(&shared.arenas[jobs->domain].header->router.sleepers, 0, memory_order_relaxed);
	return ferrySuccess;
}

static ferryResult_t make_job(struct ferry_jobs *jobs, const struct ferry_attach_message *message,
                              const struct ferry_standing *standing, int *descriptors, struct ferry_job **made)
{
	struct ferry_allowance allowance;
	struct ferry_job *job;
	ferryResult_t result = ferry_jobs_check_tenant(jobs, standing, message->nranks, &allowance);
	if (!result)
		result = open_job(jobs, message, descriptors, &job);
	if (result)
		return result;
	const struct ferry_staging brings = ferry_imported_arena_staging(&job->shared);
	if ((result = ferry_quota_bring(&jobs->quota, &allowance, &brings))) {
		discard(job);
		return result;
	}
	job->brings = brings;
	if ((result = ferry_jobs_add(jobs, job, standing))) {
		ferry_quota_carry_off(&jobs->quota, &brings);
		discard(job);
		return result;
	}
	*made = job;
	return ferrySuccess;
}

/* The job is there already: an earlier rank has handed over its arenas. */
static ferryResult_t check_same(const struct ferry_job *job, const struct ferry_attach_message *message,
                                const int *descriptors)
{
	if (!job->adoption)
		return ferry_fail(ferryRefused, "rank %u hands over a job that this router has made, or serves already",
		                  message->rank);
	bool same = job->shared.nranks == message->nranks && job->shared.ndomains == message->ndomains &&
	            ferry_imported_arena_are_same(&job->shared, descriptors);
	return same ? ferrySuccess
	            : ferry_fail(ferryRefused, "rank %u hands over other arenas than the ranks before it",
	                         message->rank);
}

/* The old router's lanes that moved this rank's data have ended: clears what they said last of themselves. */
static void forget_lanes(const struct ferry_job *job, uint32_t rank)
{
	struct ferry_rank_line *line = ferry_rank_line(&job->shared, rank);
	for (enum ferry_direction direction = FERRY_DIR_D2H; direction <= FERRY_DIR_H2D; direction++)
		atomic_store_explicit(&line->traffic[direction].moves, 0, memory_order_relaxed);
}

ferryResult_t ferry_adoption_join(struct ferry_jobs *jobs, const struct ferry_attach_message *message,
                                  const struct ferry_standing *standing, int *descriptors, struct ferry_job **joined)
{
	struct ferry_job *job = ferry_jobs_find(jobs, standing->owner, message->key);
	ferryResult_t result;
	bool known = job;
	if (!known && atomic_load(&jobs->draining))
		return ferry_fail(ferryRefused, "the router of domain %u is shutting down and takes no new job",
		                  jobs->domain);
	result = known ? check_same(job, message, descriptors)
	               : make_job(jobs, message, standing, descriptors, &job);
	if (result)
		return result;
	if (atomic_load(&job->dead))
		result = ferry_job_failure(job);
	else if (job->adoption->opening)
		result = ferry_fail(ferryRefused, "rank %u comes when all have come, or left", message->rank);
	else if (job->attached >> message->rank & 1)
		result = ferry_fail(ferryRefused, "rank %u has handed over its part of the job already", message->rank);
	else if (job->shared.rank_domain[message->rank] != message->domain)
		result = ferry_fail(ferryRefused, "rank %u is in domain %u, not in %u", message->rank,
		                    job->shared.rank_domain[message->rank], message->domain);
	if (result) {
		if (!known) /* it was made for this rank */
			ferry_jobs_destroy(jobs, job);
		return result;
	}
	job->attached |= 1ull << message->rank;
	if (message->flags & FERRY_ATTACH_MAPPED)
		forget_lanes(job, message->rank);
	if (message->hash < job->adoption->since_ns)
		job->adoption->since_ns = message->hash;
	*joined = job;
	return ferrySuccess;
}

/* ---- the ranks ---- */

static uint64_t absent(const struct ferry_job *job)
{
	return ferry_rankset_all(job->shared.nranks) & ~job->adoption->come & ~ferry_departed(&job->shared);
}

static bool any_moved(const struct ferry_job *job)
{
	for (uint32_t rank = 0; rank < job->shared.nranks; rank++)
		if (job->imports[rank])
			return true;
	return false;
}

static void publish_released(const struct ferry_job *job, uint64_t ranks)
{
	atomic_fetch_or_explicit(&job->shared.arenas[job->domain].header->released, ranks, memory_order_release);
}

void ferry_adoption_leave(struct ferry_job *job, uint32_t rank)
{
	if (!job->adoption || !job->imports[rank])
		return;
	publish_released(job, 1ull << rank);
	ferry_doorbell_ring(&ferry_rank_line(&job->shared, rank)->app);
}

/* For ranks that have left while the job was adopted: ends all that has been mapped and opened for them meanwhile. */
static void close_departed(struct ferry_jobs *jobs, struct ferry_job *job)
{
	for (uint64_t left = ferry_departed(&job->shared) | job->detached; left; left &= left - 1) {
		uint32_t rank = ferry_rankset_lowest(left);
		struct ferry_ending *ending = ferry_remote_rank_leave(job, rank, -1, false, false);
		if (!ending)
			ending = ferry_foreign_rank_leave(job, rank, -1, false);
		if (ending)
			ferry_reaper_give(&jobs->reaper, ending);
		else if (job->imports[rank]) /* it has not come, so no lane has it */
			ferry_imports_ended(job->imports[rank], UINT64_MAX);
	}
}

/* All ranks have come: the job goes on. */
static void serve(struct ferry_jobs *jobs, struct ferry_job *job)
{
	struct ferry_arena_header *header = job->shared.arenas[job->domain].header;
	uint64_t now = ferry_now_ns(), since = job->adoption->since_ns;
	uint64_t epoch = atomic_load_explicit(&header->epoch, memory_order_relaxed) + 1;
	job->attached |= ferry_departed(&job->shared); /* ranks that have left are not waited for */
	job->takeover = (struct ferry_takeover_reported){.at_ns = now, .took_ns = now - since};
	ferry_jobs_count_windows(jobs, job);
	jobs->takeovers++;
	free(job->adoption);
	job->adoption = NULL;
	atomic_store_explicit(&header->epoch, epoch, memory_order_release);
	atomic_store_explicit(&job->ready, 1, memory_order_release);
	atomic_store_explicit(&header->ready, 1, memory_order_release);
	ferry_futex_wake(&header->ready, -1, true);
	close_departed(jobs, job);
	/* The old router may have published without waking. This router's job thread is among the threads that wait. */
	ferry_wake_all(&job->shared);
	ferry_log(FERRY_LOG_INFO,
	          "domain %u: took the place of a router that ended, for a job of %u ranks: %.1f ms after a rank "
	          "missed it; number %llu",
	          jobs->domain, job->shared.nranks, (double)(now - since) / 1e6, (unsigned long long)epoch);
}

/* Frees what absent ranks have handed over: they have left, some in the middle of that. */
static void forget_absent(struct ferry_job *job)
{
	for (uint32_t rank = 0; rank < job->shared.nranks; rank++) {
		if (job->adoption->come >> rank & 1)
			continue;
		ferry_recovery_free(job->recovery[rank]);
		job->recovery[rank] = NULL;
	}
}

bool ferry_adoption_takes(const struct ferry_job *job, uint32_t rank)
{
	return job->adoption && !job->adoption->opening && job->imports[rank] && !job->imports[rank]->foreign_rank;
}

/* Serves the job: at once where no data is moved here; else once the job thread has opened the lanes. */
static void go_on(struct ferry_jobs *jobs, struct ferry_job *job)
{
	if (!any_moved(job)) {
		serve(jobs, job);
		return;
	}
	if (!job->adoption->opening) {
		forget_absent(job);
		job->adoption->opening = ferry_job_thread_open(job);
		if (!job->adoption->opening)
			return; /* it has ended: the job has failed */
	}
	if (!atomic_load_explicit(&job->opened, memory_order_acquire))
		return;
	serve(jobs, job);
}

ferryResult_t ferry_adoption_come(struct ferry_jobs *jobs, struct ferry_job *job, uint32_t rank,
                                  const struct ferry_attach_message *message)
{
	if (!job->adoption || job->adoption->opening) /* then the rank had left before */
		return ferry_fail(ferryInvalidUsage, "rank %u has nothing to hand over: its job is served already",
		                  rank);
	if (ferry_adoption_takes(job, rank)) {
		ferryResult_t result = ferry_recovery_add(&job->recovery[rank], NULL, 0);
		if (result)
			return result;
		job->recovery[rank]->number = message->hash;
		job->recovery[rank]->calls = message->staging;
	}
	job->adoption->come |= 1ull << rank;
	if (!absent(job) && !atomic_load(&job->dead))
		go_on(jobs, job);
	return ferrySuccess;
}

/* Whether a rank that has not attached here has died; the connection of an attached one closes when it dies. */
static bool has_died(const struct ferry_job *job, uint32_t rank)
{
	const struct ferry_rank_line *line = ferry_rank_line(&job->shared, rank);
	uint32_t process = atomic_load_explicit(&line->process, memory_order_relaxed);
	uint64_t names = atomic_load_explicit(&line->process_names, memory_order_relaxed);
	if (job->attached >> rank & 1 || !process || process > INT32_MAX || names != ferry_process_names())
		return false;
	return !ferry_process_lives((pid_t)process,
	                            atomic_load_explicit(&line->process_start, memory_order_relaxed));
}

static void watch(struct ferry_jobs *jobs, struct ferry_job *job, uint64_t now)
{
	char text[FERRY_MESSAGE_BYTES], missing[FERRY_RANKSET_TEXT];
	uint64_t ranks = absent(job), dead = 0;
	for (uint64_t left = ranks; left; left &= left - 1)
		if (has_died(job, ferry_rankset_lowest(left)))
			dead |= left & -left;
	dead &= ~ferry_departed(&job->shared); /* read after the rank ended: it may have left before */
	if (dead) {
		snprintf(text, sizeof text, "rank %u of %u died while the router of domain %u was being replaced",
		         ferry_rankset_lowest(dead), job->shared.nranks, job->domain);
		ferry_job_lose(job, text);
	} else if (now > job->adoption->until_ns) {
		snprintf(text, sizeof text,
		         "the router of domain %u ended, and %s did not come to the one that took its place in time "
		         "(FERRY_ATTACH_TIMEOUT sets the seconds)",
		         job->domain, ferry_rankset_print(ranks, missing));
		ferry_job_lose(job, text);
	} else if (!ranks) { /* the last of them has left, or the job thread may be done */
		go_on(jobs, job);
	}
}

/*
 * The job has failed. Where no lane has been opened here, sets the bits in `released`, so that ranks that have come let
 * their streams go on. Opened lanes do that themselves.
 */
static void released(const struct ferry_job *job)
{
	uint64_t ranks = 0;
	for (uint32_t rank = 0; rank < job->shared.nranks; rank++)
		if (job->imports[rank])
			ranks |= 1ull << rank;
	if (!job->adoption->opening)
		publish_released(job, ranks);
}

int ferry_adoptions_watch(struct ferry_jobs *jobs)
{
	int again = -1;
	uint64_t now = ferry_now_ns();
	for (struct ferry_job *job = jobs->workers.jobs; job; job = job->next) {
		if (job->adoption && !atomic_load(&job->dead))
			watch(jobs, job, now);
		if (job->adoption && atomic_load(&job->dead))
			released(job);
		else if (job->adoption)
			again = job->adoption->opening ? 1 : LOOK_MS;
	}
	return again;
}
