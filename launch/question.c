/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/question.h"

#include "ipc/endpoint.h"
#include "ipc/error.h"
#include "ipc/wait.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- what a line of "name=value" words tells ---- */

/* What is behind "name="; "" if it is not there. */
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
	snprintf(router->line, sizeof router->line, "%s", line);
	router->domain = (uint32_t)number_in(line, "domain");
	router->pid = (pid_t)number_in(line, "pid");
	router->workers = (uint32_t)number_in(line, "workers");
	router->jobs = (uint32_t)number_in(line, "jobs");
	router->failed = (uint32_t)number_in(line, "failed");
	router->ranks = (uint32_t)number_in(line, "ranks");
	router->staging = number_in(line, "staging");
	router->working_ms = strtod(value_of(line, "working_ms"), NULL);
	router->staging_limit = number_in(line, "staging_limit");
	router->memory = number_in(line, "memory");
	router->tenants = (uint32_t)number_in(line, "tenants");
	router->config_bad = *value_of(line, "config") == 'b';
	router->draining = *value_of(line, "state") == 'd';
}

static void read_job(const char *line, struct ferry_job_report *job)
{
	job->number = number_in(line, "number");
	job->name = (uint32_t)set_in(line, "job");
	job->nranks = (uint32_t)number_in(line, "nranks");
	text_in(line, "state", job->state, sizeof job->state);
	text_in(line, "tenant", job->tenant, sizeof job->tenant);
	job->attached = set_in(line, "attached");
	job->left = set_in(line, "left");
	job->staging = number_in(line, "staging");
	job->calls = number_in(line, "calls");
	job->up = number_in(line, "up");
	job->down = number_in(line, "down");
	job->waiting = set_in(line, "waiting");
	job->awaited = set_in(line, "awaited");
	job->working_ms = strtod(value_of(line, "working_ms"), NULL);
	job->waited_ms = strtod(value_of(line, "waited_ms"), NULL);
	job->takeovers = number_in(line, "takeovers");
	job->takeover_ms = strtod(value_of(line, "takeover_ms"), NULL);
	job->takeover_ago_s = strtod(value_of(line, "takeover_ago_s"), NULL);
}

static uint64_t limit_in(const char *line, const char *name)
{
	return *value_of(line, name) ? number_in(line, name) : UINT64_MAX;
}

static void read_tenant(const char *line, struct ferry_tenant_report *tenant)
{
	*tenant = (struct ferry_tenant_report){.number = number_in(line, "number"),
	                                       .weight = number_in(line, "weight"),
	                                       .jobs = number_in(line, "jobs"),
	                                       .ranks = number_in(line, "ranks"),
	                                       .plans = number_in(line, "plans"),
	                                       .staging = number_in(line, "staging"),
	                                       .jobs_limit = limit_in(line, "jobs_limit"),
	                                       .ranks_limit = limit_in(line, "ranks_limit"),
	                                       .plans_limit = limit_in(line, "plans_limit"),
	                                       .staging_limit = limit_in(line, "staging_limit"),
	                                       .job_staging_limit = limit_in(line, "job_staging_limit")};
	text_in(line, "tenant", tenant->name, sizeof tenant->name);
}

