/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What ferry-stat shows, made of two reports (launch/report.h): a row per router, per job in any of its routers, per
 * GPU that a router has a context on, and per tenant of a router. Present values are means over the time between the
 * two.
 */
#ifndef FERRY_LAUNCH_ROWS_H
#define FERRY_LAUNCH_ROWS_H

#include "launch/report.h"

struct ferry_router_row {
	const struct ferry_router_report *report;
	double gbps; /* of its domain's ranks, D2H and H2D together */
	double busy; /* 0 to 1: the part of its workers' time that was work */
};

struct ferry_job_row {
	uint32_t name, nranks;
	uint32_t state;            /* enum ferry_counters_state */
	const char *place, *path;  /* of its first router's socket */
	const char *tenant;        /* "": none */
	uint64_t attached, left;   /* attached: to all its routers */
	uint64_t calls, kernel_calls; /* of the rank that has made the most calls */
	bool kernels;                 /* its ranks have kernels */
	uint64_t staging, on_gpus, d2h, h2d;
	double gbps;
	uint64_t waiting, blockers; /* ranks that wait; ranks that they wait for and that do not wait, if any */
	double waited_s;
	uint64_t takeovers;                 /* in all its routers */
	double takeover_ms, takeover_ago_s; /* of the last one */
};

struct ferry_gpu_row {
	const struct ferry_gpu_counters *counters;
	const struct ferry_router_report *router;
	uint64_t context; /* bytes of the GPU that the router's process has; 0: not known */
};

struct ferry_tenant_row {
	const struct ferry_tenant_counters *counters;
	const struct ferry_router_report *router;
};

struct ferry_rows {
	double interval_s;
	struct ferry_router_row *routers;
	struct ferry_job_row *jobs;
	struct ferry_gpu_row *gpus;
	struct ferry_tenant_row *tenants;
	size_t nrouters, njobs, ngpus, ntenants;
};

/**
 * Makes the rows, which point into `now`. The caller frees them, also after an error. Errors: ferrySystemError without
 * memory.
 */
ferryResult_t ferry_rows_make(const struct ferry_report *before, const struct ferry_report *now,
                              struct ferry_rows *rows);
void ferry_rows_free(struct ferry_rows *rows);

#endif
