/* SPDX-License-Identifier: Apache-2.0 */
/** A collective's measurement as one of its ranks takes part in it, from the first buffer to the last line. Called by
 * main. */
#ifndef FERRY_BENCH_JOB_H
#define FERRY_BENCH_JOB_H

#include "bench/perf/options.h"

/** Returns the exit code. */
int perf_job(const struct perf_options *options, int local_rank);

#endif
