/* SPDX-License-Identifier: Apache-2.0 */
/** Which routers a communicator uses, and how a rank reaches one: it finds it or starts it. */
#ifndef FERRY_RANK_LIB_ATTACH_ROUTERS_H
#define FERRY_RANK_LIB_ATTACH_ROUTERS_H

#include "ipc/ferry_types.h"
#include "ipc/layout.h"

#include <stdbool.h>

/* Constant once chosen; a communicator that comes out of another has the same. */
struct ferry_routers {
	bool starts;        /* FERRY_ROUTER=auto: ranks start those that do not answer; else all must */
	char directory[64]; /* of their sockets */
	bool takeover;      /* if a router dies, another takes its place: FERRY_TAKEOVER is on */
	struct ferry_layout layout; /* the domains, as ferry_routers_find_layout has found them */
	bool told;                  /* by the router of domain 0 */
};

/** mode: "auto" or "required"; NULL: FERRY_ROUTER, else auto. Errors: ferryInvalidArgument, the directory's. */
ferryResult_t ferry_routers_choose(struct ferry_routers *routers, const char *mode);

/**
 * Finds the layout that all ranks of a job have in common. Where the environment gives one (FERRY_LAYOUT,
 * FERRY_DOMAINS) it is that. Else the router of domain 0 is asked, which is started if needed: a rank's own
 * view would be that of its control group. Errors: those of ferry_routers_connect and ferry_layout_load_whole;
 * ferryRemoteError, if no router stays for FERRY_ATTACH_TIMEOUT.
 */
ferryResult_t ferry_routers_find_layout(struct ferry_routers *routers);

/**
 * Connects to that domain's router, starting it if needed. Errors: those of starting it, or of ferry_endpoint_connect.
 */
ferryResult_t ferry_routers_connect(const struct ferry_routers *routers, uint32_t domain, int *connection);

/**
 * For a caller that polls until that domain has a router. Connects, or if none answers and ranks
 * start routers (`starts`), starts one. Returns ferryInProgress while there is none. Errors: ferryRefused; those of
 * starting a router, or ferrySystemError, after which another rank may start one.
 */
ferryResult_t ferry_routers_look(const struct ferry_routers *routers, uint32_t domain, bool starts, int *connection);

#endif
