/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/run_routers.h"

#include "ipc/environment.h"
#include "ipc/error.h"
#include "ipc/publish.h"
#include "ipc/wait.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define READY_MS 20000
/*
 * Ranks end a job whose routers die without progress (ipc/publish.h). ferryrun does not know about progress: it gives a
 * domain up after as many crashes in a row, each so soon after the last end. SIGKILL comes from outside, and is no
 * crash.
 */
#define SOON_NS 1000000000ull

ferryResult_t ferry_run_routers_init(struct ferry_run_routers *routers, const char *self, const char *directory,
                                     unsigned workers, unsigned spares)
{
	const char *given = ferry_env("FERRY_ROUTER_EXE");
	const char *slash = self ? strrchr(self, '/') : NULL;
	*routers = (struct ferry_run_routers){.directory = directory, .workers = workers, .spares = spares};
	ferryResult_t result = ferry_env_switch("FERRY_TAKEOVER", true, &routers->takeover);
	if (result)
		return result;
	if (given) {
		snprintf(routers->command, sizeof routers->command, "%s", given);
		return ferrySuccess;
	}
	if (slash) {
		snprintf(routers->command, sizeof routers->command, "%.*s/ferry-router", (int)(slash - self), self);
		if (!access(routers->command, X_OK))
			return ferrySuccess;
	}
	snprintf(routers->command, sizeof routers->command, "ferry-router"); /* on PATH */
	return ferrySuccess;
}

/* number: as in struct ferry_child; ready: a descriptor by which the router tells that ranks can attach, or -1. */
static ferryResult_t start(struct ferry_run_routers *routers, struct ferry_supervisor *supervisor, uint32_t number,
                           int ready)
{
	uint32_t domain = number % FERRY_MAX_DOMAINS;
	char domain_text[16], ready_text[16], workers_text[16];
	int count = 6;
	char *argv[12] = {routers->command, "--domain",         domain_text, "--socket-dir", (char *)routers->directory,
	                  "--private-dir"};
	char *none[] = {NULL};
	snprintf(domain_text, sizeof domain_text, "%u", domain);
	snprintf(ready_text, sizeof ready_text, "%d", ready);
	snprintf(workers_text, sizeof workers_text, "%u", routers->workers);
	if (ready >= 0) {
		argv[count++] = "--ready-fd";
		argv[count++] = ready_text;
	}
	if (routers->spares)
		argv[count++] = "--spare";
	if (routers->workers) {
		argv[count++] = "--workers";
		argv[count++] = workers_text;
	}
	return ferry_start_child(supervisor, FERRY_CHILD_ROUTER, (int)number, argv, none, true);
}

/* Waits until ranks can attach to a router. *killed: a signal has killed it before. */
static ferryResult_t await_ready(struct ferry_supervisor *supervisor, int ready, uint32_t domain, const char *command,
                                 bool *killed)
{
	char byte, end[96];
	*killed = false;
	if (!ferry_supervisor_await(supervisor, ready, READY_MS)) {
		if (supervisor->asked)
			return ferry_fail_context(ferrySystemError, "waiting for the router of domain %u", domain);
		return ferry_fail(ferrySystemError, "the router of domain %u was not ready after %d s", domain,
		                  READY_MS / 1000);
	}
	if (read(ready, &byte, 1) == 1)
		return ferrySuccess;
	*killed = ferry_supervisor_report_end(supervisor, FERRY_CHILD_ROUTER, (int)domain, end, sizeof end);
	return ferry_fail(ferrySystemError, "the router of domain %u (%s) was never ready: it %s", domain, command,
	                  end);
}

/* Starts a router. *ready: the end of a pipe that becomes readable when ranks can attach; the caller closes it. */
static ferryResult_t start_one(struct ferry_run_routers *routers, struct ferry_supervisor *supervisor, uint32_t domain,
                               int *ready)
{
	int ends[2];
	if (pipe2(ends, O_CLOEXEC))
		return ferry_fail(ferrySystemError, "pipe: %s", strerror(errno));
	fcntl(ends[1], F_SETFD, 0);
	ferryResult_t result = start(routers, supervisor, domain, ends[1]);
	close(ends[1]);
	*ready = ends[0];
	if (result)
		close(ends[0]);
	return result;
}

/* Waits until a router is ready, and closes `ready`. Replaces a router that a signal kills meanwhile. */
static ferryResult_t await_one(struct ferry_run_routers *routers, struct ferry_supervisor *supervisor, uint32_t domain,
                               int ready)
{
	bool killed;
	ferryResult_t result = await_ready(supervisor, ready, domain, routers->command, &killed);
	close(ready);
	for (int again = 0; killed && routers->takeover && again < (int)FERRY_MOST_ROUTERS; again++) {
		if (!again)
			fprintf(stderr, "ferryrun: %s: another is started\n", ferry_last_message());
		if ((result = start_one(routers, supervisor, domain, &ready)))
			return result;
		result = await_ready(supervisor, ready, domain, routers->command, &killed);
		close(ready);
	}
	return result;
}

ferryResult_t ferry_run_routers_start(struct ferry_run_routers *routers, struct ferry_supervisor *supervisor,
                                      uint32_t ndomains)
{
	int ready[FERRY_MAX_DOMAINS];
	uint32_t started = 0;
	ferryResult_t result = ferrySuccess;
	while (started < ndomains && !result) /* all of them before waiting: they allocate in parallel */
		if (!(result = start_one(routers, supervisor, started, &ready[started])))
			started++;
	for (uint32_t domain = 0; domain < started; domain++)
		if (result)
			close(ready[domain]);
		else
			result = await_one(routers, supervisor, domain, ready[domain]);
	for (uint32_t spare = 0; spare < routers->spares * ndomains && !result; spare++)
		result = start(routers, supervisor, (1 + spare / ndomains) * FERRY_MAX_DOMAINS + spare % ndomains, -1);
	if (!result && routers->takeover) {
		supervisor->replace = ferry_run_routers_replace;
		supervisor->routers = routers;
	}
	return result;
}

/* Counts the end of a router that serves or stands by. Returns true if it has ended too often, which is logged once. */
static bool is_too_often(struct ferry_run_routers *routers, int domain, bool killed)
{
	uint64_t now = ferry_now_ns(), before = routers->ends[domain].last_ns;
	unsigned *crashes = &routers->ends[domain].crashes;
	routers->ends[domain].last_ns = now;
	*crashes = now - before < SOON_NS ? *crashes + !killed : !killed;
	if (*crashes <= FERRY_MOST_ROUTERS)
		return false;
	fprintf(stderr,
	        "ferryrun: %u routers of domain %d in a row crashed within a second: it is not started again\n",
	        *crashes, domain);
	return true;
}

void ferry_run_routers_replace(void *context, struct ferry_supervisor *supervisor, int number, int status)
{
	int domain = number % FERRY_MAX_DOMAINS;
	struct ferry_run_routers *routers = context;
	bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
	bool *given_up = &routers->ends[domain].given_up;
	if (*given_up || (*given_up = is_too_often(routers, domain, killed)))
		return;
	if (start(routers, supervisor, (uint32_t)number, -1))
		fprintf(stderr, "ferryrun: %s\n", ferry_last_message());
}
