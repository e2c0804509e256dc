/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The threads that run slices. Each job has a job thread that sleeps on the job's own doorbell (a tenant can only ring
 * its own). A job thread that wakes becomes a worker for all jobs, as long as fewer than `limit` are at work. Helpers
 * are further workers without a job, woken when more is ready than one worker can do, the first helper first. Workers
 * go round the jobs, a few slices at a time.
 *
 * `lock` guards the list of jobs, which the connection thread alone changes and so may read without, their `users`, and
 * `active`. No slice runs under it. `asleep` has a bit per helper: the helper sets it after it has prepared to sleep,
 * and the thread that is going to wake it clears it.
 */
#ifndef FERRY_ROUTER_ENGINE_WORKERS_H
#define FERRY_ROUTER_ENGINE_WORKERS_H

#include "ipc/layout.h"
#include "ipc/wait.h"
#include "router/daemon/job.h"
#include "router/daemon/priority.h"

struct ferry_workers {
	pthread_mutex_t lock;
	pthread_cond_t changed;    /* a permit or a job became free */
	struct ferry_job *jobs;    /* singly linked */
	/* of the list; written under lock: a worker that sees a new one leaves its jobs and reads the list again */
	_Atomic uint64_t generation;
	/*
	 * workers at work now: at most `limit`, besides job threads that need no place because their job is dead;
	 * written under lock, read anywhere
	 */
	_Atomic uint32_t active;
	_Atomic uint32_t held_out;  /* threads that wait for a place; written under lock, read anywhere */
	uint32_t limit;            /* how many may be at work */
	struct ferry_spin spin;    /* how long a worker without work spins */
	bool pin;                  /* these two are constant */
	struct ferry_priority *priority;
	bool stopping;
	uint32_t nhelpers;
	struct ferry_helper {
		struct ferry_workers *workers;
		uint32_t number;
		pthread_t thread;
		struct ferry_doorbell bell; /* it sleeps here */
	} helpers[FERRY_MAX_RANKS];
	_Atomic uint64_t asleep;
	struct ferry_layout layout;
	uint32_t domain;
};

/** Starts limit - 1 helpers. priority: of the threads that work; NULL: as they are. */
ferryResult_t ferry_workers_start(struct ferry_workers *workers, const struct ferry_layout *layout, uint32_t domain,
                                  uint32_t limit, uint32_t spin_us, bool pin, struct ferry_priority *priority);

/** Joins the helpers. All jobs must be gone. */
void ferry_workers_stop(struct ferry_workers *workers);

void ferry_workers_add_job(struct ferry_workers *workers, struct ferry_job *job);

/** No worker enters the job from here on; workers that are inside may still be. */
void ferry_workers_unlist_job(struct ferry_workers *workers, struct ferry_job *job);

/** Takes the job out of the list if it is there. Returns once no worker is inside the job and none will be again. */
void ferry_workers_remove_job(struct ferry_workers *workers, struct ferry_job *job);

/** Counts the caller as inside the job until it leaves: its plans stay. */
void ferry_workers_enter(struct ferry_workers *workers, struct ferry_job *job);
void ferry_workers_leave(struct ferry_workers *workers, struct ferry_job *job);

/** Frees the plans that have retired, at a moment when no worker is inside the job. By the connection thread. */
void ferry_workers_free_retired(struct ferry_workers *workers, struct ferry_job *job);

/**
 * Works until nothing is ready in any job, or this one is dead, then returns. For job threads: helpers do so by
 * themselves. A job thread also works for other jobs while its own lasts, but the end of its job does not wait for
 * those. idle: the calling thread's.
 */
void ferry_workers_attend(struct ferry_workers *workers, const struct ferry_job *job, struct ferry_idle *idle);

/** Makes job threads that wait for a place among the workers check whether their job is dead. */
void ferry_workers_release(struct ferry_workers *workers);

#endif
