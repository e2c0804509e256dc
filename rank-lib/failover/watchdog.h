/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Watchdog: what a rank says and does where it waits for long, by FERRY_TIMEOUT and FERRY_ON_TIMEOUT (ipc/deadline.h).
 * A caller that waits for ranks, or asks a router, runs it itself. For calls in streams the router monitor runs it four
 * times a second: it finds out whether the router that moves the rank's data has stopped or hangs, which that router's
 * lanes cannot tell. A router takes submissions whether their streams have come to them or not, and its lanes note
 * every 50 ms that they have looked at a rank that has calls (ipc/arena.h). Where it does look, its lanes say who the
 * blocker is (router/engine/stall.h).
 */
#ifndef FERRY_RANK_LIB_FAILOVER_WATCHDOG_H
#define FERRY_RANK_LIB_FAILOVER_WATCHDOG_H

#include "rank-lib/call/plan_cache.h"
#include "rank-lib/call/stream_flags.h"
#include "rank-lib/failover/rank.h"

/* One wait. Whoever waits. */
struct ferry_watchdog {
	struct ferry_rank *rank;
	uint64_t since; /* ferry_now_ns */
	bool logged;
};

/** Whether there is something to say, or to do, of a wait for so long. */
bool ferry_watchdog_is_due(const struct ferry_watchdog *watchdog, uint64_t waited);

/** Says it once, what: "for rank 1 to ..."; true where that is too long, and the rank has failed for it. */
bool ferry_watchdog_say(struct ferry_watchdog *watchdog, uint64_t waited, const char *what);

/**
 * A caller asks a router, and waits for the answer, no longer than until the rank has failed. what: for people, what
 * the router of that domain is to do, as in "to take a plan". Under the communicator's lock. Errors: the router's; the
 * rank's, where it fails meanwhile; ferrySystemError after FERRY_ATTACH_TIMEOUT.
 */
ferryResult_t ferry_watchdog_ask(struct ferry_rank *rank, uint32_t domain, struct ferry_attach_message *message,
                                 const void *payload, const char *what);

/* The router that moves the rank's data. */
struct ferry_router_watchdog {
	struct ferry_watchdog wait; /* the router monitor's: `taken` and `looked` are the same since then */
	/* constant, from whoever watches */
	const struct ferry_ring *ring;
	struct ferry_stream_flag_table *flags;
	const struct ferry_plan_cache *plans;
	pthread_mutex_t *lock;      /* of the plans: tried, and where somebody has it they are not looked at */
	int process;                /* the router's, for people */
	uint64_t taken, looked;     /* what the router had taken, and when its lanes had looked */
};

/**
 * Keeper: looks, and says what there is to say. True: the rank has failed, for that or for what somebody else has
 * found, and the router does not let its streams go on.
 */
bool ferry_watchdog_look(struct ferry_router_watchdog *watchdog);

#endif
