/* SPDX-License-Identifier: Apache-2.0 */
/**
 * How much staging a router gives a job: what it asks for or its default, within the router's limit and the memory that
 * is there (router/memory.h). By the connection thread, but `freeing`.
 */
#ifndef FERRY_ROUTER_QUOTA_H
#define FERRY_ROUTER_QUOTA_H

#include "ipc/arena.h"
#include "ipc/layout.h"
#include "router/memory.h"

struct ferry_quota {
	struct ferry_memory_question question;
	uint64_t limit;           /* bytes of staging for all jobs together */
	char limited_by[300];     /* who says so */
	uint64_t fallback;        /* a job's staging where it says nothing */
	uint64_t used;            /* of the limit */
	/* bytes of arenas that nobody finds any more and that are about to be freed: the connection thread adds, the
	   reaper subtracts */
	_Atomic uint64_t freeing;
};

/* What a job's tenant may have of it (router/tenants.h). */
struct ferry_allowance {
	const char *tenant;      /* its name */
	uint64_t job;            /* bytes that one job may have */
	uint64_t whole, used;    /* that all of the tenant's may have together, and have; UINT64_MAX: no limit */
};

/** limit: 0: half of the memory that this domain may have. Error: that of FERRY_SHM. */
ferryResult_t ferry_quota_open(struct ferry_quota *quota, const struct ferry_layout *layout, uint32_t domain,
                               uint64_t limit);

/**
 * Chooses shape->staging and counts it. `asked`: what the job's first rank wants, 0: nothing in particular; `wished`:
 * less will do. A job of one rank has little unless it insists. One that does not insist gets the half of what is left
 * of the limit, and a quarter of the memory that is left, where its wish takes more. promised: bytes of arenas of other
 * jobs that nobody has touched yet. allowance: of the job's tenant, held like the router's own limit. Errors:
 * ferryRefused with the numbers.
 */
ferryResult_t ferry_quota_take(struct ferry_quota *quota, uint64_t asked, bool wished, uint64_t promised,
                               const struct ferry_allowance *allowance, struct ferry_arena_shape *shape);

/**
 * Counts the staging of a job that comes with its arena from a router before this one, whose memory is there already:
 * the router's own limit and the memory that is left do not matter, its tenant's allowance does. Error: ferryRefused
 * with the numbers.
 */
ferryResult_t ferry_quota_adopt(struct ferry_quota *quota, const struct ferry_allowance *allowance,
                                const struct ferry_arena_shape *shape);

/** The job has gone, or was not made after all. */
void ferry_quota_give_back(struct ferry_quota *quota, uint64_t staging);

#endif
