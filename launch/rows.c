/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/rows.h"

#include "ipc/error.h"
#include "launch/context_memory.h"

#include <stdlib.h>
#include <string.h>

/* The same router process in the report before; NULL: it was not there. */
static const struct ferry_router_report *router_before(const struct ferry_report *before,
                                                       const struct ferry_router_report *router)
{
	for (size_t i = 0; i < before->nrouters; i++)
		if (before->routers[i].pid == router->pid &&
		    !strcmp(before->routers[i].socket.path, router->socket.path))
			return &before->routers[i];
	return NULL;
}

static const struct ferry_job_report *job_before(const struct ferry_report *before, const struct ferry_report *now,
                                                 const struct ferry_job_report *job)
{
	const struct ferry_router_report *router = router_before(before, &now->routers[job->router]);
	for (size_t i = 0; router && i < before->njobs; i++)
		if (&before->routers[before->jobs[i].router] == router && before->jobs[i].number == job->number)
			return &before->jobs[i];
	return NULL;
}

static uint64_t moved(const struct ferry_job_report *job)
{
	return job->up + job->down;
}

/* Whether it had not answered: what it has done since is not known. */
static bool was_in_trouble(const struct ferry_report *before, const struct ferry_router_report *router)
{
	for (size_t i = 0; i < before->nrouters; i++)
		if (!strcmp(before->routers[i].socket.path, router->socket.path))
			return *before->routers[i].trouble;
	return false;
}

/* A job that was not there before has done all that it has since then. */
static double gbps_of(const struct ferry_report *before, const struct ferry_report *now,
                      const struct ferry_job_report *job, double seconds)
{
	const struct ferry_job_report *old = job_before(before, now, job);
	uint64_t first = old ? moved(old) : 0;
	if (was_in_trouble(before, &now->routers[job->router]))
		return 0;
	return seconds > 0 && moved(job) > first ? (double)(moved(job) - first) / seconds / 1e9 : 0;
}

static struct ferry_job_row *row_of(struct ferry_rows *rows, const struct ferry_report *now,
                                    const struct ferry_job_report *job)
{
	const struct ferry_socket *socket = &now->routers[job->router].socket;
	size_t stem = (size_t)(strrchr(socket->path, '-') - socket->path); /* domains differ behind it */
	for (size_t i = 0; i < now->njobs; i++) {
		const struct ferry_job_report *other = &now->jobs[i];
		if (other == job)
			break;
		if (other->name != job->name ||
		    strncmp(now->routers[other->router].socket.path, socket->path, stem) != 0)
			continue;
		for (size_t j = 0; j < rows->njobs; j++)
			if (rows->jobs[j].name == job->name &&
			    rows->jobs[j].place == now->routers[other->router].socket.place)
				return &rows->jobs[j];
	}
	struct ferry_job_row *row = &rows->jobs[rows->njobs++];
	*row = (struct ferry_job_row){.name = job->name,
	                              .nranks = job->nranks,
	                              .state = job->state,
	                              .place = socket->place,
	                              .tenant = job->tenant,
	                              .attached = ~0ull};
	return row;
}

static void add_job(struct ferry_job_row *row, const struct ferry_job_report *job, double gbps)
{
	if (strcmp(job->state, "ready") != 0) /* one that has failed, or has ranks to come, tells more */
		row->state = job->state;
	row->attached &= job->attached;
	row->left |= job->left;
	row->calls = job->calls > row->calls ? job->calls : row->calls;
	row->staging += job->staging;
	row->up += job->up;
	row->down += job->down;
	row->gbps += gbps;
	row->waiting |= job->waiting;
	row->awaited |= job->awaited;
	if (job->takeovers && (!row->takeovers || job->takeover_ago_s < row->takeover_ago_s)) {
		row->takeover_ms = job->takeover_ms;
		row->takeover_ago_s = job->takeover_ago_s;
	}
	row->takeovers += job->takeovers;
	row->waited_s = job->waited_ms / 1e3 > row->waited_s ? job->waited_ms / 1e3 : row->waited_s;
}

static void make_jobs(const struct ferry_report *before, const struct ferry_report *now, struct ferry_rows *rows)
{
	for (size_t i = 0; i < now->njobs; i++) {
		const struct ferry_job_report *job = &now->jobs[i];
		double gbps = gbps_of(before, now, job, rows->interval_s);
		add_job(row_of(rows, now, job), job, gbps);
		rows->routers[job->router].gbps += gbps;
	}
	for (size_t i = 0; i < rows->njobs; i++)
		if (rows->jobs[i].awaited & ~rows->jobs[i].waiting) /* who waits himself is not to blame */
			rows->jobs[i].awaited &= ~rows->jobs[i].waiting;
}

static void make_routers(const struct ferry_report *before, const struct ferry_report *now, struct ferry_rows *rows)
{
	rows->nrouters = now->nrouters;
	for (size_t i = 0; i < now->nrouters; i++) {
		const struct ferry_router_report *router = &now->routers[i], *old = router_before(before, router);
		double worked = old && !*old->trouble ? router->working_ms - old->working_ms : 0;
		double room = rows->interval_s * 1e3 * router->workers;
		rows->routers[i].report = router;
		/* less than none: a job with its work has left */
		rows->routers[i].busy = worked <= 0 || room <= 0 ? 0 : worked > room ? 1 : worked / room;
	}
}

static void make_gpus(const struct ferry_report *now, struct ferry_rows *rows)
{
	rows->ngpus = now->ngpus;
	for (size_t i = 0; i < now->ngpus; i++) {
		const struct ferry_router_report *router = &now->routers[now->gpus[i].router];
		rows->gpus[i] = (struct ferry_gpu_row){.report = &now->gpus[i],
		                                       .router = router,
		                                       .context = ferry_context_memory(now->gpus[i].uuid, router->pid)};
	}
}

ferryResult_t ferry_rows_make(const struct ferry_report *before, const struct ferry_report *now,
                              struct ferry_rows *rows)
{
	*rows = (struct ferry_rows){.interval_s = (double)(now->taken_ns - before->taken_ns) / 1e9};
	rows->routers = calloc(now->nrouters + 1, sizeof *rows->routers);
	rows->jobs = calloc(now->njobs + 1, sizeof *rows->jobs);
	rows->gpus = calloc(now->ngpus + 1, sizeof *rows->gpus);
	rows->tenants = calloc(now->ntenants + 1, sizeof *rows->tenants);
	if (!rows->routers || !rows->jobs || !rows->gpus || !rows->tenants)
		return ferry_fail(ferrySystemError, "no memory for %zu routers, %zu jobs, %zu GPUs", now->nrouters,
		                  now->njobs, now->ngpus);
	make_routers(before, now, rows);
	make_jobs(before, now, rows);
	make_gpus(now, rows);
	rows->ntenants = now->ntenants;
	for (size_t i = 0; i < now->ntenants; i++)
		rows->tenants[i] = (struct ferry_tenant_row){&now->tenants[i], &now->routers[now->tenants[i].router]};
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
