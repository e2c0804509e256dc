/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The launcher: what the environment says of this process's place in a job, under any launcher. Launchers nest (mpirun
 * starts torchrun, Slurm starts ferryrun), and a process inherits the variables of them all. The innermost one counts:
 * the one whose variables were set last. Called by ranks, ferryrun and ferry-perf; nothing is kept.
 *
 * The innermost launcher is found in /proc, from this process up through its parents. A parent without a launcher's
 * variables, or with other values of them, was there before that launcher; a parent may also be the launcher's own
 * command (hydra_pmi_proxy, slurmstepd). The first launcher that is found so counts. If the parents have ended or
 * belong to other users, ferryrun counts first, then launchers with a variable that people do not set by hand
 * (TORCHELASTIC_RUN_ID, SLURM_STEP_ID), then the others, each in this order: torchrun, Open MPI, PMI, Slurm.
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
	bool no_step;               /* Slurm's variables, but none of a step: a batch script, a single process */
};

/**
 * Fills *launch. The key is the same for all ranks of a job on this machine, and differs between jobs that run at the
 * same time; programs that run one after the other under one launcher (mpirun sh -c "a; b") have one key. PMIx alone
 * ("pmix") tells no size, and so no rank. Error: ferryInvalidArgument for an invalid variable, with its name and value.
 */
ferryResult_t ferry_launch_read(struct ferry_launch *launch);

#endif
