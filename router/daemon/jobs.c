/* SPDX-License-Identifier: Apache-2.0 */
#include "router/daemon/jobs.h"

#include "ipc/error.h"
#include "router/daemon/job_thread.h"
#include "router/engine/foreign_ranks.h"
#include "router/engine/remote_ranks.h"
#include "router/failover/imported_arena.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static bool keys_are_same(const uint8_t *key, const uint8_t *other)
{
	unsigned differences = 0;
	for (int i = 0; i < FERRY_KEY_BYTES; i++)
		differences |= key[i] ^ other[i];
	return !differences;
}

struct ferry_job *ferry_jobs_find(struct ferry_jobs *jobs, uint32_t owner, const uint8_t *key)
{
	struct ferry_job *found = NULL;
	for (struct ferry_job *job = jobs->workers.jobs; job; job = job->next)
		if (keys_are_same(job->key, key) & (job->owner == owner))
			found = job;
	return found;
}

static uint64_t made_here(const struct ferry_job *job)
{
	return job->imported_arena ? 0 : FERRY_PARITIES * job->shared.arenas[job->domain].staging_bytes;
}

static void add(struct ferry_staging *sum, const struct ferry_staging *staging)
{
	for (uint32_t domain = 0; domain < FERRY_MAX_DOMAINS; domain++)
		sum->of[domain] += staging->of[domain];
}

struct ferry_tenant_use ferry_jobs_used_by(const struct ferry_jobs *jobs, const struct ferry_tenant *tenant)
{
	struct ferry_tenant_use use = {0};
	for (const struct ferry_job *job = jobs->workers.jobs; job; job = job->next) {
		if (job->tenant != tenant)
			continue;
		use.jobs++;
		use.ranks += job->shared.nranks;
		use.plans += job->plans.count;
		use.windows += job->windows;
		use.staging.of[jobs->domain] += made_here(job);
		add(&use.staging, &job->brings);
	}
	return use;
}

void ferry_jobs_allow_plans(const struct ferry_jobs *jobs, struct ferry_job *job)
{
	job->plans.most = FERRY_MAX_PLANS;
	if (!job->tenant && job->had_tenant && job->plans_had < FERRY_MAX_PLANS)
		job->plans.most = job->plans_had;
	if (!job->tenant || job->tenant->plans == UINT32_MAX)
		return;
	uint32_t others = ferry_jobs_used_by(jobs, job->tenant).plans - job->plans.count;
	uint32_t left = job->tenant->plans > others ? job->tenant->plans - others : 0;
	job->plans.most = left < FERRY_MAX_PLANS ? left : FERRY_MAX_PLANS;
}

void ferry_jobs_assign(struct ferry_job *job, const struct ferry_tenant *tenant)
{
	job->had_tenant |= job->tenant != NULL;
	job->plans_had = job->tenant ? job->tenant->plans : job->plans_had;
	job->tenant = tenant;
	atomic_store_explicit(&job->weight, tenant ? tenant->weight : 1, memory_order_relaxed);
}

static struct ferry_allowance allow(const struct ferry_tenant *tenant, const struct ferry_tenant_use *use)
{
	return (struct ferry_allowance){.tenant = tenant->name, .job = tenant->job_staging, .whole = tenant->staging,
	                                .used = use->staging};
}

ferryResult_t ferry_jobs_check_tenant(const struct ferry_jobs *jobs, const struct ferry_standing *standing,
                                      uint32_t nranks, struct ferry_allowance *allowance)
{
	const struct ferry_tenant *tenant = standing->tenant;
	*allowance = (struct ferry_allowance){.job = UINT64_MAX, .whole = UINT64_MAX};
	if (!tenant && standing->owner)
		return ferry_fail(ferryRefused, "uid %u is of no tenant of the router of domain %u any more (%s)",
		                  standing->owner, jobs->domain, jobs->config);
	if (!tenant)
		return ferrySuccess;
	struct ferry_tenant_use use = ferry_jobs_used_by(jobs, tenant);
	if (use.jobs >= tenant->jobs)
		return ferry_fail(ferryRefused, "another job in domain %u: tenant %s has %u of the %u that it may have",
		                  jobs->domain, tenant->name, use.jobs, tenant->jobs);
	if (use.ranks > tenant->ranks || nranks > tenant->ranks - use.ranks)
		return ferry_fail(ferryRefused, "the job asks for %u rank%s in domain %u, tenant %s has %u of %u left",
		                  nranks, nranks == 1 ? "" : "s", jobs->domain, tenant->name,
		                  tenant->ranks - (use.ranks < tenant->ranks ? use.ranks : tenant->ranks),
		                  tenant->ranks);
	*allowance = allow(tenant, &use);
	return ferrySuccess;
}

