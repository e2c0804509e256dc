/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/report.h"

#include "ipc/error.h"
#include "ipc/wait.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RETRY_MS 10 /* nothing tells when a router takes connections again */

static ferryResult_t no_memory(size_t count)
{
	return ferry_fail(ferrySystemError, "no memory for what %zu routers tell", count);
}

/* ---- asking all of them ---- */

/* A round's questions, one for each socket. */
struct round {
	struct ferry_question *questions;
	struct pollfd *entries;
	size_t count;
	uint64_t patience_ns;
};

static bool is_silent(const struct round *round, const struct ferry_question *question)
{
	return !ferry_question_is_over(question) && ferry_now_ns() - question->heard_ns >= round->patience_ns;
}

/* The question that is open since an earlier report, if the router has said nothing since. */
static bool take_over(struct ferry_report *last, struct ferry_question *question, const struct ferry_socket *socket)
{
	for (size_t i = 0; last && i < last->nopen; i++) {
		struct ferry_question *open = &last->open[i];
		struct pollfd entry = {open->connection, POLLIN | POLLRDHUP, 0};
		if (strcmp(open->router.socket.path, socket->path) != 0)
			continue;
		if (poll(&entry, 1, 0) == 0) {
			*question = *open;
			*open = last->open[--last->nopen];
			return true;
		}
	}
	return false;
}

/* Until something may have come from one that is not silent, or it is; false: there is none. */
static bool wait_for_any(struct round *round)
{
	uint64_t now = ferry_now_ns(), least_ns = UINT64_MAX;
	size_t waited = 0;
	for (size_t i = 0; i < round->count; i++) {
		const struct ferry_question *question = &round->questions[i];
		if (ferry_question_is_over(question) || is_silent(round, question))
			continue;
		uint64_t until = question->heard_ns + round->patience_ns, left = until > now ? until - now : 0;
		if (question->connection < 0 && left > RETRY_MS * 1000000)
			left = RETRY_MS * 1000000;
		least_ns = left < least_ns ? left : least_ns;
		round->entries[waited++] = (struct pollfd){question->connection, POLLIN, 0};
	}
	if (waited)
		poll(round->entries, waited, (int)(least_ns / 1000000 + 1));
	return waited;
}

static ferryResult_t ask_all(struct round *round)
{
	ferryResult_t result = ferrySuccess;
	do
		for (size_t i = 0; i < round->count && !result; i++)
			if (!ferry_question_is_over(&round->questions[i]))
				result = ferry_question_go_on(&round->questions[i]);
	while (!result && wait_for_any(round));
	return result;
}

/* ---- what they have told ---- */

/* It has not answered all: of what it may have told, nothing is for sure. */
static void say_silent(struct ferry_router_report *router, const struct ferry_question *question)
{
	double seconds = (double)(ferry_now_ns() - question->heard_ns) / 1e9;
	*router = (struct ferry_router_report){.socket = question->router.socket,
	                                       .domain = question->router.domain,
	                                       .pid = question->router.pid,
	                                       .silent = true};
	snprintf(router->trouble, sizeof router->trouble,
	         "it has not answered for %.*f s: it is stopped, busy, or hangs", seconds < 10, seconds);
}

static void add_router(struct ferry_report *report, struct ferry_question *question)
{
	size_t index = report->nrouters++;
	struct ferry_router_report *router = &report->routers[index];
	if (!ferry_question_is_over(question)) {
		say_silent(router, question);
		report->open[report->nopen++] = *question;
		*question = (struct ferry_question){.state = FERRY_QUESTION_NOBODY, .connection = -1};
		return;
	}
	*router = question->router;
	for (size_t i = 0; i < question->njobs; i++) {
		report->jobs[report->njobs] = question->jobs[i];
		report->jobs[report->njobs++].router = index;
	}
	for (size_t i = 0; i < question->ngpus; i++) {
		report->gpus[report->ngpus] = question->gpus[i];
		report->gpus[report->ngpus++].router = index;
	}
	for (size_t i = 0; i < question->ntenants; i++) {
		report->tenants[report->ntenants] = question->tenants[i];
		report->tenants[report->ntenants++].router = index;
	}
}

static ferryResult_t collect(struct ferry_report *report, struct round *round)
{
	size_t njobs = 0, ngpus = 0, ntenants = 0;
	for (size_t i = 0; i < round->count; i++) {
		njobs += round->questions[i].njobs;
		ngpus += round->questions[i].ngpus;
		ntenants += round->questions[i].ntenants;
	}
	report->routers = calloc(round->count + 1, sizeof *report->routers);
	report->open = calloc(round->count + 1, sizeof *report->open);
	report->jobs = calloc(njobs + 1, sizeof *report->jobs);
	report->gpus = calloc(ngpus + 1, sizeof *report->gpus);
	report->tenants = calloc(ntenants + 1, sizeof *report->tenants);
	if (!report->routers || !report->open || !report->jobs || !report->gpus || !report->tenants)
		return no_memory(round->count);
	for (size_t i = 0; i < round->count; i++)
		if (round->questions[i].state != FERRY_QUESTION_NOBODY)
			add_router(report, &round->questions[i]);
	return ferrySuccess;
}

static ferryResult_t ask_and_collect(struct ferry_report *report, struct ferry_report *last, double patience_s)
{
	const struct ferry_sockets *sockets = &report->sockets;
	struct round round = {.questions = calloc(sockets->count + 1, sizeof *round.questions),
	                      .entries = calloc(sockets->count + 1, sizeof *round.entries),
	                      .count = sockets->count,
	                      .patience_ns = (uint64_t)(patience_s * 1e9)};
	ferryResult_t result = round.questions && round.entries ? ferrySuccess : no_memory(sockets->count);
	for (size_t i = 0; i < round.count && !result; i++)
		if (!take_over(last, &round.questions[i], &sockets->all[i]))
			ferry_question_begin(&round.questions[i], &sockets->all[i]);
	if (!result && !(result = ask_all(&round)))
		result = collect(report, &round);
	for (size_t i = 0; round.questions && i < round.count; i++)
		ferry_question_end(&round.questions[i]);
	free(round.questions);
	free(round.entries);
	return result;
}

ferryResult_t ferry_report_take(struct ferry_report *report, struct ferry_report *last, double patience_s)
{
	*report = (struct ferry_report){.taken_ns = ferry_now_ns()};
	ferryResult_t result = ferry_sockets_find(&report->sockets);
	if (!result)
		result = ask_and_collect(report, last, patience_s);
	if (result)
		ferry_report_free(report);
	return result;
}

void ferry_report_free(struct ferry_report *report)
{
	for (size_t i = 0; i < report->nopen; i++)
		ferry_question_end(&report->open[i]);
	ferry_sockets_free(&report->sockets);
	free(report->routers);
	free(report->jobs);
	free(report->gpus);
	free(report->tenants);
	free(report->open);
	*report = (struct ferry_report){.nrouters = 0};
}
