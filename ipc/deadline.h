/* SPDX-License-Identifier: Apache-2.0 */
/**
 * How long a process waits. A deadline belongs to a client that waits for a router, which may be stopped, or may itself
 * be waiting: for connecting (ipc/endpoint.c) and for a reply (ipc/attach.c). FERRY_TIMEOUT and FERRY_ON_TIMEOUT say
 * how long a call may wait without any progress. The rank reads them once per communicator, and writes them into its
 * line of the arena (ipc/arena.h) for the process that moves its data.
 */
#ifndef FERRY_IPC_DEADLINE_H
#define FERRY_IPC_DEADLINE_H

#include "ipc/ferry_types.h"

#include <stdatomic.h>
#include <stdbool.h>

#define FERRY_DEADLINE_PROBE_S 5  /* seconds, for a status, and to see whether a router takes connections at all */
#define FERRY_DEADLINE_POLL_MS 50 /* how often given_up and gives_up are checked */
/* seconds that copies of a process which has lost its job may go on, and that the other ranks' calls may stand still */
#define FERRY_PATIENCE_S 10

struct ferry_deadline {
	unsigned seconds;
	uint64_t until;                   /* ferry_now_ns */
	const _Atomic uint32_t *given_up; /* NULL, or: not 0 ends it */
	bool (*gives_up)(void *argument); /* NULL, or: called that often; true ends the wait */
	void *argument;
	bool over;
};

struct ferry_deadline ferry_deadline_for(unsigned seconds, const _Atomic uint32_t *given_up);

/** Whether the wait has been given up, however much time there is left. */
bool ferry_deadline_is_given_up(const struct ferry_deadline *deadline);

/** Whether the deadline is over, or given up; remembers it in `over`. */
bool ferry_deadline_is_over(struct ferry_deadline *deadline);

/** Waits for one of poll's events. Returns true when there is one, false when the deadline is over. */
bool ferry_deadline_waits(int connection, short events, struct ferry_deadline *deadline);

/** Reads FERRY_ATTACH_TIMEOUT, or its default. ferryInvalidArgument if it is no number of seconds. */
ferryResult_t ferry_deadline_seconds(long *seconds);

/* Seconds that a call waits; 0: never. */
struct ferry_timeout {
	uint32_t reports; /* until the log says which rank or router the call waits for, */
	uint32_t fails;   /* until the job ends */
};

/** Reads FERRY_TIMEOUT and FERRY_ON_TIMEOUT. ferryInvalidArgument, with the value, for an invalid one. */
ferryResult_t ferry_timeout_read(struct ferry_timeout *timeout);

/** Whether a wait of so many nanoseconds has reached `seconds`; false where these are 0. */
static inline bool ferry_timeout_over(uint32_t seconds, uint64_t waited_ns)
{
	return seconds && waited_ns >= seconds * 1000000000ull;
}

#endif
