/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/perf_cpu.h"

#include "ipc/attach.h"
#include "ipc/environment.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_router(const char *directory)
{
	char path[300], name[32] = "";
	struct stat owner;
	snprintf(path, sizeof path, "/proc/%s", directory);
	if (stat(path, &owner) || owner.st_uid != geteuid())
		return false;
	snprintf(path, sizeof path, "/proc/%s/comm", directory);
	FILE *file = fopen(path, "r");
	if (!file)
		return false;
	bool read = fgets(name, sizeof name, file) != NULL;
	fclose(file);
	return read && !strcmp(name, "ferry-router\n");
}

void perf_routers_find(struct perf_routers *routers)
{
	DIR *processes = opendir("/proc");
	routers->count = 0;
	if (!processes)
		return;
	for (const struct dirent *entry; (entry = readdir(processes)) && routers->count < PERF_MOST_ROUTERS;) {
		long pid = strtol(entry->d_name, NULL, 10);
		if (pid > 0 && is_router(entry->d_name) &&
		    !clock_getcpuclockid((pid_t)pid, &routers->clocks[routers->count]))
			routers->count++;
	}
	closedir(processes);
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
	if (perf_routers_embedded() || ferry_socket_directory(directory, sizeof directory, false))
		return;
	for (unsigned domain = 0; domain < FERRY_MAX_DOMAINS; domain++) {
		snprintf(path, sizeof path, "%s/router-%u.sock", directory, domain);
		const char *words = ferry_attach_status(path, text, sizeof text) ? NULL : strstr(text, " calls_ms=");
		done->known[domain] = words && sscanf(words, " calls_ms=%lf working_ms=%lf", &done->calls_ms[domain],
		                                      &done->working_ms[domain]) == 2;
	}
}

double perf_workers_at_work(const struct perf_work_done *before, const struct perf_work_done *after)
{
	double workers = -1;
	for (unsigned domain = 0; domain < FERRY_MAX_DOMAINS; domain++) {
		double calls = after->calls_ms[domain] - before->calls_ms[domain];
		if (!before->known[domain] || !after->known[domain] || calls <= 0)
			continue;
		workers = (workers < 0 ? 0 : workers) + (after->working_ms[domain] - before->working_ms[domain]) / calls;
	}
	return workers;
}
