/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A job inside a router: its arenas, the plans it was handed (router/daemon/job_plans.h), and the calls that it has
 * admitted, one per parity, whose parts workers run (router/engine/parts.h).
 *
 * Written by: the router's connection thread (attach, plans), the job's job thread (lanes), and workers (calls). The
 * comments at the fields say which and under what lock. Everything here is private to the router; values from shared
 * memory are copied and checked first.
 */
#ifndef FERRY_ROUTER_DAEMON_JOB_H
#define FERRY_ROUTER_DAEMON_JOB_H

#include "ipc/attach.h"
#include "ipc/publish.h"
#include "router/daemon/job_plans.h"
#include "router/daemon/quota.h"
#include "router/daemon/reaper.h"
#include "router/reduce/store.h"

/* The last time that a router took the place of another for a job; 0: it has not. */
struct ferry_takeover_reported {
	uint64_t at_ns;   /* when it served the job, all ranks having come */
	uint64_t took_ns; /* since the first of them had no router any more */
};

/* The call that a parity runs. seq is released last when a call is admitted and zeroed first when it ends. */
struct ferry_run {
	_Alignas(FERRY_APART) _Atomic uint64_t seq; /* 0: idle */
	_Atomic(struct ferry_job_plan *) plan;  /* written under admit before seq */
	_Atomic uint64_t last;                  /* last call seen in this parity; written under admit */
	uint64_t scalars[FERRY_MAX_RANKS];      /* premulsum factors of the call; written under admit before seq */
	uint64_t began_ns;                      /* when it was admitted; the same */
	/*
	 * a router before this one may have begun the next call of the parity (router/failover/adoption.h); under admit
	 */
	bool resumes;
	/* slice parts whose worker has not come out of publishing (docs/models/publish.pml) */
	_Alignas(FERRY_APART) _Atomic uint64_t left;
	/* nanoseconds that workers have spent on parts that are done; each adds before it lowers `left` */
	_Atomic uint64_t working_ns;
};

struct ferry_adoption;
struct ferry_job_thread;
struct ferry_gpu;
struct ferry_gpu_lanes;
struct ferry_foreign_rank;
struct ferry_imports;
struct ferry_remote_rank;
struct ferry_mapper;
struct ferry_recovery;
struct ferry_tenant;

struct ferry_job {
	uint8_t key[FERRY_KEY_BYTES];
	uint64_t number;                        /* of the router's jobs, from 1; connection thread, once */
	/* as in struct ferry_standing; connection thread, before it is listed */
	uint32_t owner;
	const struct ferry_tenant *tenant;      /* connection thread; NULL: none */
	bool had_tenant;                        /* which is gone, and allowed so many plans; connection thread */
	uint32_t plans_had;
	_Atomic uint32_t weight;                /* of its turns among jobs with work; connection thread */
	/*
	 * connection thread; the other domains' arenas before the job thread is asked: other threads may read it once
	 * `ready`
	 */
	struct ferry_job_arenas shared;
	uint32_t domain;
	int process;                            /* the router's own, for its ranks; -1: there is none. The router's */
	struct ferry_adoption *adoption;        /* the job comes from another router, not yet with all ranks; or NULL */
	struct ferry_takeover_reported takeover; /* connection thread, for ferry-stat */
	uint64_t attached, detached;            /* bit masks of ranks; connection thread */
	uint64_t dead_ranks;                    /* whose last calls are not over (dead_ranks.h); connection thread */
	char death[96];                         /* of the last of them, for the job's failure; the same */
	uint64_t death_progress, death_since;   /* ferry_job_progress as last seen then, and since when; the same */
	/* the ranks whose data this router moves; job thread, once the job is ready */
	struct ferry_remote_rank *remote_ranks[FERRY_MAX_RANKS];
	struct ferry_foreign_rank
	        *foreign_ranks[FERRY_MAX_RANKS]; /* ranks of other domains that are on GPUs; the same */
	struct ferry_gpu_lanes *gpu_lanes;      /* the router's */
	struct ferry_mapper *mapper;            /* the same */
	struct ferry_gpu *registrar;            /* has the arenas' staging registered; NULL: none has; the same */
	bool registered[FERRY_MAX_DOMAINS];
	/*
	 * Of ranks that have asked to be mapped, and of foreign ranks (router/gpu/imports.h); connection thread, before
	 * the rank is welcomed, and once no thread works for the job any more.
	 */
	struct ferry_imports *imports[FERRY_MAX_RANKS];
	int flags_descriptor[FERRY_MAX_RANKS];  /* the block of stream flags of each of them; -1: none; the same */
	bool imported_arena;                    /* it comes from another router; constant */
	struct ferry_staging brings;            /* of arenas that ranks have handed over, counted; connection thread */
	uint64_t windows; /* bytes of its GPUs' memory here that its tenant counts for windows; connection thread */
	/* what a mapped rank had submitted to that router; NULL: nothing; the same, then its remote rank's */
	struct ferry_recovery *recovery[FERRY_MAX_RANKS];
	/* 1: all arenas are mapped, and data can be moved; job thread, or connection thread (adopted); release */
	_Atomic uint32_t ready;
	_Atomic uint32_t opened; /* 1: of an imported arena, all is ready to move data; job thread, release */
	/* 1: failed or going away: workers leave it alone; never 0 again; any thread of the router */
	_Atomic uint32_t dead;
	/* 1: lanes have seen that the arenas say so, and have ended calls; never 0 again; lanes */
	_Atomic uint32_t announced_dead;
	struct ferry_failure failure;           /* the reason, as the arena has it; under `failing` */
	enum ferry_store store;                 /* for plans whose windows copy engines use; others: ordinary */
	struct ferry_job_plans plans;
	struct ferry_run runs[FERRY_PARITIES];
	uint64_t announced;                     /* the highest of its ranks' `announced`; job thread */
	/* held by the thread that fails the job while it writes its arena's failure */
	pthread_mutex_t failing;
	_Alignas(FERRY_APART) pthread_mutex_t admit; /* one worker at a time starts calls */
	_Atomic uint64_t slices, bytes;         /* published for this job, for ferry-stat */
	/* length of its calls here, and what workers have spent on their parts; the same */
	_Atomic uint64_t calls_ns, working_ns;

