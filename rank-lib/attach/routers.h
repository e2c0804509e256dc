/* SPDX-License-Identifier: Apache-2.0 */
/** Which routers a communicator uses, and how a rank reaches one: it finds it or starts it. */
#ifndef FERRY_RANK_LIB_ATTACH_ROUTERS_H
#define FERRY_RANK_LIB_ATTACH_ROUTERS_H

#include "ipc/ferry_types.h"
#include "ipc/layout.h"

#include <stdbool.h>

/* Constant once chosen; a communicator that comes out of another has the same. */
struct ferry_routers {
	bool starts;        /* FERRY_ROUTER=auto: ranks start routers that do not answer; else all must answer */
	char directory[64]; /* of their sockets */
	bool takeover;      /* if a router dies, another takes its place: FERRY_TAKEOVER is on */
	struct ferry_layout layout; /* the domains, as ferry_routers_find_layout has found them */
	bool told;                  /* the layout comes from the router of domain 0 */
};

/**
 * Fills in *routers but for the layout. mode: "auto" or "required"; NULL: FERRY_ROUTER, else auto. Errors:
 * ferryInvalidArgument; those of ferry_endpoint_directory.
 */
ferryResult_t ferry_routers_choose(struct ferry_routers *routers, const char *mode);

/**
 * Finds the layout that all ranks of a job have in common: from the environment (FERRY_LAYOUT, FERRY_DOMAINS), or from
 * the router of domain 0, which is started if needed, as a rank sees only its own control group. Errors: those of
 * ferry_routers_connect and ferry_layout_load_whole; ferryRemoteError if routers keep ending for FERRY_ATTACH_TIMEOUT.
 */
ferryResult_t ferry_routers_find_layout(struct ferry_routers *routers);

/**
 * Connects to a domain's router, starting it if needed; the caller closes *connection. Errors: ferrySystemError if
 * there is no router and none can be started; those of ferry_endpoint_connect_patiently.
 */
ferryResult_t ferry_routers_connect(const struct ferry_routers *routers, uint32_t domain, int *connection);

/**
 * For a caller that polls until a domain has a router: connects, or starts a router if none answers, `starts` and
 * routers->starts. Returns ferryInProgress while there is none. Errors: ferryRefused, if there is one that is not to be
 * trusted; if both `starts`, those of connecting and of starting a router, after which another rank may start one.
 */
ferryResult_t ferry_routers_look(const struct ferry_routers *routers, uint32_t domain, bool starts, int *connection);

#endif