/* links=TO:RANK,TO:RANKa,...; what cannot be read ends them. */
static void read_gpu(const char *line, struct ferry_gpu_report *gpu)
{
	const char *next = value_of(line, "links");
	int length = 0;
	text_in(line, "gpu", gpu->uuid, sizeof gpu->uuid);
	while (gpu->nlinks < FERRY_MAX_RANKS) {
		struct ferry_link_report *link = &gpu->links[gpu->nlinks];
		if (sscanf(next, "%15[0-9a-f]:%d%n", link->to, &link->rank, &length) != 2)
			break;
		next += length;
		link->atomics = *next == 'a';
		next += link->atomics;
		gpu->nlinks++;
		if (*next++ != ',')
			break;
	}
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

static ferryResult_t fail(struct ferry_question *question, const char *why)
{
	question->state = FERRY_QUESTION_FAILED;
	snprintf(question->router.trouble, sizeof question->router.trouble, "%s", why);
	return ferrySuccess;
}

/* ---- asking ---- */

/* A message fits any socket's room, as all before it have been answered. What the router has said by itself, that it
   takes no clients, and closed, is still to be received. */
static void ask(struct ferry_question *question, enum ferry_status_of of, uint64_t from)
{
	struct ferry_attach_message message = {.kind = FERRY_ATTACH_STATUS,
	                                       .magic = FERRY_ATTACH_MAGIC,
	                                       .abi = FERRY_ATTACH_ABI,
	                                       .index = of,
	                                       .hash = from};
	question->state = FERRY_QUESTION_ASKED;
	question->of = of;
	question->from = from;
	question->received = 0;
	(void)!send(question->connection, &message, sizeof message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static ferryResult_t connect_to(struct ferry_question *question)
{
	struct ferry_router_report *router = &question->router;
	struct ucred peer;
	socklen_t bytes = sizeof peer;
	ferryResult_t result = ferry_endpoint_connect_now(router->socket.path, &question->connection);
	bool nobody = ferry_endpoint_nobody(result); /* reads errno */
	if (result)
		question->connection = -1;
	if (nobody || (result == ferryRefused && router->socket.path[0] == '@'))
		question->state = FERRY_QUESTION_NOBODY;
	else if (result && result != ferryRemoteError)
		return fail(question, ferry_last_message());
	else if (!result) {
		if (!getsockopt(question->connection, SOL_SOCKET, SO_PEERCRED, &peer, &bytes))
			router->pid = peer.pid;
		ask(question, FERRY_STATUS_ROUTER, 0);
		question->heard_ns = ferry_now_ns();
	}
	return ferrySuccess;
}

static ferryResult_t take_job(struct ferry_question *question, const char *line)
{
	struct ferry_job_report *jobs = room_for(question->jobs, question->njobs, sizeof *jobs);
	char why[128];
	if (!jobs)
		return no_memory();
	question->jobs = jobs;
	struct ferry_job_report *job = &jobs[question->njobs++];
	*job = (struct ferry_job_report){.router = 0};
	read_job(line, job);
	if (job->number >= question->from) {
		ask(question, FERRY_STATUS_JOB, job->number + 1);
		return ferrySuccess;
	}
	snprintf(why, sizeof why, "it tells of job %llu where the first from %llu on was asked for",
	         (unsigned long long)job->number, (unsigned long long)question->from);
	return fail(question, why);
}

static ferryResult_t take_gpu(struct ferry_question *question, const char *line)
{
	struct ferry_gpu_report *gpus = room_for(question->gpus, question->ngpus, sizeof *gpus);
	if (!gpus)
		return no_memory();
	question->gpus = gpus;
	struct ferry_gpu_report *gpu = &gpus[question->ngpus++];
	*gpu = (struct ferry_gpu_report){.router = 0};
	read_gpu(line, gpu);
	ask(question, FERRY_STATUS_GPU, question->from + 1);
	return ferrySuccess;
}

static ferryResult_t take_tenant(struct ferry_question *question, const char *line)
{
	struct ferry_tenant_report *tenants = room_for(question->tenants, question->ntenants, sizeof *tenants);
	if (!tenants)
		return no_memory();
	question->tenants = tenants;
	struct ferry_tenant_report *tenant = &tenants[question->ntenants++];
	read_tenant(line, tenant);
	if (tenant->number < question->from)
		return fail(question, "it tells of a tenant before the one that was asked for");
	ask(question, FERRY_STATUS_TENANT, tenant->number + 1);
	return ferrySuccess;
}

/* The reply is there: what is in it, and what is asked next. An empty line: there are no more of these. */
static ferryResult_t take_reply(struct ferry_question *question)
{
	const char *line = question->reply.message;
	question->heard_ns = ferry_now_ns();
	if (ferry_attach_check_reply(&question->reply))
		return fail(question, ferry_last_message());
	if (question->of == FERRY_STATUS_ROUTER) {
		read_router(line, &question->router);
		ask(question, FERRY_STATUS_JOB, 1);
	} else if (question->of == FERRY_STATUS_JOB && *line) {
		return take_job(question, line);
	} else if (question->of == FERRY_STATUS_JOB) {
		ask(question, FERRY_STATUS_GPU, 0);
	} else if (question->of == FERRY_STATUS_GPU && *line) {
		return take_gpu(question, line);
	} else if (question->of == FERRY_STATUS_GPU && question->router.tenants) {
		ask(question, FERRY_STATUS_TENANT, 0);
	} else if (*line) {
		return take_tenant(question, line);
	} else {
		question->state = FERRY_QUESTION_ANSWERED;
	}
	return ferrySuccess;
}

void ferry_question_begin(struct ferry_question *question, const struct ferry_socket *socket)
{
	const char *domain = strrchr(socket->path, '-');
	*question = (struct ferry_question){.connection = -1, .heard_ns = ferry_now_ns(), .router.socket = *socket};
	if (domain)
		question->router.domain = (uint32_t)strtoul(domain + 1, NULL, 10);
}

ferryResult_t ferry_question_go_on(struct ferry_question *question)
{
	ferryResult_t result = ferrySuccess;
	if (question->state == FERRY_QUESTION_CONNECTING)
		result = connect_to(question);
	while (!result && question->state == FERRY_QUESTION_ASKED) {
		size_t left = sizeof question->reply - question->received;
		ssize_t got = recv(question->connection, (char *)&question->reply + question->received, left,
		                   MSG_DONTWAIT);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0 && errno == EAGAIN)
			return ferrySuccess;
		if (got <= 0)
			return fail(question, "it closed the connection");
		question->received += (size_t)got;
		if (question->received == sizeof question->reply)
			result = take_reply(question);
	}
	return result;
}

bool ferry_question_is_over(const struct ferry_question *question)
{
	return question->state >= FERRY_QUESTION_ANSWERED;
}

void ferry_question_end(struct ferry_question *question)
{
	if (question->connection >= 0)
		close(question->connection);
	free(question->jobs);
	free(question->gpus);
	free(question->tenants);
	*question = (struct ferry_question){.state = FERRY_QUESTION_NOBODY, .connection = -1};
}
