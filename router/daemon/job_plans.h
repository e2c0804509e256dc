/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The plans that a job was handed, in one of its routers: checked, made ready to run, kept by hash, dropped and freed.
 *
 * The connection thread alone adds and removes plans: it holds the lock while it changes the array or a link in it, and
 * reads them without. A thread that begins a call holds the lock while it finds the call's plan, once per call; it may
 * use the plan until it releases it. A plan that was removed is freed when no call uses it and no worker is inside the
 * job: a worker may still read the works of a call that has just ended.
 */
#ifndef FERRY_ROUTER_DAEMON_JOB_PLANS_H
#define FERRY_ROUTER_DAEMON_JOB_PLANS_H

#include "router/engine/steps.h"
#include "router/engine/works.h"

#include <pthread.h>

struct ferry_job_plan {
	struct ferry_plan *plan;                /* a private copy, validated */
	struct ferry_works works;               /* of this domain */
	/*
	 * Of ranks whose data this router moves, and that hold the plan; connection thread, before it replies to the
	 * rank.
	 */
	struct ferry_steps *steps[FERRY_MAX_RANKS];
	/* calls of it under way: finding it adds one, under the table's lock, and releasing it subtracts one */
	_Atomic uint32_t users;
	uint64_t holders;                       /* bit r: rank r has given it and not dropped it; connection thread */
	struct ferry_job_plan *next;            /* in its bucket: under the table's lock; or among the retired */
};

struct ferry_job_plans {
	const struct ferry_job_arenas *shared;  /* these three are constant */
	uint32_t domain, workers;               /* workers: that the router has */
	pthread_mutex_t lock;
	struct ferry_job_plan **buckets;        /* nbuckets, a power of two; NULL: none yet */
	uint32_t nbuckets, count;
	uint32_t most;                          /* that it may have; connection thread */
	struct ferry_job_plan *retired;         /* without holders; connection thread */
};

void ferry_job_plans_open(struct ferry_job_plans *plans, const struct ferry_job_arenas *shared, uint32_t domain,
                          uint32_t workers);

/** Frees all plans, in use or not: the job is over. */
void ferry_job_plans_close(struct ferry_job_plans *plans);

/**
 * Keeps a plan under its hash, after checking it against the job's arenas, until no rank holds it; from now on `rank`
 * does. moved: this router moves the rank's data. The blob is copied. A plan that is already there, the same to the
 * byte, gets another holder. Connection thread, once the job is ready. Errors: ferryProgramError for a plan that is not
 * valid here; ferryRefused, with the numbers, for one too many, or for another plan of the same hash;
 * ferrySystemError.
 */
ferryResult_t ferry_job_plans_add(struct ferry_job_plans *plans, uint32_t rank, bool moved, const void *blob,
                                  uint64_t bytes);

/**
 * The rank holds the plan no longer: all its calls that name the plan are over here. Without holders a plan retires;
 * ferry_workers_free_retired comes next. Connection thread. Error: ferryInvalidUsage if the rank does not hold it,
 * unless unheld_too.
 */
ferryResult_t ferry_job_plans_drop(struct ferry_job_plans *plans, uint32_t rank, uint64_t hash, bool unheld_too);

/** Returns the plan of that hash, for a call, until the call releases it; NULL: there is none. Any thread. */
struct ferry_job_plan *ferry_job_plans_find(struct ferry_job_plans *plans, uint64_t hash);

/**
 * As ferry_job_plans_find, for a call of a rank whose data this router moves. *steps: the rank's. NULL: the rank does
 * not hold it.
 */
struct ferry_job_plan *ferry_job_plans_hold(struct ferry_job_plans *plans, uint64_t hash, uint32_t rank,
                                            struct ferry_steps **steps);
void ferry_job_release_plan(struct ferry_job_plan *plan);

/** Frees retired plans that no call uses. Only while no worker is inside the job. Connection thread. */
void ferry_job_plans_free_retired(struct ferry_job_plans *plans);

#endif
