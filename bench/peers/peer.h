/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A library that ferry-perf compares with, in one or several settings: MPI, a module in this process (mpi.c), or NCCL,
 * each setting in a child process of its own (nccl_child.c), as NCCL reads its settings once per process. Filled in by
 * peers.c and nccl.c.
 */
#ifndef FERRY_BENCH_PEER_H
#define FERRY_BENCH_PEER_H

#include "bench/trial/trial.h"

#include <sys/types.h>

#define PEERS_MOST_SETTINGS 16
#define NCCL_VARIABLES      5 /* nccl_sweep.h has them */

enum peer_result {
	PEER_DONE,
	PEER_REFUSED, /* the library does not do this: the setting's `refused` says why */
	PEER_BROKEN   /* it died or hung; a message is printed */
};

/** What a row's samples are, of any side; the same on all ranks. */
struct peer_sampling {
	uint32_t lead;     /* calls before, which are not timed; unless `row`, waited for */
	bool row;          /* all calls are put into the stream in a row, and events around the timed ones time them */
	uint32_t pause_us; /* then all sides' callers compute for so long, and make no call */
	uint32_t calls;    /* timed, one after another; on GPUs put into the stream and waited for once */
	uint32_t rounds;   /* so many samples */
};

struct peer_setting {
	char name[64];  /* "PROTO=LL128 ALGO=Ring"; "default" */
	char brief[24]; /* "LL128/Ring", "noP2P/memcpy/16ch", for the table */
	const char *values[NCCL_VARIABLES]; /* NULL: as in this process's environment */
	pid_t child;
	int socket;        /* -1: no child */
	char refused[256]; /* "": it runs */
};

/** The MPI module's; mpi.c has it. */
struct mpi_peer {
	/** NULL on success, else why not. */
	const char *(*open)(int *rank, int *nranks);
	/** NULL if it can do such a call, else why not. May be called before open. */
	const char *(*supports)(const struct ferry_trial *trial);
	/** Blocking. */
	void (*run)(const struct ferry_trial_call *call);
	void (*close)(void);
};

struct peers {
	const char *name; /* "mpi", "nccl"; NULL: Ferry is measured alone */
	unsigned count;   /* of settings; MPI has one */
	struct peer_setting settings[PEERS_MOST_SETTINGS];
	const struct mpi_peer *mpi; /* NULL where it is not MPI */
	int rank, nranks;           /* MPI's */
	bool nccl;
	int version; /* as ncclGetVersion gives it: 22809 */
};

/** Whether the setting is still in the run; the same on all ranks. */
static inline bool peers_runs(const struct peers *peers, unsigned setting)
{
	return !*peers->settings[setting].refused;
}

#endif
