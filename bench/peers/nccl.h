/* SPDX-License-Identifier: Apache-2.0 */
/**
 * NCCL beside Ferry: each setting's child opens this rank's GPU buffers, makes NCCL's calls on them by order, and
 * sleeps in between. Called by peers.c; peers.h describes the functions.
 */
#ifndef FERRY_BENCH_NCCL_H
#define FERRY_BENCH_NCCL_H

#include "bench/peers/nccl_sweep.h"
#include "bench/rank/rank.h"

bool nccl_open(struct peers *peers, struct bench_rank *rank, enum ferry_collective collective,
               enum nccl_sweep sweep);
void nccl_close(struct peers *peers);
enum peer_result nccl_run(struct bench_rank *rank, struct peer_setting *setting, const struct ferry_trial_call *call,
                          bool first, const struct peer_sampling *how, double *us);
void nccl_drop(struct peer_setting *setting);

#endif
