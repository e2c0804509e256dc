/* SPDX-License-Identifier: Apache-2.0 */
#include "router/daemon/counter_pages.h"

#include "ipc/error.h"
#include "ipc/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Time that workers have spent on slices; a call that ends now may count twice. */
static uint64_t working_ns(const struct ferry_job *job)
{
	uint64_t sum = atomic_load_explicit(&job->working_ns, memory_order_relaxed);
	for (uint32_t parity = 0; parity < FERRY_PARITIES; parity++)
		if (atomic_load_explicit(&job->runs[parity].seq, memory_order_relaxed))
			sum += atomic_load_explicit(&job->runs[parity].working_ns, memory_order_relaxed);
	return sum;
}

/* The next row of a table; NULL: it is full. */
#define ROW(draft, rows, count) \
	((draft)->count < sizeof (draft)->rows / sizeof *(draft)->rows ? &(draft)->rows[(draft)->count++] \
	                                                               : ((draft)->left_out++, NULL))

static void fill_head(struct ferry_jobs *jobs, struct ferry_counters *head)
{
	uint64_t promised;
	memset(head, 0, offsetof(struct ferry_counters, job_rows));
	head->written_ns = ferry_now_ns();
	head->domain = jobs->domain;
	head->pid = (uint32_t)getpid();
	head->workers = jobs->workers.limit;
	head->draining = atomic_load(&jobs->draining);
	head->gpus = atomic_load_explicit(&jobs->mapper.gpus.count, memory_order_relaxed);
	head->tenants = ferry_tenants_count(jobs->tenants);
	head->config = jobs->config != NULL;
	head->config_bad = atomic_load_explicit(&jobs->config_bad, memory_order_relaxed);
	head->staging = jobs->quota.used;
	head->staging_limit = jobs->quota.limit;
	snprintf(head->nice, sizeof head->nice, "%d", ferry_priority_got(jobs->workers.priority));
	ferry_jobs_count_memory(jobs, &head->memory, &promised);
	for (struct ferry_job *job = jobs->workers.jobs; job; job = job->next) {
		head->jobs++;
		head->failed += atomic_load_explicit(&job->dead, memory_order_relaxed);
		head->ranks += (uint32_t)__builtin_popcountll(job->attached & ~job->detached);
		head->slices += atomic_load_explicit(&job->slices, memory_order_relaxed);
		head->bytes += atomic_load_explicit(&job->bytes, memory_order_relaxed);
		head->calls_ns += atomic_load_explicit(&job->calls_ns, memory_order_relaxed);
		head->working_ns += working_ns(job);
	}
}

/* A hash in place of the key, which would let others join; of the owner, too, as users have keys of their own. */
static uint32_t name_of(const struct ferry_job *job)
{
	uint64_t hash = ferry_hash(FERRY_HASH_START, job->key, sizeof job->key);
	if (job->owner)
		hash = ferry_hash(hash, &job->owner, sizeof job->owner);
	return (uint32_t)(hash >> 40);
}

static enum ferry_counters_state state_of(const struct ferry_job *job)
{
	if (atomic_load_explicit(&job->dead, memory_order_relaxed))
		return FERRY_JOB_FAILED;
	if (job->adoption)
		return FERRY_JOB_ADOPTING;
	return atomic_load_explicit(&job->ready, memory_order_acquire) ? FERRY_JOB_READY : FERRY_JOB_ATTACHING;
}

/* Adds the counters of the rank's lanes. */
static void add_rank(struct ferry_job_counters *row, const struct ferry_rank_line *line, uint32_t rank, uint64_t now)
{
	const struct ferry_traffic *d2h = &line->traffic[FERRY_DIR_D2H], *h2d = &line->traffic[FERRY_DIR_H2D];
	uint64_t kernel_calls = atomic_load_explicit(&line->mailbox.calls, memory_order_relaxed);
	uint64_t calls = atomic_load_explicit(&d2h->calls, memory_order_relaxed) + kernel_calls;
	row->calls = calls > row->calls ? calls : row->calls;
	row->kernel_calls = kernel_calls > row->kernel_calls ? kernel_calls : row->kernel_calls;
	bool kernels = atomic_load_explicit(&line->mailbox.stage, memory_order_relaxed) == FERRY_MAILBOX_MAPPED;
	row->kernels |= kernels;
	row->on_gpus += atomic_load_explicit(&line->bounced, memory_order_relaxed);
	row->on_gpus += kernels ? atomic_load_explicit(&line->mailbox.bytes, memory_order_relaxed) : 0;
	row->d2h += atomic_load_explicit(&d2h->bytes, memory_order_relaxed);
	row->h2d += atomic_load_explicit(&h2d->bytes, memory_order_relaxed);
	for (enum ferry_direction direction = FERRY_DIR_D2H; direction <= FERRY_DIR_H2D; direction++) {
		uint64_t blockers = atomic_load_explicit(&line->traffic[direction].blockers, memory_order_relaxed);
		uint64_t since = atomic_load_explicit(&line->traffic[direction].since, memory_order_relaxed);
		if (!blockers)
			continue;
		row->waiting |= 1ull << rank;
		row->blockers |= blockers;
		if (now > since && now - since > row->waited_ns)
			row->waited_ns = now - since;
	}
}

