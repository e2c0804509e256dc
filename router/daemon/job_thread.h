/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The job thread: first allocates its job's arena, which takes too long for the connection thread, then sleeps on the
 * job's doorbell, and works when that rings.
 */
#ifndef FERRY_ROUTER_DAEMON_JOB_THREAD_H
#define FERRY_ROUTER_DAEMON_JOB_THREAD_H

#include "router/engine/workers.h"

/**
 * Makes job->job_thread, which first allocates the arena (ferry_arena_allocate), or fails the job. Error:
 * ferrySystemError.
 */
ferryResult_t ferry_job_thread_start(struct ferry_job *job, struct ferry_workers *workers);

/** job->dead is set: returns when the job thread has ended, and frees job->job_thread. */
void ferry_job_thread_join(struct ferry_job *job);

/**
 * All ranks have attached, and the other domains' arenas have been handed over: has the job thread set job->ready and
 * answer on a copy of `descriptor`. Connection thread. Errors, to be answered by the caller: ferryInvalidUsage the
 * second time, ferrySystemError.
 */
ferryResult_t ferry_job_thread_request(struct ferry_job *job, int descriptor);

/**
 * Whether ferry_job_thread_request was called, or the thread has ended without it. Until then the job's arenas of other
 * domains belong to the connection thread.
 */
bool ferry_job_thread_was_requested(const struct ferry_job *job);

/**
 * For an adopted job: has the job thread make ready what moves the ranks' data, and set job->opened, or fail the job.
 * Returns false if the thread has ended, as the job has failed.
 */
bool ferry_job_thread_open(struct ferry_job *job);

#endif
