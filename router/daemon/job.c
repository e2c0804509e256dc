/* SPDX-License-Identifier: Apache-2.0 */
#include "router/daemon/job.h"

#include "ipc/error.h"
#include "ipc/quarantine.h"
#include "ipc/rankset.h"
#include "router/daemon/sigbus.h"
#include "router/failover/recovery.h"
#include "router/gpu/imports.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct ferry_job *job_blank(const uint8_t *key, uint32_t domain)
{
	struct ferry_job *job = aligned_alloc(FERRY_APART, sizeof *job);
	if (!job) {
		ferry_fail(ferrySystemError, "no memory for a job");
		return NULL;
	}
	memset(job, 0, sizeof *job);
	memcpy(job->key, key, sizeof job->key);
	job->domain = domain;
	job->weight = 1;
	job->process = -1;
	for (uint32_t rank = 0; rank < FERRY_MAX_RANKS; rank++)
		job->flags_descriptor[rank] = -1;
	return job;
}

/* Its arenas are there. */
static void job_open(struct ferry_job *job, uint32_t workers)
{
	pthread_mutex_init(&job->admit, NULL);
	pthread_mutex_init(&job->failing, NULL);
	ferry_job_plans_open(&job->plans, &job->shared, job->domain, workers);
}

ferryResult_t ferry_job_new(const uint8_t *key, const struct ferry_arena_shape *shape, uint32_t workers,
                            struct ferry_job **made)
{
	struct ferry_job *job = job_blank(key, shape->domain);
	if (!job)
		return ferrySystemError;
	job->shared.nranks = shape->nranks;
	job->shared.ndomains = shape->ndomains;
	for (uint32_t domain = 0; domain < FERRY_MAX_DOMAINS; domain++)
		job->shared.arenas[domain].descriptor = -1;
	ferryResult_t result = ferry_arena_create(shape, &job->shared.arenas[job->domain]);
	if (result) {
		free(job);
		return result;
	}
	ferry_sigbus_add(&job->shared.arenas[job->domain]);
	job_open(job, workers);
	*made = job;
	return ferrySuccess;
}

ferryResult_t ferry_job_new_of(const uint8_t *key, const struct ferry_job_arenas *shared, uint32_t domain,
                               uint32_t workers, struct ferry_job **made)
{
	struct ferry_job *job = job_blank(key, domain);
	if (!job)
		return ferrySystemError;
	job->shared = *shared;
	job->imported_arena = true;
	job_open(job, workers);
	*made = job;
	return ferrySuccess;
}

void ferry_job_free(struct ferry_job *job)
{
	ferry_job_plans_close(&job->plans);
	for (uint32_t domain = 0; domain < FERRY_MAX_DOMAINS; domain++) {
		ferry_sigbus_remove(&job->shared.arenas[domain]);
		ferry_arena_unmap(&job->shared.arenas[domain]);
	}
	ferry_quarantine_close(job->flags_descriptor, FERRY_MAX_RANKS);
	for (uint32_t rank = 0; rank < FERRY_MAX_RANKS; rank++)
		ferry_recovery_free(job->recovery[rank]);
	free(job->adoption);
	pthread_mutex_destroy(&job->admit);
	pthread_mutex_destroy(&job->failing);
	free(job);
}

void ferry_job_welcome(struct ferry_job *job, uint32_t rank, int client, uint32_t flags, const char *why)
{
	struct ferry_arena *arena = &job->shared.arenas[job->domain];
	const int handed[FERRY_ATTACH_ANSWERED] = {arena->descriptor, job->process}, own[] = {job->process, -1};
	if (job->imported_arena) { /* it has attached, and has the arenas */
		if (ferry_attach_answer(client, ferrySuccess, flags, why, own))
			ferry_log(FERRY_LOG_INFO, "%s", ferry_last_message());
		return;
	}
	/* Answered first: a rank that is counted has the arena, so the next router can get it from that rank. */
	if (ferry_attach_answer(client, ferrySuccess, flags, why, handed))
		ferry_log(FERRY_LOG_INFO, "%s", ferry_last_message()); /* it has gone: poll reports that */
	atomic_fetch_or_explicit(&arena->header->present, 1ull << rank, memory_order_relaxed);
	atomic_fetch_add_explicit(&arena->header->attached, 1, memory_order_release);
	ferry_futex_wake(&arena->header->attached, -1, true);
}

/*
 * Wakes ranks that wait for something in the arenas. The connection thread may be mapping the other domains' arenas,
 * while this is another thread: until that is done, ranks that wait there poll by themselves.
 */
