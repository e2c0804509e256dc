/* SPDX-License-Identifier: Apache-2.0 */
/**
 * As router/audit.h, for what a router's workers run: their gates, the counters that they have published, and the
 * router's word of the calls that are over. By whoever is inside the job (ferry_workers_enter).
 */
#ifndef FERRY_ROUTER_RUN_AUDIT_H
#define FERRY_ROUTER_RUN_AUDIT_H

#include "router/job.h"

#define FERRY_RUN_AUDIT_NS 900000000u /* so seldom: an attendant looks once a second */

void ferry_run_audit(struct ferry_job *job);

#endif
