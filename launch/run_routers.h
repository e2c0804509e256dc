/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The routers of one ferryrun, a process per domain: started before the ranks, and again if one ends while ranks run,
 * which then hand their job over to it (router/failover/adoption.h).
 */
#ifndef FERRY_LAUNCH_RUN_ROUTERS_H
#define FERRY_LAUNCH_RUN_ROUTERS_H

#include "launch/supervise.h"

struct ferry_run_routers {
	char command[4096];    /* ferry-router */
	const char *directory; /* of their sockets */
	unsigned workers;      /* threads of each; 0: what it chooses */
	bool takeover;         /* routers that end are replaced */
	unsigned spares;       /* routers of each domain that stand by beside the one that serves */
	/* by domain: when a router last ended, and crashes in a row, each within a second of the end before it */
	struct {
		uint64_t last_ns;
		unsigned crashes;
		bool given_up;
	} ends[FERRY_MAX_DOMAINS];
};

/**
 * Finds ferry-router: FERRY_ROUTER_EXE, else beside this command (`self`, its path, or NULL), else on PATH. Error:
 * ferryInvalidArgument for FERRY_TAKEOVER.
 */
ferryResult_t ferry_run_routers_init(struct ferry_run_routers *routers, const char *self, const char *directory,
                                     unsigned workers, unsigned spares);

/**
 * Starts a router per domain, waits until ranks can attach to all, then starts the spares. Error: ferrySystemError,
 * with how a router ended, or that it was not ready after 20 s, or a signal to end.
 */
ferryResult_t ferry_run_routers_start(struct ferry_run_routers *routers, struct ferry_supervisor *supervisor,
                                      uint32_t ndomains);

/**
 * Called by the supervisor when the router of that number (struct ferry_child) has ended with that status (waitpid)
 * while ranks run: starts another. Gives a domain up, and says so, after too many crashes in a row.
 */
void ferry_run_routers_replace(void *routers, struct ferry_supervisor *supervisor, int number, int status);

#endif
