/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The jobs of a router: finds, makes and ends them, chooses their staging, and has the workers that serve them. The
 * list itself belongs to the workers, which go round it.
 *
 * All is the connection thread's (router/daemon/router.c), but `draining`, which any thread raises. What comes before
 * `quota` is written once, before the connection thread starts.
 */
#ifndef FERRY_ROUTER_DAEMON_JOBS_H
#define FERRY_ROUTER_DAEMON_JOBS_H

#include "router/daemon/saved_shares.h"
#include "router/daemon/quota.h"
#include "router/daemon/reaper.h"
#include "router/daemon/tenants.h"
#include "router/engine/workers.h"
#include "router/gpu/gpu_lanes.h"
#include "router/gpu/mapper.h"

struct ferry_counter_pages;

struct ferry_jobs {
	struct ferry_workers workers;
	struct ferry_mapper mapper;
	struct ferry_reaper reaper; /* runs from the first job on */
	struct ferry_gpu_lanes gpu_lanes;
	struct ferry_layout layout;
	uint32_t domain;
	enum ferry_store store; /* as in ferry_job */
	struct ferry_quota quota;
	const char *config;                   /* the tenants' file; NULL: none. Constant */
	struct ferry_tenants *tenants;        /* as it was read; NULL: only this user and root */
	/* the file as it was read again, until the connection thread takes it; the thread that has read it, exchange */
	_Atomic(struct ferry_tenants *) changed_tenants;
	_Atomic uint32_t config_bad; /* 1: the file has been invalid since then; the thread that has read it */
	struct ferry_saved_shares saved_shares;
	struct ferry_counter_pages *pages; /* NULL: no client has asked for counters yet */
	uint64_t numbered;         /* jobs that there have been */
	int process;               /* of this process, for ranks to see it end (ipc/process.h); -1: there is none */
	uint64_t takeovers;        /* jobs for which this router has taken another's place */
	_Atomic uint32_t draining; /* 1: no new jobs */
};

/**
 * Returns the job of that key and owner (struct ferry_standing), or NULL. Each user has keys of its own, so that no
 * user finds, or takes, another's job. It takes the same time for any key.
 */
struct ferry_job *ferry_jobs_find(struct ferry_jobs *jobs, uint32_t owner, const uint8_t *key);

/* A tenant's use of this router. */
struct ferry_tenant_use {
	uint32_t jobs, ranks, plans;
	struct ferry_staging staging; /* of other domains: arenas that its jobs' ranks have handed over */
	uint64_t windows;             /* bytes of GPUs' memory */
};
struct ferry_tenant_use ferry_jobs_used_by(const struct ferry_jobs *jobs, const struct ferry_tenant *tenant);

/** Tells the job's table how many plans it may have: by its tenant's limit, what the tenant has left. */
void ferry_jobs_allow_plans(const struct ferry_jobs *jobs, struct ferry_job *job);

/** Assigns the job to a tenant from now on, with the tenant's weight; NULL: none. */
void ferry_jobs_assign(struct ferry_job *job, const struct ferry_tenant *tenant);

/**
 * Finds or makes the job that a rank's attach message names. A new job's thread then allocates its arena, and fails the
 * job where there is no room. Errors: ferryRefused while draining, over a limit of the router's or of the rank's tenant
 * or the memory that is left, with the numbers, or where the job has another shape; ferrySystemError.
 */
ferryResult_t ferry_jobs_join(struct ferry_jobs *jobs, const struct ferry_attach_message *message,
                              const struct ferry_standing *standing, struct ferry_job **job);

/**
 * Whether this standing may have a job of so many ranks. *allowance: the staging that it may have. Error: ferryRefused.
 */
ferryResult_t ferry_jobs_check_tenant(const struct ferry_jobs *jobs, const struct ferry_standing *standing,
                                      uint32_t nranks, struct ferry_allowance *allowance);

/**
 * A rank of a job that all ranks have attached to hands over the arenas of the other domains: they count for its
 * tenant. The descriptors that are taken become -1. Errors: those of ferry_imported_arena_map_others, ferryRefused over
 * a limit, with the numbers: the job has failed with them; ferryInvalidUsage the second time.
 */
ferryResult_t ferry_jobs_bring(struct ferry_jobs *jobs, struct ferry_job *job, int *descriptors);

/**
 * Counts for the job's tenant what windows of programs may take of the memory of its GPUs here, if the tenant has so
 * much left; else nothing. All ranks read what there was: they have windows if every domain's router has counted
 * theirs. Once, when all ranks have attached, and again in a router that takes over the job, which finds the same.
 */
void ferry_jobs_count_windows(const struct ferry_jobs *jobs, struct ferry_job *job);

/**
 * Adds a job, whose staging is counted already: it is found from now on and has its job thread. On an error it stays
 * the caller's. Error: ferrySystemError.
 */
ferryResult_t ferry_jobs_add(struct ferry_jobs *jobs, struct ferry_job *job, const struct ferry_standing *standing);

/** The job has no client any more, and is not found from here on. The reaper ends its threads and frees it. */
void ferry_jobs_destroy(struct ferry_jobs *jobs, struct ferry_job *job);

/** Fails the jobs that are left, with a reason for their ranks, and ends them. Returns when all have ended. */
void ferry_jobs_end(struct ferry_jobs *jobs);

/** The bytes of the jobs' arenas here: those that take memory already, and those that may yet. */
void ferry_jobs_count_memory(const struct ferry_jobs *jobs, uint64_t *held, uint64_t *promised);

#endif
