/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A picture of what uneven traffic loads: how long each link, port and shared link is busy, by direct paths and as the
 * planner (router/engine/balance.h) divides the same bytes among all paths. By the links of FERRY_HOST_LINK; where none
 * are modelled, all links are equally fast. Rank 0's job prints it behind the rows of `--skew`.
 */
#ifndef FERRY_BENCH_LOAD_H
#define FERRY_BENCH_LOAD_H

#include "bench/perf/run.h"

/** Of the largest size. */
void perf_print_load(const struct perf_run *run);

#endif
