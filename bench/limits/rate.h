/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Rates are bytes counted in a few equal intervals of one continuous run, all threads against one clock: no thread
 * waits for the slowest, nothing starts cold, and the median of the intervals is a median of repetitions. A measuring
 * thread writes to its own count alone, and is joined before that is read.
 */
#ifndef FERRY_BENCH_RATE_H
#define FERRY_BENCH_RATE_H

#include <stdbool.h>

#define RATE_MAX_INTERVALS 8

struct rate_schedule {
	double begin_us, each_us; /* the first interval's start, and how long each is */
	int intervals;
};

struct rate_count {
	double bytes[RATE_MAX_INTERVALS]; /* completed in each */
};

/** From now on: a moment to warm up, then the intervals. */
struct rate_schedule rate_schedule_now(bool quick);
double rate_schedule_end_us(const struct rate_schedule *schedule);

void rate_count_add(struct rate_count *count, const struct rate_schedule *schedule, double now_us, double bytes);
/** Adds one count to another. */
void rate_count_join(struct rate_count *sum, const struct rate_count *count);
/** GB/s = 1e9 bytes/s, the median of the intervals. */
double rate_gbps(const struct rate_count *count, const struct rate_schedule *schedule);

#endif
