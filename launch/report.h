/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What the routers of this user tell of themselves, their jobs, GPUs and tenants at one moment: totals, from which
 * launch/rows.h makes rates. Called by ferry-stat.
 */
#ifndef FERRY_LAUNCH_REPORT_H
#define FERRY_LAUNCH_REPORT_H

#include "launch/question.h"

struct ferry_report {
	uint64_t taken_ns; /* ferry_now_ns */
	struct ferry_sockets sockets;
	struct ferry_router_report *routers; /* as the sockets are found, and what they have told in that order, too */
	struct ferry_job_report *jobs;
	struct ferry_gpu_report *gpus;
	struct ferry_tenant_report *tenants;
	size_t nrouters, njobs, ngpus, ntenants;
	struct ferry_question *open; /* to the silent ones */
	size_t nopen;
};

/**
 * Asks all at the same time. A router that has said nothing for so long is silent, and told of as that. `last`: NULL,
 * or the report before. What is open in it is taken over, so that such a router is asked, and waited for, once; it is
 * asked anew when it has answered.
 *
 * To be freed. Errors: those of ferry_sockets_find; ferrySystemError without memory.
 */
ferryResult_t ferry_report_take(struct ferry_report *report, struct ferry_report *last, double patience_s);
void ferry_report_free(struct ferry_report *report);

#endif
