/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/perf/cpu.h"

#include "ipc/counters.h"
#include "ipc/endpoint.h"
#include "ipc/environment.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void perf_routers_find(struct perf_routers *routers)
{
	struct perf_work_done logged;
	routers->count = 0;
	perf_work_done_read(&logged);
	for (unsigned domain = 0; domain < FERRY_MAX_DOMAINS; domain++)
		if (logged.pids[domain] && !clock_getcpuclockid(logged.pids[domain], &routers->clocks[routers->count]))
			routers->count++;
}

static double read_us(clockid_t clock)
{
	struct timespec spent;
	if (clock_gettime(clock, &spent)) /* a router that is gone has spent nothing since */
		return 0;
	return (double)spent.tv_sec * 1e6 + (double)spent.tv_nsec / 1e3;
}

void perf_cpu_read(const struct perf_routers *routers, struct perf_cpu *cpu)
{
	cpu->process_us = read_us(CLOCK_PROCESS_CPUTIME_ID);
	cpu->caller_us = read_us(CLOCK_THREAD_CPUTIME_ID);
	cpu->routers_us = 0;
	for (unsigned i = 0; i < routers->count; i++)
		cpu->routers_us += read_us(routers->clocks[i]);
}

bool perf_routers_embedded(void)
{
	const char *mode = ferry_env("FERRY_ROUTER");
	return mode && !strcmp(mode, "embedded");
}

void perf_work_done_read(struct perf_work_done *done)
{
	char directory[64], path[128];
	struct ferry_counters *counters = malloc(sizeof *counters);
	memset(done, 0, sizeof *done);
	/* If ranks host their routers, a router process that answers serves other jobs. */
	bool asked = counters && !perf_routers_embedded() &&
	             !ferry_endpoint_directory(directory, sizeof directory, false);
	for (unsigned domain = 0; asked && domain < FERRY_MAX_DOMAINS; domain++) {
		snprintf(path, sizeof path, "%s/router-%u.sock", directory, domain);
		if (ferry_counters_take(path, counters))
			continue;
		done->pids[domain] = (int)counters->pid;
		done->calls_ms[domain] = (double)counters->calls_ns / 1e6;
		done->working_ms[domain] = (double)counters->working_ns / 1e6;
	}
	free(counters);
}

double perf_workers_at_work(const struct perf_work_done *before, const struct perf_work_done *after)
{
	double workers = -1;
	for (unsigned domain = 0; domain < FERRY_MAX_DOMAINS; domain++) {
		double calls = after->calls_ms[domain] - before->calls_ms[domain];
		if (!before->pids[domain] || before->pids[domain] != after->pids[domain] || calls <= 0)
			continue;
		workers = (workers < 0 ? 0 : workers) +
		          (after->working_ms[domain] - before->working_ms[domain]) / calls;
	}
	return workers;
}
