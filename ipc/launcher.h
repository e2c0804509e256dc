/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The launcher: what the environment says of this process's place in a job, under any launcher. Launchers nest (mpirun
 * starts torchrun, Slurm starts ferryrun), and a process inherits the variables of them all. The innermost one counts:
 * the one whose variables were set last. Called by ranks, ferryrun and ferry-perf; nothing is kept.
 *
 * Which one that is, the processes above say (/proc): going up from this process, the first launcher counts whose
 * variables are no longer there, or have other values, or whose own command (hydra_pmi_proxy, slurmstepd) is reached.
 * Where that tells no difference, as when processes above have ended or belong to other users, those go first that have
 * a variable which nobody sets by hand (TORCHELASTIC_RUN_ID, SLURM_STEP_ID), and then the order is: ferryrun, torchrun,
 * Open MPI, PMI, Slurm.
 */
#ifndef FERRY_IPC_LAUNCHER_H
#define FERRY_IPC_LAUNCHER_H

#include "ipc/ferry_types.h"

#include <stdbool.h>
#include <stdint.h>

/* Supported: Ferry's own variables (FERRY_RANK, ...), torchrun, Open MPI, PMI (MPICH, Hydra, Intel MPI), Slurm. */
struct ferry_launch {
	int rank, size;             /* -1 if the environment does not say */
	/* of this machine; where unknown, one machine is assumed: the same as rank and size */
	int local_rank, local_size;
	/* from FERRY_JOB_KEY, the launcher's job id, or else its process, and the uid */
	uint8_t key[16];
	int has_key;
	char launcher[32];          /* "ferry", "torchrun", "openmpi", "pmi", "slurm", "pmix", "none" */
	bool no_step;               /* Slurm's variables, but no srun's: a batch script, of which there is one */
};

/**
 * Fills *launch. The key is the same for all ranks of a job on this machine and differs between jobs of one time;
 * programs that run one after the other under one launcher (mpirun sh -c "a; b") share theirs. PMIx alone ("pmix")
 * tells no size, and so no rank. Errors: ferryInvalidArgument for a variable with a senseless value, with its name and
 * value.
 */
ferryResult_t ferry_launch_read(struct ferry_launch *launch);

#endif
