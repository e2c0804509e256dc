/* SPDX-License-Identifier: Apache-2.0 */
/** What a run prints: nccl-tests' columns, and a progress line. Rank 0's alone; the other ranks may call too. */
#ifndef FERRY_BENCH_TABLE_H
#define FERRY_BENCH_TABLE_H

#include "bench/perf/run.h"

void perf_print_head(const struct perf_run *run);
void perf_print_rows(const struct perf_run *run, const struct perf_row *out_of_place, const struct perf_row *in_place);
/** What NCCL has refused. */
void perf_print_refusals(const struct perf_run *run);
void perf_progress(const struct perf_run *run, uint64_t bytes, const char *what, uint32_t done, uint32_t all);

#endif