void ferry_jobs_count_memory(const struct ferry_jobs *jobs, uint64_t *held, uint64_t *promised)
{
	*held = *promised = 0;
	for (const struct ferry_job *job = jobs->workers.jobs; job; job = job->next) {
		const struct ferry_arena *arena = &job->shared.arenas[jobs->domain];
		uint64_t bytes = ferry_shared_held(arena->descriptor), windows;
		ferry_arena_windows(arena, &windows);
		*held += bytes;
		*promised += windows > bytes ? windows - bytes : 0;
	}
}

ferryResult_t ferry_jobs_add(struct ferry_jobs *jobs, struct ferry_job *job, const struct ferry_standing *standing)
{
	ferryResult_t result = ferry_reaper_start(&jobs->reaper);
	if (result)
		return result;
	job->number = ++jobs->numbered;
	job->owner = standing->owner;
	ferry_jobs_assign(job, standing->tenant);
	job->store = jobs->store;
	job->gpu_lanes = &jobs->gpu_lanes;
	job->mapper = &jobs->mapper;
	job->process = jobs->process;
	result = ferry_job_thread_start(job, &jobs->workers);
	if (!result)
		ferry_workers_add_job(&jobs->workers, job);
	return result;
}

static ferryResult_t job_start(struct ferry_jobs *jobs, const struct ferry_arena_shape *shape, const uint8_t *key,
                               const struct ferry_standing *standing, struct ferry_job **created)
{
	struct ferry_job *job;
	ferryResult_t result = ferry_job_new(key, shape, jobs->workers.limit, &job);
	if (result)
		return result;
	ferry_saved_shares_give(&jobs->saved_shares, standing->owner, &job->shared.arenas[job->domain]);
	if ((result = ferry_jobs_add(jobs, job, standing))) {
		ferry_job_free(job);
		return result;
	}
	*created = job;
	return ferrySuccess;
}

static ferryResult_t job_create(struct ferry_jobs *jobs, const struct ferry_attach_message *message,
                                const struct ferry_standing *standing, struct ferry_job **created)
{
	struct ferry_allowance allowance;
	struct ferry_arena_shape shape = {.domain = jobs->domain,
	                                  .ndomains = message->ndomains,
	                                  .nranks = message->nranks,
	                                  .node = jobs->layout.domains[jobs->domain].node,
	                                  .gpus = message->flags & (FERRY_ATTACH_MAPPED | FERRY_ATTACH_FOREIGN)};
	uint64_t held, promised;
	ferry_jobs_count_memory(jobs, &held, &promised);
	ferryResult_t result = ferry_jobs_check_tenant(jobs, standing, message->nranks, &allowance);
	if (!result)
		result = ferry_quota_take(&jobs->quota, message->staging, message->flags & FERRY_ATTACH_WISHED,
		                          promised, &allowance, &shape);
	if (result)
		return result;
	if ((result = job_start(jobs, &shape, message->key, standing, created))) {
		ferry_quota_give_back(&jobs->quota, shape.staging);
		return result;
	}
	ferry_log(FERRY_LOG_INFO, "domain %u: new job of %u ranks in %u domains, staging %llu bytes", jobs->domain,
	          shape.nranks, shape.ndomains, (unsigned long long)shape.staging);
	return ferrySuccess;
}

ferryResult_t ferry_jobs_join(struct ferry_jobs *jobs, const struct ferry_attach_message *message,
                              const struct ferry_standing *standing, struct ferry_job **joined)
{
	struct ferry_job *job = ferry_jobs_find(jobs, standing->owner, message->key);
	if (!job && atomic_load(&jobs->draining))
		return ferry_fail(ferryRefused, "the router of domain %u is shutting down and takes no new job",
		                  jobs->domain);
	if (!job) {
		ferryResult_t result = job_create(jobs, message, standing, &job);
		if (result)
			return result;
	}
	if (job->shared.nranks != message->nranks || job->shared.ndomains != message->ndomains)
		return ferry_fail(
		        ferryRefused,
		        "rank %u attaches to a job of %u ranks in %u domains, the job has %u ranks in %u domains "
		        "(domains that differ are other CPUs, by affinity or control group, or other values of "
		        "FERRY_LAYOUT or FERRY_DOMAINS: set the same FERRY_LAYOUT for all ranks)",
		        message->rank, message->nranks, message->ndomains, job->shared.nranks, job->shared.ndomains);
	*joined = job;
	return ferrySuccess;
}

