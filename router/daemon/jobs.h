/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The jobs of a router: who finds, makes and ends them, with what staging, and the workers that serve them. The list
 * itself is the workers', who go round it.
 *
 * All is the connection thread's (router/daemon/router.c), but `draining`, which anybody raises; what comes before
 * `quota` is written once, before that thread starts.
 */
#ifndef FERRY_ROUTER_DAEMON_JOBS_H
#define FERRY_ROUTER_DAEMON_JOBS_H

#include "router/daemon/kept_shares.h"
#include "router/daemon/quota.h"
#include "router/daemon/reaper.h"
#include "router/daemon/tenants.h"
#include "router/engine/workers.h"
#include "router/gpu/gpu_lanes.h"
#include "router/gpu/mapper.h"

enum ferry_draining {
	FERRY_SERVING,
	FERRY_RETIRING, /* new jobs as long as there is one: ranks of it may make them out of it */
	FERRY_DRAINING  /* no new jobs */
};

struct ferry_counter_pages;

struct ferry_jobs {
	struct ferry_workers workers;
	struct ferry_mapper mapper;
	struct ferry_reaper reaper; /* runs from the first job on */
	struct ferry_gpu_lanes gpu_lanes;
	struct ferry_layout layout;
	uint32_t domain;
	enum ferry_store store, cached_store; /* as in ferry_job */
	bool lock_staging;
	struct ferry_quota quota;
	const char *config;                   /* the tenants' file; NULL: none. Constant */
	struct ferry_tenants *tenants;        /* what it says; NULL: nobody but this user and root */
	/* what it says now, until the connection thread takes it; whoever has read it, exchange */
	_Atomic(struct ferry_tenants *) changed_tenants;
	_Atomic uint32_t config_bad; /* 1: what it says since then cannot be; whoever has read it */
	struct ferry_kept_shares kept_shares;
	struct ferry_counter_pages *pages; /* NULL: nobody has asked for counters yet */
	uint64_t numbered;         /* jobs that there have been */
	int process;               /* of this process, for ranks to see it end (ipc/process.h); -1: there is none */
	uint64_t takeovers;        /* jobs for which this router has taken another's place */
	_Atomic uint32_t draining; /* enum ferry_draining */
};

/**
 * The job of that key and owner (struct ferry_standing), or NULL: each user has keys of its own, so that nobody meets,
 * or takes, another's. Takes as long for any key.
 */
struct ferry_job *ferry_jobs_find(struct ferry_jobs *jobs, uint32_t owner, const uint8_t *key);

/* What a tenant has of this router. */
struct ferry_tenant_use {
	uint32_t jobs, ranks, plans;
	struct ferry_staging staging; /* of other domains': what its jobs have brought */
};
struct ferry_tenant_use ferry_jobs_used_by(const struct ferry_jobs *jobs, const struct ferry_tenant *tenant);

/**
 * May one more plan come into the job? Says so to its table of plans. By its tenant's limit, with what is left.
 */
void ferry_jobs_allow_plans(const struct ferry_jobs *jobs, struct ferry_job *job);

/** Whose the job is from now on; NULL: no tenant's. With the tenant its weight. */
void ferry_jobs_assign(struct ferry_job *job, const struct ferry_tenant *tenant);

/**
 * The job that a rank's attach message names: found, or made; its job thread then allocates its arena, and fails it
 * where there is no room. Errors: ferryRefused while draining, over a limit of the router's or of the rank's tenant or
 * the memory that is left, with the numbers, or where the job has another shape; ferrySystemError.
 */
ferryResult_t ferry_jobs_join(struct ferry_jobs *jobs, const struct ferry_attach_message *message,
                              const struct ferry_standing *standing, struct ferry_job **job);

/**
 * May a job of so many ranks be made for who stands so? *allowance: what it may have of staging. Error: ferryRefused.
 */
ferryResult_t ferry_jobs_check_tenant(const struct ferry_jobs *jobs, const struct ferry_standing *standing,
                                      uint32_t nranks, struct ferry_allowance *allowance);

/**
 * A rank of the job, which all have attached to, brings the arenas of the other domains: they count for its tenant. The
 * descriptors that are taken become -1. Errors: those of ferry_imported_arena_map_others, ferryRefused over a limit,
 * with the numbers: the job has failed with them; ferryInvalidUsage the second time.
 */
ferryResult_t ferry_jobs_bring(struct ferry_jobs *jobs, struct ferry_job *job, int *descriptors);

/**
 * Takes a job in, whose staging is counted already: it is found from now on and has its job thread. On an error it
 * stays the caller's. Error: ferrySystemError.
 */
ferryResult_t ferry_jobs_add(struct ferry_jobs *jobs, struct ferry_job *job, const struct ferry_standing *standing);

/** No client is the job's any more: nobody finds it from here on. The reaper ends its threads and frees it. */
void ferry_jobs_destroy(struct ferry_jobs *jobs, struct ferry_job *job);

/** Fails the jobs that are left, so that their ranks hear of it, and ends them. Returns when all have ended. */
void ferry_jobs_end(struct ferry_jobs *jobs);

/** Bytes of the jobs' arenas here: that cost memory already, and that may yet. */
void ferry_jobs_count_memory(const struct ferry_jobs *jobs, uint64_t *held, uint64_t *promised);

#endif
