/* SPDX-License-Identifier: Apache-2.0 */
/**
 * NCCL beside Ferry. NCCL reads its settings once per process, so each setting of the sweep has a child process of this rank
 * (nccl_peer.c) which opens this rank's GPU buffers and makes NCCL's calls on them when told to; in between it sleeps.
 * All functions are collective over the ranks, and used by each rank's one thread.
 */
#ifndef FERRY_BENCH_PERF_NCCL_H
#define FERRY_BENCH_PERF_NCCL_H

#include "bench/perf.h"

#include <sys/types.h>

enum perf_nccl_result {
	PERF_NCCL_DONE,
	PERF_NCCL_REFUSED, /* NCCL does not do this: the setting's `refused` says why */
	PERF_NCCL_BROKEN   /* the child died or hung; a message is printed */
};

#define PERF_NCCL_VARIABLES 3 /* NCCL_PROTO, NCCL_ALGO, NCCL_P2P_DISABLE */

struct perf_nccl_setting {
	char name[64];  /* "PROTO=LL128 ALGO=Ring"; "default" */
	char brief[24]; /* "LL128/Ring", for the table */
	const char *values[PERF_NCCL_VARIABLES]; /* NULL: as in this process's environment */
	pid_t child;
	int socket;        /* -1: no child */
	char refused[256]; /* "": it runs */
};

struct perf_nccl {
	unsigned count;
	struct perf_nccl_setting settings[PERF_MOST_SETTINGS];
	int version; /* as ncclGetVersion gives it: 22809 */
};

/** Starts the children, opens NCCL in each and joins the ranks' children to communicators. False with a message printed. */
bool perf_nccl_open(struct perf_run *run);
/** Ends the children. */
void perf_nccl_close(struct perf_run *run);

/**
 * One sample; *us: microseconds per timed call. first: the setting has not done this work yet; a call that does not end is then a
 * refusal.
 */
enum perf_nccl_result perf_nccl_run(struct perf_run *run, unsigned setting, const struct perf_call *call, bool first,
                                    const struct perf_sampling *how, double *us);
/** Takes a setting out of the run, on all ranks alike. */
void perf_nccl_drop(struct perf_run *run, unsigned setting);

#endif