/* Maps them into a struct of their own first, so that the job has all of them, counted, or none. */
static ferryResult_t bring(struct ferry_jobs *jobs, struct ferry_job *job, int *descriptors)
{
	struct ferry_job_arenas others = {.nranks = job->shared.nranks, .ndomains = job->shared.ndomains};
	struct ferry_allowance allowance = {.job = UINT64_MAX, .whole = UINT64_MAX};
	if (job->tenant) {
		struct ferry_tenant_use use = ferry_jobs_used_by(jobs, job->tenant);
		allowance = allow(job->tenant, &use);
	}
	ferryResult_t result = ferry_imported_arena_map_others(descriptors, job->domain, &others);
	if (result)
		return result;
	struct ferry_staging brings = ferry_imported_arena_staging(&others);
	if ((result = ferry_quota_bring(&jobs->quota, &allowance, &brings))) {
		ferry_imported_arena_unmap(&others);
		return result;
	}
	job->brings = brings;
	for (uint32_t domain = 0; domain < job->shared.ndomains; domain++)
		if (domain != job->domain)
			job->shared.arenas[domain] = others.arenas[domain];
	return ferrySuccess;
}

ferryResult_t ferry_jobs_bring(struct ferry_jobs *jobs, struct ferry_job *job, int *descriptors)
{
	for (uint32_t domain = 0; domain < job->shared.ndomains; domain++)
		if (domain != job->domain && job->shared.arenas[domain].header)
			return ferry_fail(ferryInvalidUsage, "READY a second time");
	ferryResult_t result = bring(jobs, job, descriptors);
	if (result)
		ferry_job_fail(job, result, ferry_last_message());
	return result;
}

void ferry_jobs_count_windows(const struct ferry_jobs *jobs, struct ferry_job *job)
{
	struct ferry_arena_header *header = job->shared.arenas[job->domain].header;
	const struct ferry_tenant *tenant = job->tenant;
	const uint64_t need = ferry_windows_need(&job->shared, job->domain);
	uint64_t left = UINT64_MAX;
	bool gpus = false;
	for (uint32_t rank = 0; rank < job->shared.nranks; rank++)
		gpus |= job->imports[rank] != NULL;
	if (job->takeover.at_ns) {
		left = atomic_load_explicit(&header->windows_left, memory_order_relaxed);
	} else if (tenant && tenant->windows != UINT64_MAX) {
		uint64_t used = ferry_jobs_used_by(jobs, tenant).windows;
		left = tenant->windows > used ? tenant->windows - used : 0;
	}
	atomic_store_explicit(&header->windows_left, left, memory_order_relaxed); /* `ready` follows */
	if (gpus && job->shared.nranks > 1 && need <= left)
		job->windows = need;
}

/* By the reaper. */
static void end_job(struct ferry_ending *ending)
{
	struct ferry_job *job = (struct ferry_job *)((char *)ending - offsetof(struct ferry_job, ending));
	struct ferry_jobs *jobs = ending->context;
	ferry_job_thread_join(job);
	ferry_workers_remove_job(&jobs->workers, job);
	ferry_remote_ranks_close(job);
	ferry_foreign_ranks_close(job);
	ferry_mapper_leave(&jobs->mapper, job);
	uint64_t bytes = job->freeing;
	ferry_job_free(job);
	ferry_mapper_look(&jobs->mapper);
	atomic_fetch_sub(&jobs->quota.freeing, bytes);
	ferry_log(FERRY_LOG_INFO, "domain %u: job ended", jobs->domain);
}

/*
 * Its staging counts no more from here on, though it is freed a little later: a client that starts the next job after
 * this one must not be refused for that.
 */
void ferry_jobs_destroy(struct ferry_jobs *jobs, struct ferry_job *job)
{
	atomic_store_explicit(&job->dead, 1, memory_order_release);
	ferry_workers_unlist_job(&jobs->workers, job);
	const struct ferry_arena *arena = &job->shared.arenas[job->domain];
	ferry_saved_shares_take(&jobs->saved_shares, job->owner, arena);
	ferry_quota_give_back(&jobs->quota, made_here(job));
	ferry_quota_carry_off(&jobs->quota, &job->brings);
	job->freeing = ferry_shared_held(arena->descriptor);
	atomic_fetch_add(&jobs->quota.freeing, job->freeing);
	job->ending = (struct ferry_ending){.end = end_job, .context = jobs};
	ferry_reaper_give(&jobs->reaper, &job->ending);
}

void ferry_jobs_end(struct ferry_jobs *jobs)
{
	while (jobs->workers.jobs)
		if (!atomic_load(&jobs->workers.jobs->dead))
			ferry_job_lose(jobs->workers.jobs, "the router was stopped");
		else
			ferry_jobs_destroy(jobs, jobs->workers.jobs);
	ferry_reaper_wait(&jobs->reaper);
}
