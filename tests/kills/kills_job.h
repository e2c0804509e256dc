/* SPDX-License-Identifier: Apache-2.0 */
/** Jobs of router_kills as the process sees them that kills: started, watched, ended. */
#ifndef FERRY_TESTS_KILLS_JOB_H
#define FERRY_TESTS_KILLS_JOB_H

#include "tests/kills/kills_shared.h"

#include <sys/types.h>

enum kills_end { KILLS_RUNS, KILLS_DEAD, KILLS_HUNG };

/** Starts its ranks; `program`: this one, for ferryrun, which starts the routers too. Exits where that cannot be. */
void kills_job_start(struct kills_shared *shared, struct kills_job *job, int nranks, bool loses_ranks);

/** Collects what has ended. Whether a rank of the job that should run does not any more: says so. */
bool kills_job_broken(struct kills_shared *shared, struct kills_job *job);

/** Until `*what` is at least that: KILLS_RUNS. */
enum kills_end kills_job_await(struct kills_shared *shared, struct kills_job *job, atomic_uint *what, unsigned least);

/** Until each rank has ended so many batches more: their longest pause since `ns`, from the end of one to the next. */
enum kills_end kills_job_pause(struct kills_shared *shared, struct kills_job *job, uint64_t ns, unsigned batches,
                               double *pause);

/** Has its ranks stop behind their round, and waits. */
enum kills_end kills_job_stop(struct kills_shared *shared, struct kills_job *job);

/** Until a rank has ended: its wait status, -1: it hangs. */
int kills_rank_end(struct kills_shared *shared, struct kills_job *job, int rank);

/** Kills what is left of it. */
void kills_job_kill(struct kills_shared *shared, struct kills_job *job);

#endif
