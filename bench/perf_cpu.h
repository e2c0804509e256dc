/* SPDX-License-Identifier: Apache-2.0 */
/**
 * CPU time that a job spends: this rank's process, its calling thread, and this user's routers. Read from the kernel's CPU
 * clocks, which other processes' may be read by anybody: /proc's ticks of 10 ms are too coarse for samples of 2 ms.
 */
#ifndef FERRY_BENCH_PERF_CPU_H
#define FERRY_BENCH_PERF_CPU_H

#include <time.h>

#define PERF_MOST_ROUTERS 16

struct perf_routers {
	unsigned count;
	clockid_t clocks[PERF_MOST_ROUTERS];
};

struct perf_cpu {
	double process_us, caller_us, routers_us; /* process: of all its threads, the caller among them */
};

/** All processes named ferry-router of this user; routers that ranks host count as the ranks'. */
void perf_routers_find(struct perf_routers *routers);
void perf_cpu_read(const struct perf_routers *routers, struct perf_cpu *cpu);

#endif