static void fill_job(const struct ferry_job *job, uint64_t now, struct ferry_job_counters *row)
{
	const struct ferry_arena *arena = &job->shared.arenas[job->domain];
	*row = (struct ferry_job_counters){.number = job->number,
	                                   .name = name_of(job),
	                                   .nranks = job->shared.nranks,
	                                   .state = state_of(job),
	                                   .attached = job->attached,
	                                   .left = job->detached,
	                                   .staging = FERRY_PARITIES * arena->staging_bytes,
	                                   .working_ns = working_ns(job)};
	for (uint32_t rank = 0; rank < job->shared.nranks; rank++)
		if (job->attached >> rank & 1 && job->shared.rank_domain[rank] == job->domain)
			add_rank(row, &arena->rank_lines[rank], rank, now);
	if (job->takeover.at_ns) {
		row->takeovers = atomic_load_explicit(&arena->header->epoch, memory_order_relaxed);
		row->takeover_ns = job->takeover.took_ns;
		row->takeover_ago_ns = now - job->takeover.at_ns;
	}
	if (job->tenant)
		snprintf(row->tenant, sizeof row->tenant, "%s", job->tenant->name);
}

static void fill_shares(const struct ferry_job *job, struct ferry_counters *draft)
{
	const struct ferry_share_table *table = job->shared.arenas[0].shares;
	for (uint64_t at = 0; at < FERRY_SHARE_LINES; at++) {
		struct ferry_share_line line;
		struct ferry_share_counters *row;
		if (!ferry_share_line_read(&table->lines[at], &line) || !(row = ROW(draft, share_rows, nshare_rows)))
			continue;
		row->number = job->number << 8 | at;
		row->job = name_of(job);
		ferry_share_line_write(&row->line, &line);
	}
}

static void fill_links(const struct ferry_job *job, struct ferry_counters *draft)
{
	const struct ferry_rank_line *lines = job->shared.arenas[job->domain].rank_lines;
	for (uint32_t pair = 0; pair < job->shared.nranks * job->shared.nranks; pair++) {
		uint32_t from = pair / job->shared.nranks, to = pair % job->shared.nranks;
		uint64_t bytes = job->attached >> from & 1 && job->shared.rank_domain[from] == job->domain
		                         ? atomic_load_explicit(&lines[from].pushed[to], memory_order_relaxed)
		                         : 0;
		struct ferry_link_counters *row = bytes ? ROW(draft, link_rows, nlink_rows) : NULL;
		if (row)
			*row = (struct ferry_link_counters){
			        .number = job->number << 16 | from << 8 | to, .job = name_of(job), .bytes = bytes};
	}
}

static void fill_tenant(const struct ferry_jobs *jobs, const struct ferry_tenant *tenant,
                        struct ferry_tenant_counters *row)
{
	struct ferry_tenant_use use = ferry_jobs_used_by(jobs, tenant);
	*row = (struct ferry_tenant_counters){
	        .weight = tenant->weight,
	        .jobs = use.jobs,
	        .ranks = use.ranks,
	        .plans = use.plans,
	        .staging = use.staging.of[jobs->domain],
	        .windows = use.windows,
	        .jobs_limit = tenant->jobs == UINT32_MAX ? UINT64_MAX : tenant->jobs,
	        .ranks_limit = tenant->ranks == UINT32_MAX ? UINT64_MAX : tenant->ranks,
	        .plans_limit = tenant->plans == UINT32_MAX ? UINT64_MAX : tenant->plans,
	        .staging_limit = tenant->staging,
	        .job_staging_limit = tenant->job_staging,
	        .windows_limit = tenant->windows};
	snprintf(row->name, sizeof row->name, "%s", tenant->name);
	for (const struct ferry_job *job = jobs->workers.jobs; job; job = job->next)
		if (job->tenant == tenant) {
			row->bytes += atomic_load_explicit(&job->bytes, memory_order_relaxed);
			row->working_ns += working_ns(job);
		}
}

