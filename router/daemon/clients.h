/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The connections of a router: accepts clients, reads their messages, and notices when they go. Everything is the
 * connection thread's (router/daemon/router.c), but ferry_clients_wake, which any thread and any signal handler may
 * call.
 */
#ifndef FERRY_ROUTER_DAEMON_CLIENTS_H
#define FERRY_ROUTER_DAEMON_CLIENTS_H

#include "router/daemon/requests.h"

#include <poll.h>

struct ferry_clients {
	struct ferry_jobs *jobs;
	int listener, event; /* event: wakes the connection thread */
	int spare;           /* a descriptor to close when there are no others; -1: gone */
	struct ferry_client **all;
	size_t count, capacity;
	struct pollfd *set; /* event, listener, clients */
	uint64_t patience_ns; /* with a client in the middle of a message */
	size_t polled;      /* how many clients are in `set`; without memory for more, the others wait */
};

/** Takes over a socket that listens, also where it fails. Errors: ferrySystemError. */
ferryResult_t ferry_clients_open(struct ferry_clients *clients, struct ferry_jobs *jobs, int listener);

/**
 * Waits for events for timeout_ms (negative: for ever), and serves them. How many there were; 0: none came in time;
 * negative: interrupted. *lost: no memory to wait with.
 */
int ferry_clients_turn(struct ferry_clients *clients, int timeout_ms, bool *lost);

/** Makes a turn end. */
void ferry_clients_wake(struct ferry_clients *clients);

/** Closes the connections and the socket. The jobs are gone, or are not used from here on. */
void ferry_clients_close(struct ferry_clients *clients);

#endif
