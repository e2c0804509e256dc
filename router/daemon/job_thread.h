/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A job's job thread: the thread that sleeps on the job's doorbell, works when it rings, and before that allocates the
 * job's arena, which takes its time, and the connection thread has none.
 */
#ifndef FERRY_ROUTER_DAEMON_JOB_THREAD_H
#define FERRY_ROUTER_DAEMON_JOB_THREAD_H

#include "router/engine/workers.h"

/**
 * Makes job->job thread, which has the arena allocated first thing (ferry_arena_allocate; lock: locked, too), or fails
 * the job. Error: ferrySystemError.
 */
ferryResult_t ferry_job_thread_start(struct ferry_job *job, struct ferry_workers *workers, bool lock);

/** job->dead is set: returns when the job thread has ended, and is gone. */
void ferry_job_thread_join(struct ferry_job *job);

/**
 * All ranks have attached, and the other domains' arenas been brought: has the job thread set job->ready and answer on
 * a copy of `descriptor`. Connection thread. Errors, to be answered by the caller: ferryInvalidUsage the second time,
 * ferrySystemError.
 */
ferryResult_t ferry_job_thread_request(struct ferry_job *job, int descriptor);

/** Whether it has been, or has ended unasked: else the job's arenas of other domains are the connection thread's. */
bool ferry_job_thread_was_requested(const struct ferry_job *job);

/**
 * Of a job that is brought: has the job thread ready what moves the ranks' data, and set job->opened, or fails the job.
 * False: it has ended, as the job has failed, and readies nothing.
 */
bool ferry_job_thread_open(struct ferry_job *job);

#endif
