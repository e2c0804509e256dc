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
	char directory[64], path[128];
	struct ferry_counters *counters = malloc(sizeof *counters);
	routers->count = 0;
	bool asked = counters && !ferry_endpoint_directory(directory, sizeof directory, false);
	for (unsigned domain = 0; asked && domain < FERRY_MAX_DOMAINS; domain++) {
		snprintf(path, sizeof path, "%s/router-%u.sock", directory, domain);
		if (!ferry_counters_take(path, counters) &&
		    !clock_getcpuclockid((pid_t)counters->pid, &routers->clocks[routers->count]))
			routers->count++;
	}
	free(counters);
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