	uint32_t users;                         /* workers inside; under the router's lock */
	bool closed;                            /* no worker may enter for the moment; under the router's lock */
	struct ferry_job_thread *job_thread;    /* its own; connection thread */
	struct ferry_job *next;
	struct ferry_ending ending;             /* connection thread, then the reaper */
	uint64_t freeing;                       /* bytes that its arena holds as it ends; the same */
};

/**
 * Makes a job of that key with an arena of that shape, for a router of so many workers; all other fields are zero, for
 * the caller to fill in. ferry_job_free frees it. Errors: ferrySystemError, those of ferry_arena_create.
 */
ferryResult_t ferry_job_new(const uint8_t *key, const struct ferry_arena_shape *shape, uint32_t workers,
                            struct ferry_job **made);

/**
 * As ferry_job_new, with existing arenas of all domains, which become the job's; shared->rank_domain is known. No call
 * begins before the job is ready. Error: ferrySystemError; the arenas then stay the caller's.
 */
ferryResult_t ferry_job_new_of(const uint8_t *key, const struct ferry_job_arenas *shared, uint32_t domain,
                               uint32_t workers, struct ferry_job **made);

/**
 * Lanes have seen `failed` in the arena, and have ended calls: stores 1 there again. Lanes that have not seen it would
 * wait for those calls.
 */
void ferry_job_report_again(struct ferry_job *job);

/** No worker is inside any more: frees the job with its plans and unmaps its arenas. */
void ferry_job_free(struct ferry_job *job);

/**
 * A rank hands the job a plan: ferry_job_plans_add. Connection thread. Errors: ferryInvalidUsage before the job's
 * arenas are known, and that function's.
 */
ferryResult_t ferry_job_add_plan(struct ferry_job *job, uint32_t rank, const void *blob, uint64_t bytes);

/** ferry_job_plans_hold, of a plan of the job. */
static inline struct ferry_job_plan *ferry_job_hold_plan(struct ferry_job *job, uint64_t hash, uint32_t rank,
                                                         struct ferry_steps **steps)
{
	return ferry_job_plans_hold(&job->plans, hash, rank, steps);
}

/** Starts every call whose descriptors have all come. A disagreement between ranks fails the job, naming them. */
void ferry_job_admit(struct ferry_job *job);

/** Whether there seems to be such a call: a hint. */
bool ferry_job_may_admit(struct ferry_job *job);

/** The last worker has come out of the call that the parity runs: the parity is free. */
void ferry_job_end_call(struct ferry_job *job, uint32_t parity, uint64_t seq, struct ferry_job_plan *plan);

/** Returns true once for each call that a rank has announced: it is about to come. Job thread, inside the job. */
bool ferry_job_expects(struct ferry_job *job);

/**
 * A rank has attached, as far as this router goes: counts it in the arena's header, so that the other ranks may go on,
 * and replies to it with the arena. flags: FERRY_ATTACH_MAPPED, or 0; where the rank has asked for that and does not
 * get it, `why` is the reason. Connection thread, or the mapper's.
 */
void ferry_job_welcome(struct ferry_job *job, uint32_t rank, int client, uint32_t flags, const char *why);

/** Ends the job for all its ranks with this code and message, unless it has failed before. Any thread of the router. */
void ferry_job_fail(struct ferry_job *job, ferryResult_t code, const char *message);

/**
 * The job has failed, and a rank may have overwritten that in the arena: if it is not there any more, writes it again
 * and wakes the ranks. Job thread.
 */
void ferry_job_repeat(struct ferry_job *job);

/**
 * A rank of this domain has left in order, and its data is not moved any more: sets its bit in the arena
 * (ipc/publish.h), once. Connection thread, or the reaper.
 */
void ferry_job_mark_departed(struct ferry_job *job, uint32_t rank);

/** A rank's connection has closed and it has not left. */
void ferry_job_report_gone(struct ferry_job *job, uint32_t rank);

/**
 * As ferry_job_fail, for an event that may follow from an earlier one, which is then the message: if a rank, or another
 * router, has given a reason for failing, that reason; if ranks had not attached, the message names them. Connection
 * thread, or once it has ended.
 */
void ferry_job_lose(struct ferry_job *job, const char *message);

/** Closes a copy of a connection of one of its ranks: directly where their user is trusted (ipc/quarantine.h). */
void ferry_job_close_client(const struct ferry_job *job, int client);

/** Whether a rank, or another router, has given a reason for failing, as ferry_job_lose takes it. The same threads. */
bool ferry_job_failure_is_announced(const struct ferry_job *job);

/**
 * The job is dead: returns the code, with the reason, or ferryRemoteError, for a rank that cannot read it from the
 * arena yet.
 */
ferryResult_t ferry_job_failure(struct ferry_job *job);

#endif
