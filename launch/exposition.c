/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/exposition.h"

#include <stddef.h>
#include <string.h>

/* A metric: where its value lies in each item of a list, and the value's kind. */
enum kind { NUMBER32, NUMBER64, LIMIT, NANOSECONDS };

struct family {
	const char *name, *type, *help;
	size_t at;
	enum kind kind;
};

#define ROUTER(field) offsetof(struct ferry_counters, field)
#define JOB(field)    offsetof(struct ferry_job_counters, field)
#define TENANT(field) offsetof(struct ferry_tenant_counters, field)

static const struct family silent = {"router_silent", "gauge", "1: it has not answered for a second.",
                                     offsetof(struct ferry_router_report, silent), NUMBER32};

static const struct family of_routers[] = {
        {"router_draining", "gauge", "1: it takes no new jobs.", ROUTER(draining), NUMBER32},
        {"router_config_bad", "gauge", "1: what its file of tenants says now cannot be.", ROUTER(config_bad),
         NUMBER32},
        {"router_workers", "gauge", "Threads that reduce and copy between domains.", ROUTER(workers), NUMBER32},
        {"router_jobs", "gauge", "Jobs in it.", ROUTER(jobs), NUMBER32},
        {"router_failed_jobs", "gauge", "Of those, that have failed.", ROUTER(failed), NUMBER32},
        {"router_ranks", "gauge", "Ranks attached.", ROUTER(ranks), NUMBER32},
        {"router_staging_bytes", "gauge", "Staging of its jobs.", ROUTER(staging), NUMBER64},
        {"router_staging_limit_bytes", "gauge", "Staging for all jobs together.", ROUTER(staging_limit), NUMBER64},
        {"router_memory_bytes", "gauge", "Memory that the arenas of its jobs cost.", ROUTER(memory), NUMBER64},
};

static const struct family of_jobs[] = {
        {"job_ranks", "gauge", "Ranks of the job.", JOB(nranks), NUMBER32},
        {"job_staging_bytes", "gauge", "Staging of the job in this domain.", JOB(staging), NUMBER64},
        {"job_on_gpus_bytes", "gauge", "Memory of Ferry's on its GPUs.", JOB(on_gpus), NUMBER64},
        {"job_calls_total", "counter", "Calls that have ended.", JOB(calls), NUMBER64},
        {"job_kernel_calls_total", "counter", "Of them, those made of kernels.", JOB(kernel_calls), NUMBER64},
        {"job_up_bytes_total", "counter", "Bytes from ranks' buffers to staging.", JOB(d2h), NUMBER64},
        {"job_down_bytes_total", "counter", "Bytes from staging to ranks' buffers.", JOB(h2d), NUMBER64},
        {"job_working_seconds_total", "counter", "Time of workers spent on it.", JOB(working_ns), NANOSECONDS},
        {"job_takeovers_total", "counter", "Routers that have taken the place of one that died.", JOB(takeovers),
         NUMBER64},
        {"job_waited_seconds", "gauge", "For how long ranks have waited for others.", JOB(waited_ns), NANOSECONDS},
};

static const struct family of_tenants[] = {
        {"tenant_weight", "gauge", "Turns of each of its jobs among those with work.", TENANT(weight), NUMBER64},
        {"tenant_jobs", "gauge", "Jobs of the tenant.", TENANT(jobs), NUMBER64},
        {"tenant_jobs_limit", "gauge", "How many it may have.", TENANT(jobs_limit), LIMIT},
        {"tenant_ranks", "gauge", "Ranks of its jobs.", TENANT(ranks), NUMBER64},
        {"tenant_ranks_limit", "gauge", "How many they may have.", TENANT(ranks_limit), LIMIT},
        {"tenant_plans", "gauge", "Plans of its jobs.", TENANT(plans), NUMBER64},
        {"tenant_plans_limit", "gauge", "How many they may have.", TENANT(plans_limit), LIMIT},
        {"tenant_staging_bytes", "gauge", "Staging of its jobs.", TENANT(staging), NUMBER64},
        {"tenant_staging_limit_bytes", "gauge", "Staging that they may have.", TENANT(staging_limit), LIMIT},
        {"tenant_job_staging_limit_bytes", "gauge", "Staging that each may have.", TENANT(job_staging_limit), LIMIT},
        {"tenant_windows_bytes", "gauge", "GPUs' memory that its windows may take.", TENANT(windows), NUMBER64},
        {"tenant_windows_limit_bytes", "gauge", "How much they may take.", TENANT(windows_limit), LIMIT},
};

