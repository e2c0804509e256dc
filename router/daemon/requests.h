/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Requests of clients of a router, and the answers. A client is owned by the connection thread. router/daemon/clients.c
 * fills in the message and its payload, and has checked the message by itself (ferry_attach_decode); this file checks
 * it against the client and its job.
 */
#ifndef FERRY_ROUTER_DAEMON_REQUESTS_H
#define FERRY_ROUTER_DAEMON_REQUESTS_H

#include "router/daemon/jobs.h"

struct ferry_user_page;

struct ferry_client {
	int descriptor;
	struct ferry_standing standing;
	struct ferry_job *job; /* joined as rank, or NULL */
	uint32_t rank;
	bool detached;
	struct ferry_user_page *counters; /* that it has asked for, and reads; or NULL */
	uint32_t refused; /* requests, while it was no rank */
	size_t received; /* of the message and then of the payload */
	uint64_t begun_ns; /* when the first of that came (ferry_now_ns) */
	struct ferry_attach_message message;
	char *payload;
	int *descriptors; /* that came with the message; code that takes one stores -1 */
	uint32_t ndescriptors;
};

/**
 * Whether this client may send the descriptors and payload of its message. Errors: ferryInvalidUsage, with what is
 * missing.
 */
ferryResult_t ferry_request_admit(const struct ferry_client *client, const struct ferry_attach_message *message);

/** Serves the client's request and answers it, or leaves the answer to the thread that it hands the request to. */
void ferry_request_serve(struct ferry_jobs *jobs, struct ferry_client *client);

#endif
