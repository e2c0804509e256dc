/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The ranks of `ferry-perf tune`: each collective at a few sizes, by NCCL with its defaults, by NCCL with 16 channels
 * at least, and by Ferry. A sample is a row of calls in the stream, of which the first are not counted, with an event
 * on either side of the others: so queueing is in the measure, and waiting for the host is not. The three take turns on
 * the same buffers. Called by tune.c in each rank's process.
 */
#ifndef FERRY_BENCH_TUNE_RANKS_H
#define FERRY_BENCH_TUNE_RANKS_H

#include <stdbool.h>
#include <stdint.h>

#define TUNE_LEAST (1ull << 20) /* bytes of a rank's larger buffer; four times as many from one size to the next */
#define TUNE_MOST  (256ull << 20)

struct tune_options {
	bool quick;
	uint64_t most; /* the largest size */
};

/** Measures with the other ranks; rank 0 keeps the rows and prints them. Returns the exit code. */
int tune_rank(const struct tune_options *options);

#endif
