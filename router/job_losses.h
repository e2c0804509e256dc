/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A job loses a router to a GPU whose context is gone. The same GPU may do that to the next router, again and again: so
 * many times in a row, without anything that got done for the rank, end the job. Its arena keeps count (ipc/loss.h), in
 * the line of the rank, where the router alone writes.
 */
#ifndef FERRY_ROUTER_JOB_LOSSES_H
#define FERRY_ROUTER_JOB_LOSSES_H

#include "router/job.h"

#define FERRY_MOST_LOSSES 8

/**
 * Once more, over rank `rank`'s GPU; `why` names GPU and error. The router ends after it. Any thread, one at a time,
 * that keeps the job from ending.
 */
void ferry_job_losses_add(struct ferry_job *job, uint32_t rank, const char *why);

#endif