static void ring_ranks(const struct ferry_job *job)
{
	/* an adopted job comes with all arenas */
	bool known = job->imported_arena || atomic_load_explicit(&job->ready, memory_order_acquire);
	for (uint32_t rank = 0; rank < job->shared.nranks; rank++) {
		/* once: a rank may attach meanwhile, where the job thread fails the job */
		uint32_t domain = __atomic_load_n(&job->shared.rank_domain[rank], __ATOMIC_RELAXED);
		const struct ferry_arena *arena = &job->shared.arenas[domain];
		if (domain != job->domain && !known)
			continue;
		ferry_doorbell_ring(&arena->rank_lines[rank].d2h);
		ferry_doorbell_ring(&arena->rank_lines[rank].h2d);
		ferry_doorbell_ring(&arena->rank_lines[rank].app);
	}
}

void ferry_job_mark_departed(struct ferry_job *job, uint32_t rank)
{
	struct ferry_arena_header *header = job->shared.arenas[job->domain].header;
	if (job->shared.rank_domain[rank] != job->domain)
		return;
	atomic_fetch_or_explicit(&header->left, 1ull << rank, memory_order_release);
	ring_ranks(job);
}

void ferry_job_report_gone(struct ferry_job *job, uint32_t rank)
{
	atomic_fetch_or_explicit(&job->shared.arenas[job->domain].header->gone, 1ull << rank, memory_order_release);
	ring_ranks(job);
}

void ferry_job_fail(struct ferry_job *job, ferryResult_t code, const char *message)
{
	struct ferry_arena_header *header = job->shared.arenas[job->domain].header;
	ferry_log_limited(job->owner, FERRY_LOG_ERROR, "job of %u rank%s failed: %s", job->shared.nranks,
	                  job->shared.nranks == 1 ? "" : "s", message);
	pthread_mutex_lock(&job->failing);
	ferry_failure_set(&job->failure, code, message);
	ferry_failure_set(&header->failure, code, message);
	pthread_mutex_unlock(&job->failing);
	atomic_store_explicit(&header->failed, 1, memory_order_release);
	atomic_store_explicit(&job->dead, 1, memory_order_release);
	ferry_futex_wake(&header->attached, -1, true);
	ferry_futex_wake(&header->ready, -1, true);
	ring_ranks(job);
}

void ferry_job_report_again(struct ferry_job *job)
{
	struct ferry_arena_header *header = job->shared.arenas[job->domain].header;
	if (!atomic_load_explicit(&job->announced_dead, memory_order_acquire) ||
	    atomic_load_explicit(&header->failed, memory_order_relaxed))
		return;
	atomic_store_explicit(&header->failed, 1, memory_order_release);
	ring_ranks(job);
}

void ferry_job_repeat(struct ferry_job *job)
{
	struct ferry_arena_header *header = job->shared.arenas[job->domain].header;
	if (!atomic_load_explicit(&job->failure.state, memory_order_acquire) ||
	    (atomic_load_explicit(&header->failed, memory_order_relaxed) &&
	     atomic_load_explicit(&header->failure.state, memory_order_relaxed)))
		return;
	pthread_mutex_lock(&job->failing);
	ferry_failure_set(&header->failure, (ferryResult_t)job->failure.code, job->failure.message);
	pthread_mutex_unlock(&job->failing);
	atomic_store_explicit(&header->failed, 1, memory_order_release);
	ring_ranks(job);
}

/* An adopted job was ready before, and its arenas are known. */
static bool has_all_arenas(const struct ferry_job *job)
{
	return atomic_load_explicit(&job->ready, memory_order_acquire) || job->adoption;
}

/* Before the job is ready ranks write it in every arena, so reading this one is enough. */
static bool failed_by_rank(const struct ferry_job *job, char *text, size_t bytes, ferryResult_t *code)
{
	char message[FERRY_MESSAGE_BYTES];
	uint32_t theirs;
	for (uint32_t rank = 0; rank < job->shared.nranks; rank++) {
		uint32_t domain = has_all_arenas(job) ? job->shared.rank_domain[rank] : job->domain;
		if (!ferry_failure_read(&job->shared.arenas[domain].rank_lines[rank].failure, &theirs, message))
			continue;
		snprintf(text, bytes, "rank %u: %s", rank, message);
		*code = theirs == ferryInvalidUsage ? ferryInvalidUsage : ferryRemoteError;
		return true;
	}
	return false;
}

