/* SPDX-License-Identifier: Apache-2.0 */
/**
 * This process as one of the ranks that are measured: its communicators, its buffers, and how it meets the other ranks.
 * Made and used by ferry-perf, in one thread. What fails prints its reason and returns false.
 */
#ifndef FERRY_BENCH_RANK_H
#define FERRY_BENCH_RANK_H

#include "bench/rank/buffers.h"

struct bench_rank {
	ferryComm_t comm;    /* what is measured */
	ferryComm_t control; /* of the same ranks, on the host: meetings, and figures over the ranks */
	int rank, nranks, ndomains;
	bool failed_alone; /* the other ranks may be waiting for something else than this rank */
	struct bench_buffers buffers;
};

/** Joins the ranks, with the communicator to measure on the kind of the buffers, which are open. */
bool bench_rank_join(struct bench_rank *rank);

/** Leaves them after a last meeting, or by an abort if this rank has failed alone. */
bool bench_rank_leave(struct bench_rank *rank);

/** Element-wise maximum or sum over the ranks; with one element also a barrier, which sleeps while it waits. */
bool bench_rank_over(struct bench_rank *rank, double *values, size_t count, ferryRedOp_t op);

#endif
