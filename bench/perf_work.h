/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The work of one row: the shape of the call at this rank, its buffers, making it with Ferry, and checking its result.
 */
#ifndef FERRY_BENCH_PERF_WORK_H
#define FERRY_BENCH_PERF_WORK_H

#include "bench/perf.h"

/* As the trial that checks it and as the other library sees it. */
struct perf_work {
	struct ferry_trial trial;
	struct ferry_trial_counts counts;
	struct perf_call call;
	char *send, *receive; /* where run->memory lies; NULL where the call ignores the buffer */
};

void perf_work_describe(const struct perf_run *run, uint64_t bytes, bool in_place, struct perf_work *work);
/** The size that nccl-tests prints: of the larger buffer. Of alltoallv's uneven ones, what a rank sends on average. */
uint64_t perf_work_bytes(const struct ferry_trial *trial);
/** Bus bandwidth / algorithm bandwidth, as nccl-tests defines it. */
double perf_bus_factor(enum ferry_collective collective, int nranks);

/** Puts the call into the stream `calls` times and waits for all; *us: microseconds per call. False with a message printed. */
bool perf_work_run(struct perf_run *run, const struct perf_work *work, uint32_t calls, double *us);

/** Calls once with checked inputs; *wrong: elements over all ranks. Leaves the buffers with data fit for timed calls. */
bool perf_work_check(struct perf_run *run, struct perf_work *work, long long *wrong);

#endif
