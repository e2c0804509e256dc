/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A sample is one measured time or rate; a row's figures are the median and the quartiles of several. The clock, and
 * the statistics. Used by all measuring code, from any thread.
 */
#ifndef FERRY_BENCH_SAMPLE_H
#define FERRY_BENCH_SAMPLE_H

#include <stddef.h>
#include <stdint.h>

struct sample_summary {
	double median, low, high; /* quartiles; all 0: not measured */
};

double sample_now_us(void);

/** Keeps this thread busy for so long, as an application that computes. */
void sample_pause(uint32_t us);

/** Sorts values. */
struct sample_summary sample_summarize(double *values, size_t count);

#endif
