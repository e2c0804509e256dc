/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/report.h"

#include "ipc/attach.h"
#include "ipc/error.h"
#include "ipc/wait.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE_BYTES 512

/* What is behind "name=" in a line of such words; "" if it is not there. */
static const char *value_of(const char *line, const char *name)
{
	size_t length = strlen(name);
	for (const char *word = line; *word; word += strcspn(word, " "), word += strspn(word, " "))
		if (!strncmp(word, name, length) && word[length] == '=')
			return word + length + 1;
	return "";
}

static uint64_t number_in(const char *line, const char *name)
{
	return strtoull(value_of(line, name), NULL, 10);
}

static uint64_t set_in(const char *line, const char *name)
{
	return strtoull(value_of(line, name), NULL, 16);
}

static void text_in(const char *line, const char *name, char *text, size_t bytes)
{
	const char *value = value_of(line, name);
	snprintf(text, bytes, "%.*s", (int)strcspn(value, " "), value);
}

static void read_router(const char *line, struct ferry_router_report *router)
{
	router->domain = (uint32_t)number_in(line, "domain");
	router->pid = (pid_t)number_in(line, "pid");
	router->workers = (uint32_t)number_in(line, "workers");
	router->jobs = (uint32_t)number_in(line, "jobs");
	router->failed = (uint32_t)number_in(line, "failed");
	router->ranks = (uint32_t)number_in(line, "ranks");
	router->staging = number_in(line, "staging");
	router->working_ms = strtod(value_of(line, "working_ms"), NULL);
	router->draining = *value_of(line, "state") == 'd';
}

static void read_job(const char *line, struct ferry_job_report *job)
{
	job->number = number_in(line, "number");
	job->name = (uint32_t)set_in(line, "job");
	job->nranks = (uint32_t)number_in(line, "nranks");
	text_in(line, "state", job->state, sizeof job->state);
	job->attached = set_in(line, "attached");
	job->left = set_in(line, "left");
	job->here = set_in(line, "here");
	job->staging = number_in(line, "staging");
	job->calls = number_in(line, "calls");
	job->up = number_in(line, "up");
	job->down = number_in(line, "down");
	job->waiting = set_in(line, "waiting");
	job->awaited = set_in(line, "awaited");
	job->working_ms = strtod(value_of(line, "working_ms"), NULL);
	job->waited_ms = strtod(value_of(line, "waited_ms"), NULL);
}

/* Room for one more at the end of a list of `count`; NULL: no memory. The list's room is a power of two. */
static void *room_for(void *list, size_t count, size_t bytes)
{
	return count & (count - 1) ? list : realloc(list, (count ? 2 * count : 1) * bytes);
}

static ferryResult_t no_memory(void)
{
	return ferry_fail(ferrySystemError, "no memory for what the routers tell");
}

static ferryResult_t ask_jobs(struct ferry_report *report, size_t router, int connection)
{
	char line[LINE_BYTES];
	ferryResult_t result = ferrySuccess;
	uint64_t from = 1;
	while (!(result = ferry_attach_ask_status(connection, FERRY_STATUS_JOB, from, line, sizeof line)) && *line) {
		struct ferry_job_report *jobs = room_for(report->jobs, report->njobs, sizeof *jobs);
		if (!jobs)
			return no_memory();
		report->jobs = jobs;
		struct ferry_job_report *job = &jobs[report->njobs++];
		*job = (struct ferry_job_report){.router = router};
		read_job(line, job);
		if (job->number < from)
			return ferry_fail(ferryInternalError, "job %llu where the first from %llu on was asked for",
			                  (unsigned long long)job->number, (unsigned long long)from);
		from = job->number + 1;
	}
	return result;
}

static ferryResult_t ask_gpus(struct ferry_report *report, size_t router, int connection)
{
	char line[LINE_BYTES];
	ferryResult_t result = ferrySuccess;
	for (uint64_t place = 0;
	     !(result = ferry_attach_ask_status(connection, FERRY_STATUS_GPU, place, line, sizeof line)) && *line;
	     place++) {
		struct ferry_gpu_report *gpus = room_for(report->gpus, report->ngpus, sizeof *gpus);
		if (!gpus)
			return no_memory();
		report->gpus = gpus;
		struct ferry_gpu_report *gpu = &gpus[report->ngpus++];
		*gpu = (struct ferry_gpu_report){.router = router};
		text_in(line, "gpu", gpu->uuid, sizeof gpu->uuid);
	}
	return result;
}

static ferryResult_t ask_router(struct ferry_report *report, size_t index, int connection)
{
	char line[LINE_BYTES];
	ferryResult_t result = ferry_attach_ask_status(connection, FERRY_STATUS_ROUTER, 0, line, sizeof line);
	if (result)
		return result;
	read_router(line, &report->routers[index]);
	if (!(result = ask_jobs(report, index, connection)))
		result = ask_gpus(report, index, connection);
	return result;
}

/* One that does not answer is told of, with why; a socket that nobody listens on is none, nor another user's. */
static ferryResult_t add_router(struct ferry_report *report, const struct ferry_socket *socket)
{
	int connection;
	ferryResult_t result = ferry_attach_connect(socket->path, &connection);
	if (result && (ferry_attach_nobody(result) || (result == ferryRefused && socket->path[0] == '@')))
		return ferrySuccess;
	struct ferry_router_report *routers = room_for(report->routers, report->nrouters, sizeof *routers);
	if (!routers) {
		if (!result)
			close(connection);
		return no_memory();
	}
	report->routers = routers;
	struct ferry_router_report *router = &routers[report->nrouters++];
	*router = (struct ferry_router_report){.socket = *socket};
	if (!result) {
		result = ask_router(report, report->nrouters - 1, connection);
		close(connection);
	}
	if (result)
		snprintf(router->trouble, sizeof router->trouble, "%s", ferry_last_message());
	return ferrySuccess;
}

ferryResult_t ferry_report_take(struct ferry_report *report)
{
	*report = (struct ferry_report){.taken_ns = ferry_now_ns()};
	ferryResult_t result = ferry_sockets_find(&report->sockets);
	for (size_t i = 0; i < report->sockets.count && !result; i++)
		result = add_router(report, &report->sockets.all[i]);
	if (result)
		ferry_report_free(report);
	return result;
}

void ferry_report_free(struct ferry_report *report)
{
	ferry_sockets_free(&report->sockets);
	free(report->routers);
	free(report->jobs);
	free(report->gpus);
	*report = (struct ferry_report){.nrouters = 0};
}
