/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The counters of this user's routers at one moment: totals, from which launch/rows.h makes rates. Called by
 * ferry-stat.
 */
#ifndef FERRY_LAUNCH_REPORT_H
#define FERRY_LAUNCH_REPORT_H

#include "launch/reader.h"

struct ferry_router_report {
	struct ferry_socket socket;
	uint32_t domain;                 /* by its counters, else by its socket's name */
	uint32_t silent;                 /* 1: it does not answer */
	pid_t pid;                       /* 0: no router has accepted the connection */
	char trouble[200];               /* why there are no counters; "": there are */
	struct ferry_counters *counters; /* NULL: there are none */
};

struct ferry_report {
	uint64_t taken_ns; /* ferry_now_ns */
	struct ferry_sockets sockets;
	struct ferry_router_report *routers; /* in the order of the sockets */
	size_t nrouters;
	struct ferry_reader *readers; /* of all sockets, for the next report */
	size_t nreaders;
};

/**
 * Reads all routers at the same time. A router that has done nothing for patience_s seconds is reported as silent.
 * last: NULL, or the report before, whose readers move to this one: so a router is asked only once for its page, which
 * is read for every report, and this waits only once for a silent one.
 *
 * The caller frees the report. Errors: those of ferry_sockets_find; ferrySystemError without memory.
 */
ferryResult_t ferry_report_take(struct ferry_report *report, struct ferry_report *last, double patience_s);
void ferry_report_free(struct ferry_report *report);

#endif
