/* SPDX-License-Identifier: Apache-2.0 */
/**
 * `ferry-perf tune`: measures what collectives take by NCCL and by Ferry, as NCCL programs would have them, and keeps
 * it in the limits file. Called by ferry-perf's main. It starts ferryrun with a rank of itself per GPU, which measure
 * (tune_ranks.h).
 */
#ifndef FERRY_BENCH_TUNE_H
#define FERRY_BENCH_TUNE_H

/** Returns the exit code. */
int tune_command(int argc, char **argv);

#endif
