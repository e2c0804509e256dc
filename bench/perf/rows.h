/* SPDX-License-Identifier: Apache-2.0 */
/** The record of a run: {"about": the machine and the run, "rows": [...]}. docs/man/ferry-perf.1 says what is in it. */
#ifndef FERRY_BENCH_ROWS_H
#define FERRY_BENCH_ROWS_H

#include "bench/perf/run.h"

/** The record of the rows so far; false (with a message printed) if it could not be written. */
bool perf_write_rows(const struct perf_run *run, const struct perf_row *rows, size_t count, bool complete);

#endif
