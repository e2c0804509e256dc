/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A job's attendant: the thread that sleeps on the job's doorbell, works when it rings, and once maps the other
 * domains' arenas, for which it may have to wait, as the connection thread may not.
 */
#ifndef FERRY_ROUTER_ATTENDANT_H
#define FERRY_ROUTER_ATTENDANT_H

#include "router/workers.h"

/** Makes job->attendant. The texts stay as long as the job. Error: ferrySystemError. */
ferryResult_t ferry_attendant_start(struct ferry_job *job, struct ferry_workers *workers, const char *directory,
                                    const char *prefix);

/** job->dead is set: returns when the attendant has ended, and is gone. */
void ferry_attendant_join(struct ferry_job *job);

/**
 * All ranks have attached: has the attendant map the other domains' arenas, set job->ready and answer on a copy of
 * `descriptor`. Connection thread. Errors, to be answered by the caller: ferryInvalidUsage the second time,
 * ferrySystemError.
 */
ferryResult_t ferry_attendant_ask(struct ferry_job *job, int descriptor);

#endif
