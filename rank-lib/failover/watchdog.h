/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Watchdog: what a rank logs and does when it waits for long, by FERRY_TIMEOUT and FERRY_ON_TIMEOUT (ipc/deadline.h). A
 * caller that waits for ranks, or for a router's answer, runs it itself. For calls in streams the router monitor runs
 * it four times a second: it finds out whether the router that moves the rank's data has stopped or hangs, which that
 * router's lanes cannot report. A router takes submissions before their streams come to them, and its lanes store every
 * 50 ms that they have looked at a rank that has calls (ipc/arena.h). If the router does look, its lanes report the
 * blocker (router/engine/stall.h).
 */
#ifndef FERRY_RANK_LIB_FAILOVER_WATCHDOG_H
#define FERRY_RANK_LIB_FAILOVER_WATCHDOG_H

#include "rank-lib/call/plan_cache.h"
#include "rank-lib/call/stream_flags.h"
#include "rank-lib/failover/rank.h"

/* One wait. Used by the thread that waits. */
struct ferry_watchdog {
	struct ferry_rank *rank;
	uint64_t since; /* ferry_now_ns */
	bool logged;
};

/** Whether there is something to log or to do after waiting for so long. */
bool ferry_watchdog_is_due(const struct ferry_watchdog *watchdog, uint64_t waited);

/**
 * Logs once what the thread waits for; what: "for rank 1 to ...". Returns true if the wait is too long and has failed
 * the rank.
 */
bool ferry_watchdog_report(struct ferry_watchdog *watchdog, uint64_t waited, const char *what);

/**
 * Sends a request to a router and waits for the answer, until the rank fails at the latest. what: for messages, what
 * the router of that domain is to do, as in "to take a plan". Under the communicator's lock. Errors: the router's; the
 * rank's, if it fails meanwhile; ferrySystemError after FERRY_ATTACH_TIMEOUT.
 */
ferryResult_t ferry_watchdog_ask(struct ferry_rank *rank, uint32_t domain, struct ferry_attach_message *message,
                                 const void *payload, const char *what);

/* The router that moves the rank's data. */
struct ferry_router_watchdog {
	struct ferry_watchdog wait; /* the router monitor's: since when `taken` and `looked` have not changed */
	/* constant, set by the opener */
	const struct ferry_ring *ring;
	struct ferry_stream_flag_table *flags;
	const struct ferry_plan_cache *plans;
	pthread_mutex_t *lock;      /* of the plans; only tried: without it the plans are not looked at */
	int process;                /* the router's, for messages */
	uint64_t taken, looked;     /* what the router had taken, and when its lanes had last looked */
};

/**
 * Router monitor: checks the router, and logs what it finds. Returns true if the rank has failed, by this or otherwise,
 * and the router does not let its streams go on.
 */
bool ferry_watchdog_look(struct ferry_router_watchdog *watchdog);

#endif
