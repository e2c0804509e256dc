/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The work of one row: the shape of the call at this rank, its buffers, making it with Ferry, and checking its result.
 * What fails prints its reason and returns false.
 */
#ifndef FERRY_BENCH_WORK_H
#define FERRY_BENCH_WORK_H

#include "bench/perf/run.h"

/** Bytes that either buffer may need. */
size_t perf_room(const struct perf_options *options, int nranks);
/** The smallest size, in bytes, that has an element for every rank. */
uint64_t perf_work_least(const struct perf_options *options, int nranks);

/** A trial of about so many bytes. */
struct ferry_trial perf_trial(const struct perf_options *options, uint64_t bytes, bool in_place, int nranks,
                              int ndomains);
/**
 * The size that nccl-tests prints: of the larger buffer. Of alltoallv's uneven ones, what a rank sends on average; with
 * --skew what the busiest one sends or receives.
 */
uint64_t perf_work_bytes(const struct ferry_trial *trial);
/** Bus bandwidth / algorithm bandwidth, as nccl-tests defines it. */
double perf_bus_factor(enum ferry_collective collective, int nranks);

/** The trial's call at this rank, in its buffers. */
void perf_work_describe(const struct perf_run *run, uint64_t bytes, bool in_place, struct ferry_trial_call *work);

/**
 * Makes the call `calls` times: on GPUs it puts all into the stream and waits once, on the host it waits for each, as
 * calls of MPI block. *us: microseconds per call.
 */
bool perf_work_run(struct perf_run *run, const struct ferry_trial_call *work, uint32_t calls, double *us);

/** Calls once with checked inputs; *wrong: elements over all ranks. Leaves the buffers with data fit for timed calls.
 */
bool perf_work_check(struct perf_run *run, struct ferry_trial_call *work, long long *wrong);

#endif