/* False: there is no such limit. */
static bool read_value(const void *item, const struct family *family, double *value)
{
	const char *at = (const char *)item + family->at;
	uint32_t number32;
	uint64_t number64;
	switch (family->kind) {
	case NUMBER32:
		memcpy(&number32, at, sizeof number32);
		*value = number32;
		return true;
	case NUMBER64:
	case LIMIT:
		memcpy(&number64, at, sizeof number64);
		*value = (double)number64;
		return family->kind == NUMBER64 || number64 != UINT64_MAX;
	case NANOSECONDS:
		memcpy(&number64, at, sizeof number64);
		*value = (double)number64 / 1e9;
		return true;
	}
	return false;
}

static void print_label(const char *name, const char *value, const char *before, FILE *out)
{
	fprintf(out, "%s%s=\"", before, name);
	for (; *value; value++)
		if (*value == '\n')
			fputs("\\n", out);
		else
			fprintf(out, *value == '"' || *value == '\\' ? "\\%c" : "%c", *value);
	fputc('"', out);
}

static void print_router_labels(const struct ferry_router_report *router, FILE *out)
{
	print_label("place", router->socket.place, "{", out);
	fprintf(out, ",domain=\"%u\",pid=\"%d\"", router->domain, (int)router->pid);
}

/* Prints the beginning of a sample, and before the first one its family's head. False: the item has no sample. */
static bool begin(const struct family *family, const void *item, bool *headed, double *value, FILE *out)
{
	if (!read_value(item, family, value))
		return false;
	if (!*headed)
		fprintf(out, "# HELP ferry_%s %s\n# TYPE ferry_%s %s\n", family->name, family->help, family->name,
		        family->type);
	*headed = true;
	fprintf(out, "ferry_%s", family->name);
	return true;
}

static void end(const struct family *family, double value, FILE *out)
{
	fprintf(out, family->kind == NANOSECONDS ? "} %.6f\n" : "} %.0f\n", value);
}

/* Of a router that has not answered only `silent` is printed. */
static void print_routers(const struct ferry_report *report, const struct family *family, FILE *out)
{
	bool headed = false;
	double value;
	for (size_t i = 0; i < report->nrouters; i++) {
		const struct ferry_router_report *router = &report->routers[i];
		const void *item = family == &silent ? (const void *)router : router->counters;
		if (!item || !begin(family, item, &headed, &value, out))
			continue;
		print_router_labels(router, out);
		end(family, value, out);
	}
}

static void print_jobs(const struct ferry_report *report, const struct family *family, FILE *out)
{
	bool headed = false;
	double value;
	for (size_t i = 0; i < report->nrouters; i++) {
		const struct ferry_counters *counters = report->routers[i].counters;
		for (uint32_t j = 0; counters && j < counters->njob_rows; j++) {
			const struct ferry_job_counters *job = &counters->job_rows[j];
			if (!begin(family, job, &headed, &value, out))
				continue;
			print_router_labels(&report->routers[i], out);
			fprintf(out, ",job=\"%06x\",number=\"%llu\"", job->name, (unsigned long long)job->number);
			print_label("tenant", job->tenant, ",", out);
			end(family, value, out);
		}
	}
}

static void print_tenants(const struct ferry_report *report, const struct family *family, FILE *out)
{
	bool headed = false;
	double value;
	for (size_t i = 0; i < report->nrouters; i++) {
		const struct ferry_counters *counters = report->routers[i].counters;
		for (uint32_t j = 0; counters && j < counters->ntenant_rows; j++) {
			if (!begin(family, &counters->tenant_rows[j], &headed, &value, out))
				continue;
			print_router_labels(&report->routers[i], out);
			print_label("tenant", counters->tenant_rows[j].name, ",", out);
			end(family, value, out);
		}
	}
}

void ferry_exposition_print(const struct ferry_report *report, FILE *out)
{
	print_routers(report, &silent, out);
	for (size_t i = 0; i < sizeof of_routers / sizeof *of_routers; i++)
		print_routers(report, &of_routers[i], out);
	for (size_t i = 0; i < sizeof of_jobs / sizeof *of_jobs; i++)
		print_jobs(report, &of_jobs[i], out);
	for (size_t i = 0; i < sizeof of_tenants / sizeof *of_tenants; i++)
		print_tenants(report, &of_tenants[i], out);
}
