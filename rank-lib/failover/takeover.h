/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What a rank does when a router of its job dies: it waits until that one's process has ended, which its pidfd tells;
 * looks for the router that takes its place, starting one where ranks do that; and hands over all that the old one had
 * from it (router/failover/adoption.h). The job goes on when all ranks have done so. A router that dies in the middle
 * of that is the same case again. By the router monitor, a step at a time; callers and streams notice nothing but time.
 *
 * Nothing is handed over before the old router has ended: its threads might still write to the arenas. Of a router that
 * has ended before it answered a rank's first message the rank has no pidfd, and needs none: it has begun nothing, as
 * it waits for all ranks.
 *
 * The job ends, as when there is no takeover, where that is so wished (FERRY_TAKEOVER=off), where a rank hosts the
 * routers, where the kernel has no pidfds, where nobody takes the router's place for FERRY_ATTACH_TIMEOUT, and where
 * FERRY_MOST_ROUTERS die in a row without progress (ipc/publish.h).
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
	FERRY_ROUTER_SOUGHT, /* it has: another is looked for */
	/* another has all that it is to have from this rank, which is mapped, and perhaps not from all others */
	FERRY_ROUTER_ADOPTS
};

/* Of one domain. The router monitor's, but for `given_up`. */
struct ferry_takeover {
	struct ferry_kept kept; /* first */
	struct ferry_takeovers *all;
	uint32_t domain;
	bool added;
	enum ferry_takeover_state state;
	uint64_t lost_ns;   /* when the connection closed that this rank had last been served by */
	uint64_t since_ns;  /* when it came to `state` */
	uint64_t epoch;     /* FERRY_ROUTER_ADOPTS: of the arena, before that router serves the job */
	/* routers that died in a row without progress, and the job's progress (ipc/publish.h) as the last one did */
	uint32_t deaths;
	uint64_t progress;
	uint64_t loss_ns;   /* when the last one of them lost a GPU of the job's; lost_gpu: that was the last router */
	bool lost_gpu;
	bool logged; /* that no router can be started by this rank */
};

struct ferry_takeovers {
	/* constant, from who makes the communicator */
	struct ferry_rank *rank;
	const struct ferry_routers *routers;
	struct ferry_journal *journal;
	const struct ferry_handover_ops *ops; /* NULL: the rank is on a host device */
	void *context;
	_Atomic uint32_t given_up; /* 1: the rank leaves; who closes */
	long patience_s;
	struct ferry_takeover domains[FERRY_MAX_DOMAINS];
};

/**
 * All have attached: looks after the routers from now on, where another may take a router's place. Errors: those of
 * ferry_router_monitor_add; ferryInvalidArgument for FERRY_TAKEOVER.
 */
ferryResult_t ferry_takeovers_open(struct ferry_takeovers *takeovers);

/** No router's place is taken any more: who waits for one hears that. */
void ferry_takeovers_close(struct ferry_takeovers *takeovers);

#endif
