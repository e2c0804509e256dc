/* SPDX-License-Identifier: Apache-2.0 */
/**
 * CPU time that a job spends: this rank's process, its calling thread, and the routers. Read from the kernel's CPU
 * clocks, which any process may read: /proc's ticks of 10 ms are too coarse for samples of 2 ms.
 */
#ifndef FERRY_BENCH_CPU_H
#define FERRY_BENCH_CPU_H

#include "ipc/ferry_types.h"

#include <stdbool.h>
#include <time.h>

struct perf_routers {
	unsigned count;
	clockid_t clocks[FERRY_MAX_DOMAINS];
};

struct perf_cpu {
	double process_us, caller_us, routers_us; /* process: of all its threads, the caller among them */
};

void perf_routers_find(struct perf_routers *routers);
void perf_cpu_read(const struct perf_routers *routers, struct perf_cpu *cpu);

#endif
