/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/attach/routers.h"

#include "ipc/attach.h"
#include "ipc/deadline.h"
#include "ipc/endpoint.h"
#include "ipc/environment.h"
#include "ipc/error.h"
#include "ipc/wait.h"
#include "rank-lib/attach/spawning.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOOK_US      1000
#define MOST_MISSING 20 /* looks without a socket */

ferryResult_t ferry_routers_choose(struct ferry_routers *routers, const char *given)
{
	const char *name = given ? given : ferry_env("FERRY_ROUTER");
	bool required = name && !strcmp(name, "required");
	if (name && !required && strcmp(name, "auto"))
		return ferry_fail(ferryInvalidArgument, "FERRY_ROUTER=%s: auto or required", name);
	*routers = (struct ferry_routers){.starts = !required};
	ferryResult_t result = ferry_env_switch("FERRY_TAKEOVER", true, &routers->takeover);
	return result ? result
	              : ferry_endpoint_directory(routers->directory, sizeof routers->directory, routers->starts);
}

static ferryResult_t spawn(const struct ferry_routers *routers, uint32_t domain, const char *path)
{
	char command[4096];
	if (!ferry_router_command(command, sizeof command))
		return ferry_fail(ferrySystemError,
		                  "no router answers on %s and ferry-router is not to be found (set FERRY_ROUTER_EXE)",
		                  path);
	char layout[8192];
	ferry_layout_print(&routers->layout, layout, sizeof layout);
	return ferry_router_spawn(command, routers->directory, domain, routers->told ? layout : NULL);
}

static ferryResult_t start_router(const struct ferry_routers *routers, uint32_t domain, const char *path)
{
	if (!routers->starts)
		return ferry_fail(ferrySystemError,
		                  "no router answers on %s and FERRY_ROUTER=required: start the program with ferryrun, "
		                  "or start ferry-router --domain %u", path, domain);
	return spawn(routers, domain, path);
}

/*
 * Waits for the next router where a socket's file shows that one has died: its starter may be about to start the next.
 * The file is gone for a moment between the two.
 */
static bool has_next(const char *path)
{
	struct stat file;
	int probe, missing = 0;
	uint64_t until = ferry_now_ns() + FERRY_DEADLINE_PROBE_S * 1000000000ull;
	while (missing < MOST_MISSING && ferry_now_ns() < until) {
		usleep(LOOK_US);
		missing = !lstat(path, &file) && S_ISSOCK(file.st_mode) ? 0 : missing + 1;
		ferryResult_t result = ferry_endpoint_connect_now(path, &probe);
		if (ferry_endpoint_nobody(result))
			continue;
		if (!result)
			close(probe);
		return true;
	}
	return false;
}

/* Bounded: each round connects, starts a router, or waits for one. */
ferryResult_t ferry_routers_connect(const struct ferry_routers *routers, uint32_t domain, int *connection)
{
	char path[136];
	ferryResult_t result = ferrySuccess;
	snprintf(path, sizeof path, "%s/" FERRY_ENDPOINT_NAME, routers->directory, domain);
	for (int attempt = 0; attempt < 1000; attempt++) {
		result = ferry_endpoint_connect_patiently(path, connection);
		bool nobody = ferry_endpoint_nobody(result);
		if (!result)
			ferry_forget_message(); /* that no router answered before was no failure */
		if (!nobody)
			return result;
		if (!routers->starts && routers->takeover && has_next(path))
			continue;
		if ((result = start_router(routers, domain, path)))
			return result;
		sched_yield(); /* another starter may be between bind and listen */
	}
	return ferry_fail(ferrySystemError, "no router answers on %s, though starting one succeeded", path);
}

static ferryResult_t read_layout(int file, struct ferry_layout *layout)
{
	ssize_t bytes = pread(file, layout, sizeof *layout, 0);
	close(file);
	if (bytes == (ssize_t)sizeof *layout && layout->ndomains >= 1 && layout->ndomains <= FERRY_MAX_DOMAINS)
		return ferrySuccess;
	return ferry_fail(ferryRemoteError, "the router of domain 0 has sent no layout: %zd bytes", bytes);
}

/* Asks the next router if one ends, for idleness or by dying, before it answers. */
static ferryResult_t ask_layout(struct ferry_routers *routers)
{
	long seconds;
	bool gone;
	ferryResult_t result = ferry_deadline_seconds(&seconds);
	uint64_t until = ferry_now_ns() + (result ? 0 : (uint64_t)seconds * 1000000000u);
	if (result)
		return result;
	do {
		struct ferry_attach_message message = {.kind = FERRY_ATTACH_LAYOUT};
		int connection, file = -1;
		if ((result = ferry_routers_connect(routers, 0, &connection)))
			return result;
		result = ferry_attach_call(connection, &message, NULL, &file);
		gone = result == ferryRemoteError && ferry_endpoint_closed(connection);
		close(connection);
		if (!result)
			return read_layout(file, &routers->layout);
	} while (gone && ferry_now_ns() < until);
	return ferry_fail_context(result, "asking the router of domain 0 for the layout");
}

ferryResult_t ferry_routers_find_layout(struct ferry_routers *routers)
{
	bool given = ferry_env("FERRY_LAYOUT") || ferry_env("FERRY_DOMAINS");
	if (given)
		return ferry_layout_load_whole(&routers->layout);
	ferryResult_t result = ask_layout(routers);
	routers->told = !result;
	return result;
}

ferryResult_t ferry_routers_look(const struct ferry_routers *routers, uint32_t domain, bool starts, int *connection)
{
	char path[136];
	snprintf(path, sizeof path, "%s/" FERRY_ENDPOINT_NAME, routers->directory, domain);
	ferryResult_t result = ferry_endpoint_connect_now(path, connection);
	if (ferry_endpoint_nobody(result) && starts && routers->starts)
		result = spawn(routers, domain, path);
	else if (!result || result == ferryRefused)
		return result;
	return result && starts && routers->starts ? result : ferryInProgress;
}
