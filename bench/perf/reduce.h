/* SPDX-License-Identifier: Apache-2.0 */
/** `ferry-perf reduce`: the reduction kernel against memcpy, in one thread. Called by ferry-perf's main. */
#ifndef FERRY_BENCH_REDUCE_H
#define FERRY_BENCH_REDUCE_H

/** Returns the exit code. */
int perf_reduce_command(int argc, char **argv);

#endif
