/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The one thread that Ferry has in the process of a rank whose router moves the data; other ranks have lanes beside it.
 * It sleeps until the other end of a socket closes, and then finds the next router (rank-lib/failover/takeover.h); and
 * where streams have nobody else left who would let them go on, it looks at their words once a millisecond. Four times
 * a second it looks whether routers do what they are there for. It calls no driver.
 */
#ifndef FERRY_RANK_LIB_FAILOVER_ROUTER_MONITOR_H
#define FERRY_RANK_LIB_FAILOVER_ROUTER_MONITOR_H

#include "ipc/ferry_types.h"

#include <stdbool.h>

/*
 * What it looks after; part of something that outlives it. The first four fields are constant while it is kept, but for
 * ferry_router_monitor_follow, the others under the router monitor's lock.
 */
struct ferry_kept {
	int descriptor;                          /* a connection; -1: none */
	void (*closed)(
	        struct ferry_kept *kept); /* once, when its other end has closed; by the router monitor's thread */
	/* once a millisecond from ferry_router_monitor_look on, until it returns false; the same */
	bool (*look)(struct ferry_kept *kept);
	/* about four times a second, as long as it is kept; the same. NULL: it sleeps on */
	void (*watch)(struct ferry_kept *kept);
	bool looks, gone, polled;                /* polled: its descriptor is among those that are waited for */
	struct ferry_kept *next;
};

/** Starts the thread if there is none. Error: ferrySystemError. */
ferryResult_t ferry_router_monitor_add(struct ferry_kept *kept);

/** When it returns, nothing of `kept` is called any more. Not from what the router monitor calls. */
void ferry_router_monitor_remove(struct ferry_kept *kept);

/** Has `look` called from now on. Any thread, also the router monitor's. */
void ferry_router_monitor_look(struct ferry_kept *kept);

/** From what the router monitor has called: the descriptor is another from now on, of which it has not seen the end. */
void ferry_router_monitor_follow(struct ferry_kept *kept, int descriptor);

/** Around a fork: nobody else has the lock; a child begins without a router monitor. */
void ferry_router_monitor_before_fork(void);
void ferry_router_monitor_after_fork(bool in_child);

#endif
