/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The one thread that Ferry has in the process of a rank whose router moves the data; other ranks have lanes, too. It
 * sleeps until the other end of a socket closes, and then finds the next router (rank-lib/failover/takeover.h). When
 * nothing else would let streams go on, it reads their stream flags once a millisecond. Four times a second it checks
 * whether the routers make progress. It calls no driver.
 */
#ifndef FERRY_RANK_LIB_FAILOVER_ROUTER_MONITOR_H
#define FERRY_RANK_LIB_FAILOVER_ROUTER_MONITOR_H

#include "ipc/ferry_types.h"

#include <stdbool.h>

/*
 * What it watches; embedded in an object that outlives it. The first four fields are constant while it is watched,
 * except in ferry_router_monitor_follow; the others are under the router monitor's lock.
 */
struct ferry_monitor_entry {
	int descriptor;                          /* a connection; -1: none */
	/* once, when its other end has closed; by the router monitor's thread */
	void (*closed)(struct ferry_monitor_entry *entry);
	/* once a millisecond from ferry_router_monitor_look on, until it returns false; the same */
	bool (*look)(struct ferry_monitor_entry *entry);
	/* about four times a second, as long as it is watched; the same. NULL: the thread sleeps on */
	void (*watch)(struct ferry_monitor_entry *entry);
	bool looks, gone, polled;                /* polled: its descriptor is in the poll set */
	struct ferry_monitor_entry *next;
};

/** Starts the thread if there is none. Error: ferrySystemError. */
ferryResult_t ferry_router_monitor_add(struct ferry_monitor_entry *entry);

/** When it returns, no function of `entry` runs any more. Not to be called from what the router monitor calls. */
void ferry_router_monitor_remove(struct ferry_monitor_entry *entry);

/** Makes the router monitor call `look` from now on. Any thread, also the router monitor's. */
void ferry_router_monitor_look(struct ferry_monitor_entry *entry);

/**
 * Called from a function that the router monitor called: it polls this descriptor from now on, whose end it has not
 * seen.
 */
void ferry_router_monitor_follow(struct ferry_monitor_entry *entry, int descriptor);

/** Around a fork: no other thread holds the lock; a child begins without a router monitor. */
void ferry_router_monitor_before_fork(void);
void ferry_router_monitor_after_fork(bool in_child);

#endif
