/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/perf/cpu.h"

#include "ipc/attach.h"
#include "ipc/endpoint.h"
#include "ipc/environment.h"

#include <stdio.h>
#include <string.h>

void perf_routers_find(struct perf_routers *routers)
{
	struct perf_work_done told;
	routers->count = 0;
	perf_work_done_read(&told);
	for (unsigned domain = 0; domain < FERRY_MAX_DOMAINS; domain++)
		if (told.pids[domain] && !clock_getcpuclockid(told.pids[domain], &routers->clocks[routers->count]))
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
	char directory[64], path[128], text[512];
	memset(done, 0, sizeof *done);
	/* Whoever answers beside ranks that host their routers works for others. */
	if (perf_routers_embedded() || ferry_endpoint_directory(directory, sizeof directory, false))
		return;
	for (unsigned domain = 0; domain < FERRY_MAX_DOMAINS; domain++) {
		snprintf(path, sizeof path, "%s/router-%u.sock", directory, domain);
		const char *pid = ferry_attach_status(path, text, sizeof text) ? NULL : strstr(text, " pid=");
		const char *words = pid ? strstr(text, " calls_ms=") : NULL;
		if (words && sscanf(words, " calls_ms=%lf working_ms=%lf", &done->calls_ms[domain],
		                    &done->working_ms[domain]) == 2)
			sscanf(pid, " pid=%d", &done->pids[domain]);
	}
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
