/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/report.h"

#include "ipc/error.h"
#include "ipc/wait.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RETRY_MS 10 /* no event signals when a router takes connections again, or has written its page */

/* A router's counters, and whether there is a copy of them, or will be none. */
struct attempt {
	struct ferry_counters *counters;
	bool over;
};

static bool is_silent(const struct ferry_reader *reader, uint64_t patience_ns)
{
	return ferry_now_ns() - reader->heard_ns >= patience_ns;
}

/* Takes over the reader of the report before if it has not ended, or begins one. */
static void take_over(struct ferry_report *last, struct ferry_reader *reader, const struct ferry_socket *socket)
{
	ferry_reader_begin(reader, socket);
	for (size_t i = 0; last && i < last->nreaders; i++) {
		struct ferry_reader *old = &last->readers[i];
		if (strcmp(old->socket.path, socket->path) != 0 || old->state >= FERRY_READER_NOBODY)
			continue;
		*reader = *old;
		if (!reader->silent)
			reader->heard_ns = ferry_now_ns(); /* its patience begins anew with each report */
		*old = last->readers[--last->nreaders];
		return;
	}
}

/* Waits until something may have come from a router that is not silent, or one becomes silent. False: there is none. */
static bool wait_for_any(const struct ferry_report *report, const struct attempt *attempts, struct pollfd *entries,
                         uint64_t patience_ns)
{
	size_t waited = 0;
	for (size_t i = 0; i < report->nreaders; i++)
		if (!attempts[i].over && !is_silent(&report->readers[i], patience_ns))
			entries[waited++] = (struct pollfd){report->readers[i].connection, POLLIN, 0};
	if (waited)
		poll(entries, waited, RETRY_MS);
	return waited;
}

/* Reports a router that has not answered, without its older counters, which may be outdated. */
static void report_silent(struct ferry_router_report *router, struct ferry_reader *reader)
{
	double seconds = (double)(ferry_now_ns() - reader->heard_ns) / 1e9;
	router->silent = 1;
	reader->silent = true;
	snprintf(router->trouble, sizeof router->trouble,
	         "it has not answered for %.*f s: it is stopped, busy, or hangs", seconds < 10, seconds);
}

static void add_router(struct ferry_report *report, struct ferry_reader *reader, struct attempt *attempt)
{
	const char *domain = strrchr(reader->socket.path, '-');
	if (reader->state == FERRY_READER_NOBODY)
		return;
	struct ferry_router_report *router = &report->routers[report->nrouters++];
	*router = (struct ferry_router_report){.socket = reader->socket, .pid = reader->pid};
	if (domain)
		router->domain = (uint32_t)strtoul(domain + 1, NULL, 10);
	if (!attempt->over) {
		report_silent(router, reader);
	} else if (reader->state == FERRY_READER_FAILED) {
		snprintf(router->trouble, sizeof router->trouble, "%s", reader->trouble);
	} else {
		router->counters = attempt->counters;
		router->domain = router->counters->domain;
		router->pid = (pid_t)router->counters->pid;
		attempt->counters = NULL;
	}
}

static ferryResult_t read_all(struct ferry_report *report, struct attempt *attempts, struct pollfd *entries,
                              uint64_t patience_ns)
{
	for (size_t i = 0; i < report->nreaders; i++)
		if (!(attempts[i].counters = malloc(sizeof *attempts[i].counters)))
			return ferry_fail(ferrySystemError, "no memory for what %zu routers tell", report->nreaders);
	do
		for (size_t i = 0; i < report->nreaders; i++)
			if (!attempts[i].over)
				attempts[i].over = ferry_reader_go_on(&report->readers[i], attempts[i].counters);
	while (wait_for_any(report, attempts, entries, patience_ns));
	for (size_t i = 0; i < report->nreaders; i++)
		add_router(report, &report->readers[i], &attempts[i]);
	return ferrySuccess;
}

ferryResult_t ferry_report_take(struct ferry_report *report, struct ferry_report *last, double patience_s)
{
	*report = (struct ferry_report){.taken_ns = ferry_now_ns()};
	ferryResult_t result = ferry_sockets_find(&report->sockets);
	size_t count = report->sockets.count;
	struct attempt *attempts = calloc(count + 1, sizeof *attempts);
	struct pollfd *entries = calloc(count + 1, sizeof *entries);
	report->routers = calloc(count + 1, sizeof *report->routers);
	report->readers = calloc(count + 1, sizeof *report->readers);
	if (!result && (!attempts || !entries || !report->routers || !report->readers))
		result = ferry_fail(ferrySystemError, "no memory for what %zu routers tell", count);
	for (size_t i = 0; i < count && !result; i++)
		take_over(last, &report->readers[report->nreaders++], &report->sockets.all[i]);
	if (!result)
		result = read_all(report, attempts, entries, (uint64_t)(patience_s * 1e9));
	for (size_t i = 0; i < count && attempts; i++)
		free(attempts[i].counters);
	free(attempts);
	free(entries);
	if (result)
		ferry_report_free(report);
	return result;
}

void ferry_report_free(struct ferry_report *report)
{
	for (size_t i = 0; i < report->nreaders; i++)
		ferry_reader_end(&report->readers[i]);
	for (size_t i = 0; i < report->nrouters; i++)
		free(report->routers[i].counters);
	ferry_sockets_free(&report->sockets);
	free(report->routers);
	free(report->readers);
	*report = (struct ferry_report){.nrouters = 0};
}
