/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What a rank does when a router of its job dies. It waits until the router's process has ended, which the pidfd says.
 * It looks for the router that takes its place, and starts one if ranks do that. It hands over all that the old router
 * had from it (router/failover/adoption.h). The job goes on when all ranks have done so. If the new router dies
 * meanwhile, the steps start again. The router monitor takes these steps one at a time; callers and streams notice
 * nothing but time.
 *
 * Nothing is handed over before the old router has ended, because its threads might still write to the arenas. If a
 * router ended before it answered a rank's first message, the rank has no pidfd of it and needs none: that router has
 * begun nothing, as it waits for all ranks.
 *
 * The job ends, as without takeover, if FERRY_TAKEOVER=off, if the kernel has no pidfds, if the old router's process
 * has not ended ten seconds after its connection closed, if no router takes the place for FERRY_ATTACH_TIMEOUT, if the
 * one that comes refuses the job, and if FERRY_MOST_ROUTERS die in a row without progress, or FERRY_MOST_LOSSES where
 * the last has lost a GPU of the job (ipc/publish.h).
 */
#ifndef FERRY_RANK_LIB_FAILOVER_TAKEOVER_H
#define FERRY_RANK_LIB_FAILOVER_TAKEOVER_H

#include "rank-lib/attach/handover.h"
#include "rank-lib/attach/routers.h"
#include "rank-lib/failover/journal.h"
#include "rank-lib/failover/rank.h"
#include "rank-lib/failover/router_monitor.h"

enum ferry_takeover_state {
	FERRY_ROUTER_SERVES,
	FERRY_ROUTER_ENDS,  /* its connection has closed, and its process may not have ended */
	FERRY_ROUTER_SOUGHT, /* its process has ended: the rank looks for another router */
	/* another router has all that this rank gives it, which is mapped, and perhaps not yet all of other ranks */
	FERRY_ROUTER_ADOPTS
};

/* Of one domain. Used by the router monitor alone, except `given_up`. */
struct ferry_takeover {
	struct ferry_monitor_entry entry; /* first */
	struct ferry_takeovers *all;
	uint32_t domain;
	bool added;
	enum ferry_takeover_state state;
	uint64_t lost_ns;   /* when the connection of the last router that served this rank closed */
	uint64_t since_ns;  /* when it came to `state` */
	uint64_t epoch;     /* FERRY_ROUTER_ADOPTS: of the arena, before that router serves the job */
	/* routers that died in a row without progress, and the job's progress (ipc/publish.h) as the last one did */
	uint32_t deaths;
	uint64_t progress;
	uint64_t loss_ns;   /* when one of them last lost a GPU of the job's; lost_gpu: that was the last router */
	bool lost_gpu;
	bool logged; /* that no router can be started by this rank */
};

struct ferry_takeovers {
	/* constant, set by the maker of the communicator */
	struct ferry_rank *rank;
	const struct ferry_routers *routers;
	struct ferry_journal *journal;
	const struct ferry_handover_ops *ops; /* NULL: the rank is on a host device */
	void *context;
	_Atomic uint32_t given_up; /* 1: the rank leaves; written by the closing thread */
	long patience_s;
	struct ferry_takeover domains[FERRY_MAX_DOMAINS];
};

/**
 * To be called when all have attached: watches the routers from now on, if another may take a router's place. Errors:
 * those of ferry_router_monitor_add; ferryInvalidArgument for FERRY_TAKEOVER.
 */
ferryResult_t ferry_takeovers_open(struct ferry_takeovers *takeovers);

/** From now on no router's place is taken: requests that wait for a new router fail. */
void ferry_takeovers_close(struct ferry_takeovers *takeovers);

#endif