/* Rows begin with a number. */
static int compare_numbers(const void *one, const void *other)
{
	uint64_t a, b;
	memcpy(&a, one, sizeof a);
	memcpy(&b, other, sizeof b);
	return a < b ? -1 : a > b;
}

static void write_page(struct ferry_jobs *jobs, const struct ferry_user_page *user)
{
	struct ferry_counters *draft = &jobs->pages->draft;
	const struct ferry_standing *standing = &user->standing;
	struct ferry_job_counters *job_row;
	struct ferry_tenant_counters *tenant_row;
	fill_head(jobs, draft);
	for (const struct ferry_job *job = jobs->workers.jobs; job; job = job->next) {
		if (standing->owner && job->owner != standing->owner)
			continue;
		if ((job_row = ROW(draft, job_rows, njob_rows)))
			fill_job(job, draft->written_ns, job_row);
		fill_links(job, draft);
		if (!jobs->domain)
			fill_shares(job, draft);
	}
	qsort(draft->job_rows, draft->njob_rows, sizeof *draft->job_rows, compare_numbers);
	qsort(draft->share_rows, draft->nshare_rows, sizeof *draft->share_rows, compare_numbers);
	qsort(draft->link_rows, draft->nlink_rows, sizeof *draft->link_rows, compare_numbers);
	while (draft->ngpu_rows < FERRY_COUNTERS_GPUS &&
	       ferry_gpus_describe(&jobs->mapper.gpus, draft->ngpu_rows, &draft->gpu_rows[draft->ngpu_rows]))
		draft->ngpu_rows++;
	for (uint32_t i = 0; i < draft->tenants; i++) {
		const struct ferry_tenant *tenant = ferry_tenants_at(jobs->tenants, i);
		if (standing->owner && tenant != standing->tenant)
			continue;
		if ((tenant_row = ROW(draft, tenant_rows, ntenant_rows)))
			fill_tenant(jobs, tenant, tenant_row);
	}
	ferry_counters_write(user->page, draft);
}

static struct ferry_user_page *find(struct ferry_counter_pages *pages, uint32_t owner)
{
	for (uint32_t i = 0; i < pages->count; i++)
		if (pages->all[i].standing.owner == owner)
			return &pages->all[i];
	return NULL;
}

ferryResult_t ferry_counter_pages_open(struct ferry_jobs *jobs, const struct ferry_standing *standing,
                                       struct ferry_user_page **opened)
{
	struct ferry_counter_pages *pages = jobs->pages;
	if (!pages && !(jobs->pages = pages = calloc(1, sizeof *pages)))
		return ferry_fail(ferrySystemError, "no memory for counters");
	struct ferry_user_page *user = find(pages, standing->owner);
	if (!user && pages->count == FERRY_COUNTER_PAGES)
		return ferry_fail(ferryRefused, "counters for uid %u: %u users have asked for theirs, and no more may",
		                  standing->owner, pages->count);
	if (!user) {
		user = &pages->all[pages->count];
		ferryResult_t result = ferry_counters_create(&user->page, &user->descriptor);
		if (result)
			return result;
		pages->count++;
	}
	user->standing = *standing;
	user->readers++;
	pages->readers++;
	write_page(jobs, user);
	*opened = user;
	return ferrySuccess;
}

void ferry_counter_pages_close(struct ferry_jobs *jobs, struct ferry_user_page *user)
{
	if (!user)
		return;
	if (!--user->readers)
		user->standing.tenant = NULL;
	jobs->pages->readers--;
}

uint32_t ferry_counter_pages_readers(const struct ferry_jobs *jobs)
{
	return jobs->pages ? jobs->pages->readers : 0;
}

int ferry_counter_pages_renew(struct ferry_jobs *jobs)
{
	struct ferry_counter_pages *pages = jobs->pages;
	if (!ferry_counter_pages_readers(jobs))
		return -1;
	uint64_t passed_ms = (ferry_now_ns() - pages->written_ns) / 1000000;
	if (passed_ms < FERRY_COUNTERS_MS)
		return (int)(FERRY_COUNTERS_MS - passed_ms);
	for (uint32_t i = 0; i < pages->count; i++)
		if (pages->all[i].readers)
			write_page(jobs, &pages->all[i]);
	pages->written_ns = ferry_now_ns();
	return FERRY_COUNTERS_MS;
}

void ferry_counter_pages_end(struct ferry_jobs *jobs)
{
	struct ferry_counter_pages *pages = jobs->pages;
	for (uint32_t i = 0; pages && i < pages->count; i++) {
		ferry_counters_unmap(pages->all[i].page);
		close(pages->all[i].descriptor);
	}
	free(pages);
}
