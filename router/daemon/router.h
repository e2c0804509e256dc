/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A router: the socket that ranks attach to, one arena per job, and the workers that run REDUCE and H2H slices.
 * A library, so that tests host what the daemon (router/daemon/main.c) does.
 */
#ifndef FERRY_ROUTER_DAEMON_ROUTER_H
#define FERRY_ROUTER_DAEMON_ROUTER_H

#include "ipc/ferry_types.h"
#include "ipc/layout.h"

#include <stdbool.h>

struct ferry_router;

struct ferry_router_options {
	uint32_t domain;
	const struct ferry_layout *layout; /* copied */
	const char *directory;             /* of the sockets; NULL: ferry_endpoint_directory() */
	uint32_t workers;                  /* 0: FERRY_WORKERS, else one per two CPUs of the domain, at least 1 */
	uint64_t staging_limit;            /* bytes for all jobs together; 0: half of the memory for them */
	bool better; /* once it serves GPUs its threads ask for a better priority (router/daemon/priority.h) */
	bool pin; /* to the domain's CPUs */
	const char *config; /* file of tenants (router/daemon/tenants.h), stays as long as the router; NULL: none */
	/*
	 * The router's context on a GPU is gone, for all its jobs, and `why` names GPU and error: ends the process, so
	 * that another takes its place; never returns. Any thread. NULL: the jobs on that GPU end.
	 */
	void (*lost)(const char *why);
	uint32_t idle_exit_ms; /* ferry_router_wait returns after this long without a job; 0: never */
};

/** Binds the socket and starts the threads. ferryInvalidUsage if another router answers on that socket. */
ferryResult_t ferry_router_start(const struct ferry_router_options *options, struct ferry_router **router);

/**
 * For a router that is to take the place of the one that has the socket now: holds an idle connection to it, and
 * returns when that has closed, or where no router listens. Several may stand by; the first to start is the router.
 * Errors: those of ferry_endpoint_connect.
 */
ferryResult_t ferry_router_stand_by(const struct ferry_router_options *options);

/** From now on new attaches are refused; existing jobs go on. Async-signal-safe (SIGTERM handlers call it). */
void ferry_router_drain(struct ferry_router *router);

/**
 * Reads the file of tenants again. It holds for clients that connect from then on, and for the weights of existing
 * jobs; no client is disconnected. Errors, after which the router keeps what it had: those of ferry_tenants_read;
 * ferryInvalidUsage where there is no file. Any thread, one at a time.
 */
ferryResult_t ferry_router_reload(struct ferry_router *router);

/** Returns when draining and the last job has detached, or idle too long. */
void ferry_router_wait(struct ferry_router *router);

/** Fails the jobs that are left (their ranks get ferryRemoteError), joins the threads, removes the socket, frees. */
void ferry_router_stop(struct ferry_router *router);

#endif
