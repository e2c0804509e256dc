/* SPDX-License-Identifier: Apache-2.0 */
/**
 * CPU time that a job spends: this rank's process, its calling thread, and the routers. Read from the kernel's CPU
 * clocks, which any process may read: /proc's ticks of 10 ms are too coarse for samples of 2 ms. And, by the routers'
 * counters, how much of that their workers work: most of the rest they look for the next slice.
 */
#ifndef FERRY_BENCH_CPU_H
#define FERRY_BENCH_CPU_H

#include "ipc/ferry_types.h"

#include <stdbool.h>
#include <time.h>

/** Routers that ranks host count as the ranks'. */
struct perf_routers {
	unsigned count;
	clockid_t clocks[FERRY_MAX_DOMAINS];
};

struct perf_cpu {
	double process_us, caller_us, routers_us; /* process: of all its threads, the caller among them */
};

/** Since each router started, of the jobs that it has now. */
struct perf_work_done {
	int pids[FERRY_MAX_DOMAINS]; /* 0: no router answers for the domain; one that a rank hosts does not */
	double calls_ms[FERRY_MAX_DOMAINS], working_ms[FERRY_MAX_DOMAINS];
};

/** Whether the ranks host the routers. */
bool perf_routers_embedded(void);

void perf_routers_find(struct perf_routers *routers);
void perf_cpu_read(const struct perf_routers *routers, struct perf_cpu *cpu);

void perf_work_done_read(struct perf_work_done *done);
/** Workers at work while a call was under way, of all routers together; negative if no router reports it. */
double perf_workers_at_work(const struct perf_work_done *before, const struct perf_work_done *after);

#endif