/* Whether a router of another domain, or this one's predecessor, has failed the job. */
static bool failed_by_router(const struct ferry_job *job, char *text, size_t bytes, ferryResult_t *code)
{
	char message[FERRY_MESSAGE_BYTES];
	uint32_t theirs;
	for (uint32_t domain = 0; domain < job->shared.ndomains; domain++) {
		if (domain != job->domain && !has_all_arenas(job))
			continue;
		if (!ferry_failure_read(&job->shared.arenas[domain].header->failure, &theirs, message))
			continue;
		snprintf(text, bytes, "%s", message);
		*code = ferry_failure_result(theirs, ferryInternalError);
		return true;
	}
	return false;
}

/*
 * Reads the failure that is in the arenas already. A rank that gives up has written one there before, or read one. So
 * a router that sees the rank's connection closed, or its process ended, finds the cause here, and does not name the
 * rank.
 */
static bool is_announced(const struct ferry_job *job, char *text, size_t bytes, ferryResult_t *code)
{
	return failed_by_rank(job, text, bytes, code) || failed_by_router(job, text, bytes, code);
}

void ferry_job_close_client(const struct ferry_job *job, int client)
{
	if (job->owner)
		ferry_quarantine_close(&client, 1);
	else
		close(client);
}

bool ferry_job_failure_is_announced(const struct ferry_job *job)
{
	char text[2 * FERRY_MESSAGE_BYTES];
	ferryResult_t code;
	return is_announced(job, text, sizeof text, &code);
}

void ferry_job_lose(struct ferry_job *job, const char *message)
{
	char text[2 * FERRY_MESSAGE_BYTES], missing[FERRY_RANKSET_TEXT];
	ferryResult_t code = ferryRemoteError;
	uint64_t absent = ferry_rankset_all(job->shared.nranks) & ~job->attached;
	if (!is_announced(job, text, sizeof text, &code)) {
		snprintf(text, sizeof text, "%s", message);
		if (absent && !job->adoption)
			snprintf(text, sizeof text, "%s; %s had not attached to domain %u", message,
			         ferry_rankset_print(absent, missing), job->domain);
	}
	ferry_job_fail(job, code, text);
}

ferryResult_t ferry_job_failure(struct ferry_job *job)
{
	char message[FERRY_MESSAGE_BYTES];
	uint32_t code;
	if (!ferry_failure_read(&job->failure, &code, message))
		return ferry_fail(ferryRemoteError, "the job has failed");
	return ferry_fail((ferryResult_t)code, "the job has failed: %s", message);
}

/* Whether this router moves its data once the job is ready, when the remote rank is opened. */
static bool is_to_be_moved(const struct ferry_job *job, uint32_t rank)
{
	return job->imports[rank] && ferry_imports_gpu(job->imports[rank]);
}

ferryResult_t ferry_job_add_plan(struct ferry_job *job, uint32_t rank, const void *blob, uint64_t bytes)
{
	uint64_t hash = bytes < sizeof(struct ferry_plan) ? 0 : ((const struct ferry_plan *)blob)->hash;
	if (!job->adoption && !atomic_load_explicit(&job->ready, memory_order_acquire))
		return ferry_fail(ferryInvalidUsage, "plan %016" PRIx64 " before the job was ready", hash);
	/*
	 * While the job is adopted all ranks hand over their plans. Of ranks with lanes of their own rank 0 alone drops
	 * plans.
	 */
	bool moved = job->remote_ranks[rank] || (job->adoption && is_to_be_moved(job, rank));
	return ferry_job_plans_add(&job->plans, job->adoption && !moved ? 0 : rank, moved, blob, bytes);
}

/* ---- calls ---- */

/* The next call of this parity, if rank 0 has submitted it: 0 if not. */
static uint64_t submitted(struct ferry_job *job, uint32_t parity)
{
	struct ferry_descriptor *first = &ferry_rank_line(&job->shared, 0)->ring[parity];
	uint64_t seq = atomic_load_explicit(&first->seq, memory_order_acquire);
	return seq > atomic_load_explicit(&job->runs[parity].last, memory_order_relaxed) &&
	                       seq % FERRY_PARITIES == parity
	               ? seq
	               : 0;
}

static bool all_submitted(struct ferry_job *job, uint32_t parity, uint64_t seq)
{
	for (uint32_t rank = 1; rank < job->shared.nranks; rank++)
		if (atomic_load_explicit(&ferry_rank_line(&job->shared, rank)->ring[parity].seq,
		                         memory_order_acquire) != seq)
			return false;
	return true;
}

void ferry_job_end_call(struct ferry_job *job, uint32_t parity, uint64_t seq, struct ferry_job_plan *plan)
{
	atomic_store_explicit(&job->runs[parity].seq, 0, memory_order_release);
	ferry_job_release_plan(plan);
	atomic_store_explicit(&job->shared.arenas[job->domain].header->finished[parity], seq, memory_order_release);
	ferry_wake(&job->shared, ferry_rankset_all(job->shared.nranks), 0, 0);
}

