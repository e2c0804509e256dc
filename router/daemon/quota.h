/* SPDX-License-Identifier: Apache-2.0 */
/**
 * How much staging a router gives a job: what the job asks for or its default, within the router's limit and the memory
 * that is left (router/daemon/memory.h). By the connection thread, but `freeing`.
 */
#ifndef FERRY_ROUTER_DAEMON_QUOTA_H
#define FERRY_ROUTER_DAEMON_QUOTA_H

#include "ipc/arena.h"
#include "ipc/layout.h"
#include "router/daemon/memory.h"

/* Bytes of staging, by the domain whose arena has them. */
struct ferry_staging {
	uint64_t of[FERRY_MAX_DOMAINS];
};

struct ferry_quota {
	uint32_t domain;
	struct ferry_memory_question question;
	uint64_t limit;           /* bytes of staging for all jobs together */
	char limited_by[300];     /* the file, variable or memory that sets the limit */
	uint64_t fallback;        /* a job's staging where it says nothing */
	uint64_t used;            /* of the limit, in this domain */
	struct ferry_staging
	        imported_arena; /* of the limit, in each domain by itself: by arenas that ranks have handed over */
	/*
	 * bytes of arenas that no client can find any more and that are about to be freed: the connection thread adds,
	 * the reaper subtracts
	 */
	_Atomic uint64_t freeing;
};

/* What a job's tenant may have of it (router/daemon/tenants.h). */
struct ferry_allowance {
	const char *tenant;      /* its name */
	uint64_t job, whole;       /* bytes that one job may have, and all together; UINT64_MAX: no limit */
	struct ferry_staging used; /* that all together have */
};

/** limit: 0: half of the memory that this domain may have. Error: that of FERRY_SHM. */
ferryResult_t ferry_quota_open(struct ferry_quota *quota, const struct ferry_layout *layout, uint32_t domain,
                               uint64_t limit);

/**
 * Chooses shape->staging and counts it. `asked`: what the job's first rank wants, 0: nothing in particular; `wished`:
 * less will do. A job of one rank has little unless it insists. A job that does not insist gets at most half of what is
 * left of the limit, and at most a quarter of the memory that is left. promised: bytes of arenas of other jobs that no
 * process has touched yet. allowance: of the job's tenant, applied like the router's own limit. Errors: ferryRefused
 * with the numbers.
 */
ferryResult_t ferry_quota_take(struct ferry_quota *quota, uint64_t asked, bool wished, uint64_t promised,
                               const struct ferry_allowance *allowance, struct ferry_arena_shape *shape);

/**
 * Counts arenas that ranks hand over, from a router before this one or from routers of other domains. In each domain
 * they must fit into the tenant's allowance, and into this router's limit. They count apart from arenas made here, so
 * that a new job takes nothing from an adopted one within the same limit. The memory that is left does not matter:
 * these arenas have theirs already, or it was promised. Error: ferryRefused with the numbers.
 */
ferryResult_t ferry_quota_bring(struct ferry_quota *quota, const struct ferry_allowance *allowance,
                                const struct ferry_staging *staging);

/**
 * The job has gone, or was not made after all: ferry_quota_give_back subtracts the staging that it was given,
 * ferry_quota_carry_off the arenas that it has handed over.
 */
void ferry_quota_give_back(struct ferry_quota *quota, uint64_t staging);
void ferry_quota_carry_off(struct ferry_quota *quota, const struct ferry_staging *staging);

#endif
