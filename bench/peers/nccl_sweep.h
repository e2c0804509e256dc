/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The settings of NCCL that ferry-perf compares with: its defaults, HyLink's sweep (Table 2), and where GPUs meet
 * through the host those that were measured to help there (docs/lab/nccl-settings.md). A variable that the caller's
 * environment has holds for every setting, and is not swept.
 */
#ifndef FERRY_BENCH_NCCL_SWEEP_H
#define FERRY_BENCH_NCCL_SWEEP_H

#include "bench/peers/peer.h"

/** NCCL_PROTO, NCCL_ALGO, NCCL_P2P_DISABLE, NCCL_SHM_USE_CUDA_MEMCPY, NCCL_MIN_NCHANNELS: what a setting sets. */
extern const char *const nccl_variables[NCCL_VARIABLES];

/** Which settings besides NCCL's defaults. */
enum nccl_sweep {
	NCCL_SWEEP_NONE,
	NCCL_SWEEP_HYLINK,
	NCCL_SWEEP_CHANNELS /* 16 at least, unless the environment says how many */
};

/** Fills in the settings, none of which has a child yet. */
void nccl_sweep_make(struct peers *peers, enum ferry_collective collective, enum nccl_sweep sweep);

#endif
