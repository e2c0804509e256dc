/* SPDX-License-Identifier: Apache-2.0 */
/** One row's measurement: Ferry's samples, interleaved with those of each setting of the other library. */
#ifndef FERRY_BENCH_MEASURE_H
#define FERRY_BENCH_MEASURE_H

#include "bench/perf/run.h"

/** A row of about so many bytes; false (with a message printed) if a call failed. */
bool perf_measure(struct perf_run *run, uint64_t bytes, bool in_place, struct perf_row *row);

#endif
