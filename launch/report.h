/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What the routers of this user tell of themselves, their jobs and their GPUs at one moment (router/status.h): totals,
 * from which launch/rows.h makes rates. Called by ferry-stat.
 */
#ifndef FERRY_LAUNCH_REPORT_H
#define FERRY_LAUNCH_REPORT_H

#include "launch/sockets.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct ferry_router_report {
	struct ferry_socket socket;
	char trouble[200]; /* why it has not answered; "": it has, and the rest is filled in */
	uint32_t domain, workers, jobs, failed, ranks;
	pid_t pid;
	bool draining;
	uint64_t staging; /* bytes */
	double working_ms;
};

/* Of one job in one router. Sets of ranks are bit masks. */
struct ferry_job_report {
	size_t router;   /* index of its report */
	uint64_t number; /* of the router's jobs */
	uint32_t name;   /* the same in all routers of the job */
	uint32_t nranks;
	char state[16];                    /* attaching, ready, failed */
	uint64_t attached, left, here;     /* here: of this router's domain; what follows is of those */
	uint64_t staging, calls, up, down; /* bytes from the ranks' buffers, and to them */
	uint64_t waiting, awaited;
	double working_ms, waited_ms;
};

struct ferry_gpu_report {
	size_t router;
	char uuid[48];
};

struct ferry_report {
	uint64_t taken_ns; /* ferry_now_ns */
	struct ferry_sockets sockets;
	struct ferry_router_report *routers;
	struct ferry_job_report *jobs;
	struct ferry_gpu_report *gpus;
	size_t nrouters, njobs, ngpus;
};

/** Asks all. To be freed. Errors: those of ferry_sockets_find; ferrySystemError without memory. */
ferryResult_t ferry_report_take(struct ferry_report *report);
void ferry_report_free(struct ferry_report *report);

#endif
