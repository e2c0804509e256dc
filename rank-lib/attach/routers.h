/* SPDX-License-Identifier: Apache-2.0 */
/** Which routers a communicator uses, and how to come to one: find it, host it or start it. */
#ifndef FERRY_RANK_LIB_ATTACH_ROUTERS_H
#define FERRY_RANK_LIB_ATTACH_ROUTERS_H

#include "ipc/ferry_types.h"
#include "ipc/layout.h"

#include <stdbool.h>

enum ferry_router_mode {
	FERRY_ROUTER_AUTO,     /* those that answer; others are started */
	FERRY_ROUTER_REQUIRED, /* those that answer */
	FERRY_ROUTER_EMBEDDED  /* one of the ranks hosts them */
};

/* Constant once chosen; a communicator that comes out of another has the same. */
struct ferry_routers {
	enum ferry_router_mode mode;
	char directory[64], prefix[48]; /* of their sockets */
	/* where one dies, another takes its place: FERRY_TAKEOVER, and they are processes of their own */
	bool takeover;
	/* they were there, for the communicator that this one comes out of: one that is hosted and answers no more has
	 * gone with its host */
	bool met;
};

/**
 * mode: "auto", "required" or "embedded"; NULL: FERRY_ROUTER, else auto. Errors: ferryInvalidArgument, the
 * directory's.
 */
ferryResult_t ferry_routers_choose(struct ferry_routers *routers, const char *mode, const uint8_t *key);

/**
 * Connects to that domain's router, starting it if need be. Errors: what starting it says; ferryRemoteError for a
 * hosted one that was met and is gone; those of ferry_endpoint_connect.
 */
ferryResult_t ferry_routers_connect(const struct ferry_routers *routers, const struct ferry_layout *layout,
                                    uint32_t domain, int *connection);

/**
 * For who looks again and again whether that domain has a router, which nobody hosts: connects, or, where none answers
 * and ranks start them (`starts`), starts one. ferryInProgress: there is none yet. Errors: ferryRefused; what starting
 * says, or ferrySystemError, after which another may start one.
 */
ferryResult_t ferry_routers_look(const struct ferry_routers *routers, uint32_t domain, bool starts, int *connection);

#endif
