/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The library beside Ferry, whichever it is. Called by ferry-perf, all functions from peers_start on by all ranks
 * alike, in each rank's one thread; what fails prints its reason.
 */
#ifndef FERRY_BENCH_PEERS_H
#define FERRY_BENCH_PEERS_H

#include "bench/peers/nccl_sweep.h"
#include "bench/rank/rank.h"

/**
 * Finds the library of that name; NULL: none. To be called before the ranks are joined, also before they are started.
 */
bool peers_find(struct peers *peers, const char *name);

/** MPI starts, before the ranks join. */
bool peers_start(struct peers *peers);

/** Starts and joins NCCL's children, once the buffers are there. */
bool peers_open(struct peers *peers, struct bench_rank *rank, enum ferry_collective collective, enum nccl_sweep sweep);
void peers_close(struct peers *peers);

/**
 * Takes one sample; *us: microseconds per timed call. first: the setting has not done this work yet; a call that does
 * not end then counts as a refusal.
 */
enum peer_result peers_run(struct peers *peers, struct bench_rank *rank, unsigned setting,
                           const struct ferry_trial_call *call, bool first, const struct peer_sampling *how,
                           double *us);

/** Takes a setting out of the run, on all ranks alike. */
void peers_drop(struct peers *peers, unsigned setting);

#endif
