/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/rows.h"

#include "ipc/error.h"
#include "ipc/nvml.h"

#include <stdlib.h>
#include <string.h>

/* The same router process in the report before; NULL: it was not there, or had no counters. */
static const struct ferry_counters *counters_before(const struct ferry_report *before,
                                                    const struct ferry_router_report *router)
{
	for (size_t i = 0; i < before->nrouters; i++)
		if (before->routers[i].pid == router->pid &&
		    !strcmp(before->routers[i].socket.path, router->socket.path))
			return before->routers[i].counters;
	return NULL;
}

/* Whether the router had not answered before: then its work since is unknown. */
static bool was_in_trouble(const struct ferry_report *before, const struct ferry_router_report *router)
{
	for (size_t i = 0; i < before->nrouters; i++)
		if (!strcmp(before->routers[i].socket.path, router->socket.path))
			return !before->routers[i].counters;
	return false;
}

/* Returns the time between the two pages; of a router that was not there before, between the two reports. */
static double seconds_of(const struct ferry_rows *rows, const struct ferry_counters *old,
                         const struct ferry_counters *now)
{
	return old ? (double)(now->written_ns - old->written_ns) / 1e9 : rows->interval_s;
}

static uint64_t moved(const struct ferry_job_counters *job)
{
	return job->d2h + job->h2d;
}

/* Returns the job's rate. All that a new job has moved was moved since the report before. */
static double gbps_of(const struct ferry_counters *old, const struct ferry_job_counters *job, double seconds)
{
	uint64_t first = 0;
	for (uint32_t i = 0; old && i < old->njob_rows; i++)
		if (old->job_rows[i].number == job->number)
			first = moved(&old->job_rows[i]);
	return seconds > 0 && moved(job) > first ? (double)(moved(job) - first) / seconds / 1e9 : 0;
}

/* The domains of a job differ in their sockets' names behind the last '-'. */
static bool is_same_run(const char *path, const char *other)
{
	return !strncmp(path, other, (size_t)(strrchr(path, '-') - path));
}

static struct ferry_job_row *row_of(struct ferry_rows *rows, const struct ferry_router_report *router,
                                    const struct ferry_job_counters *job)
{
	for (size_t i = 0; i < rows->njobs; i++)
		if (rows->jobs[i].name == job->name && is_same_run(rows->jobs[i].path, router->socket.path))
			return &rows->jobs[i];
	struct ferry_job_row *row = &rows->jobs[rows->njobs++];
	*row = (struct ferry_job_row){.name = job->name,
	                              .nranks = job->nranks,
	                              .state = job->state,
	                              .place = router->socket.place,
	                              .path = router->socket.path,
	                              .tenant = job->tenant,
	                              .attached = ~0ull};
	return row;
}

static void add_job(struct ferry_job_row *row, const struct ferry_job_counters *job, double gbps)
{
	double waited_s = (double)job->waited_ns / 1e9, ago_s = (double)job->takeover_ago_ns / 1e9;
	if (job->state != FERRY_JOB_READY) /* the row shows a router where the job is not ready, if there is one */
		row->state = job->state;
	row->attached &= job->attached;
	row->left |= job->left;
	row->calls = job->calls > row->calls ? job->calls : row->calls;
	row->kernel_calls = job->kernel_calls > row->kernel_calls ? job->kernel_calls : row->kernel_calls;
	row->kernels |= job->kernels;
	row->staging += job->staging;
	row->on_gpus += job->on_gpus;
	row->d2h += job->d2h;
	row->h2d += job->h2d;
	row->gbps += gbps;
	row->waiting |= job->waiting;
	row->blockers |= job->blockers;
	if (job->takeovers && (!row->takeovers || ago_s < row->takeover_ago_s)) {
		row->takeover_ms = (double)job->takeover_ns / 1e6;
		row->takeover_ago_s = ago_s;
	}
	row->takeovers += job->takeovers;
	row->waited_s = waited_s > row->waited_s ? waited_s : row->waited_s;
}

/* Adds a router's rows. Its work may have become less, as a job that leaves takes its own along: then busy is 0. */
static void add_router(const struct ferry_report *before, const struct ferry_router_report *router,
                       struct ferry_rows *rows)
{
	const struct ferry_counters *old = counters_before(before, router), *now = router->counters;
	struct ferry_router_row *row = &rows->routers[rows->nrouters++];
	bool unknown = was_in_trouble(before, router);
	row->report = router;
	if (!now)
		return;
	double seconds = seconds_of(rows, old, now), room = seconds * now->workers;
	bool worked_since = old && now->working_ns > old->working_ns;
	double worked = worked_since ? (double)(now->working_ns - old->working_ns) / 1e9 : 0;
	row->busy = worked <= 0 || room <= 0 ? 0 : worked > room ? 1 : worked / room;
	for (uint32_t i = 0; i < now->njob_rows; i++) {
		double gbps = unknown ? 0 : gbps_of(old, &now->job_rows[i], seconds);
		add_job(row_of(rows, router, &now->job_rows[i]), &now->job_rows[i], gbps);
		row->gbps += gbps;
	}
	for (uint32_t i = 0; i < now->ngpu_rows; i++) {
		char uuid[FERRY_GPU_TEXT];
		ferry_gpu_uuid_print(now->gpu_rows[i].uuid, uuid);
		rows->gpus[rows->ngpus++] = (struct ferry_gpu_row){&now->gpu_rows[i], router,
		                                                   ferry_nvml_process_bytes(uuid, router->pid)};
	}
	for (uint32_t i = 0; i < now->ntenant_rows; i++)
		rows->tenants[rows->ntenants++] = (struct ferry_tenant_row){&now->tenant_rows[i], router};
}

ferryResult_t ferry_rows_make(const struct ferry_report *before, const struct ferry_report *now,
                              struct ferry_rows *rows)
{
	size_t njobs = 1, ngpus = 1, ntenants = 1;
	for (size_t i = 0; i < now->nrouters; i++) {
		const struct ferry_counters *counters = now->routers[i].counters;
		njobs += counters ? counters->njob_rows : 0;
		ngpus += counters ? counters->ngpu_rows : 0;
		ntenants += counters ? counters->ntenant_rows : 0;
	}
	*rows = (struct ferry_rows){.interval_s = (double)(now->taken_ns - before->taken_ns) / 1e9,
	                            .routers = calloc(now->nrouters + 1, sizeof *rows->routers),
	                            .jobs = calloc(njobs, sizeof *rows->jobs),
	                            .gpus = calloc(ngpus, sizeof *rows->gpus),
	                            .tenants = calloc(ntenants, sizeof *rows->tenants)};
	if (!rows->routers || !rows->jobs || !rows->gpus || !rows->tenants)
		return ferry_fail(ferrySystemError, "no memory for %zu routers, %zu jobs, %zu GPUs", now->nrouters,
		                  njobs, ngpus);
	for (size_t i = 0; i < now->nrouters; i++)
		add_router(before, &now->routers[i], rows);
	for (size_t i = 0; i < rows->njobs; i++)
		if (rows->jobs[i].blockers & ~rows->jobs[i].waiting) /* unless all of them wait */
			rows->jobs[i].blockers &= ~rows->jobs[i].waiting;
	return ferrySuccess;
}

void ferry_rows_free(struct ferry_rows *rows)
{
	free(rows->routers);
	free(rows->jobs);
	free(rows->gpus);
	free(rows->tenants);
	*rows = (struct ferry_rows){.interval_s = 0};
}
