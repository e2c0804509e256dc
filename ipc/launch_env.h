/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What the launcher's environment says of this process: rank, size, local rank, job.
 * Understood: Ferry's own (FERRY_RANK, ...), PMI (MPICH, Hydra, Intel MPI), Open MPI / PMIx, Slurm, torchrun.
 * Read-only.
 */
#ifndef FERRY_IPC_LAUNCH_ENV_H
#define FERRY_IPC_LAUNCH_ENV_H

#include "ipc/ferry_types.h"

struct ferry_launch {
	int rank, size;             /* -1 if the environment does not say */
	/* of this machine; where unknown, one machine is assumed: the same as rank and size */
	int local_rank, local_size;
	/* FERRY_JOB_KEY, else a hash of the launcher's name and job id (or its process) and the uid */
	uint8_t key[16];
	int has_key;
	char launcher[32];          /* "ferry", "pmi", "openmpi", "slurm", "torchrun", "none" */
};

/**
 * Fills *launch. The key is the same for all ranks of a job on this machine and differs between jobs of one time;
 * programs that run one after the other under one launcher (mpirun sh -c "a; b") share theirs. Errors:
 * ferryInvalidArgument for a variable with a senseless value, with its name and value.
 */
ferryResult_t ferry_launch_read(struct ferry_launch *launch);

#endif