static void start(struct ferry_job *job, uint32_t parity, uint64_t seq, struct ferry_job_plan *plan)
{
	struct ferry_run *run = &job->runs[parity];
	uint64_t left = ferry_works_arm(&plan->works, plan->plan, parity, seq, run->resumes);
	run->resumes = false;
	if (!left) {
		atomic_store_explicit(&run->last, seq, memory_order_relaxed);
		ferry_job_end_call(job, parity, seq, plan);
		return;
	}
	run->began_ns = ferry_now_ns();
	atomic_store_explicit(&run->working_ns, 0, memory_order_relaxed);
	atomic_store_explicit(&run->left, left, memory_order_relaxed);
	atomic_store_explicit(&run->plan, plan, memory_order_relaxed);
	atomic_store_explicit(&run->seq, seq, memory_order_release);
	/*
	 * After seq: a thread that reads in between must see either a call that came or one that runs. A thread that
	 * acts on that needs `admit`, held here.
	 */
	atomic_store_explicit(&run->last, seq, memory_order_release);
}

static void admit_parity(struct ferry_job *job, uint32_t parity)
{
	struct ferry_descriptor_fields calls[FERRY_MAX_RANKS], first;
	uint64_t seq = submitted(job, parity);
	if (!seq || !all_submitted(job, parity, seq))
		return;
	for (uint32_t rank = 0; rank < job->shared.nranks; rank++)
		ferry_descriptor_read(&ferry_rank_line(&job->shared, rank)->ring[parity], &calls[rank]);
	/*
	 * Ranks do not wait for a router without work in the call: they may have gone on and be writing their next
	 * descriptors.
	 */
	ferry_full_fence();
	if (submitted(job, parity) != seq || !all_submitted(job, parity, seq))
		return;
	first = calls[0];
	for (uint32_t rank = 0; rank < job->shared.nranks; rank++) {
		char text[FERRY_MESSAGE_BYTES];
		job->runs[parity].scalars[rank] = calls[rank].scalar;
		if (ferry_descriptor_agree(&first, &calls[rank]))
			continue;
		ferry_descriptor_disagreement(text, sizeof text, seq, 0, &first, rank, &calls[rank]);
		ferry_job_fail(job, ferryInvalidUsage, text);
		return;
	}
	if (!(first.domains >> job->domain & 1)) { /* nothing to do here */
		atomic_store_explicit(&job->runs[parity].last, seq, memory_order_relaxed);
		return;
	}
	struct ferry_job_plan *entry = ferry_job_plans_find(&job->plans, first.plan_hash);
	if (!entry) {
		char text[FERRY_MESSAGE_BYTES];
		snprintf(text, sizeof text, "call %llu names plan %016llx, which this router does not have",
		         (unsigned long long)seq, (unsigned long long)first.plan_hash);
		ferry_job_fail(job, ferryInternalError, text);
		return;
	}
	start(job, parity, seq, entry);
}

/* Without the lock, whose cache line would pass from core to core with every check. */
bool ferry_job_may_admit(struct ferry_job *job)
{
	if (!atomic_load_explicit(&job->ready, memory_order_acquire))
		return false;
	for (uint32_t parity = 0; parity < FERRY_PARITIES; parity++) {
		uint64_t seq = atomic_load_explicit(&job->runs[parity].seq, memory_order_acquire)
		                       ? 0
		                       : submitted(job, parity);
		if (seq && all_submitted(job, parity, seq))
			return true;
	}
	return false;
}

void ferry_job_admit(struct ferry_job *job)
{
	if (!ferry_job_may_admit(job) || pthread_mutex_trylock(&job->admit))
		return;
	for (uint32_t parity = 0; parity < FERRY_PARITIES; parity++)
		if (!atomic_load_explicit(&job->runs[parity].seq, memory_order_acquire) &&
		    !atomic_load_explicit(&job->dead, memory_order_relaxed))
			admit_parity(job, parity);
	pthread_mutex_unlock(&job->admit);
}

bool ferry_job_expects(struct ferry_job *job)
{
	uint64_t before = job->announced;
	if (atomic_load_explicit(&job->dead, memory_order_relaxed) ||
	    !atomic_load_explicit(&job->ready, memory_order_acquire))
		return false;
	for (uint32_t rank = 0; rank < job->shared.nranks; rank++) {
		uint64_t announced = atomic_load_explicit(&ferry_rank_line(&job->shared, rank)->announced,
		                                          memory_order_acquire);
		if (announced > job->announced)
			job->announced = announced;
	}
	return job->announced > before;
}
