/* SPDX-License-Identifier: Apache-2.0 */
/**
 * How long a client waits for a router: it may be stopped, or wait itself. Called by ipc/endpoint.c, for connecting,
 * and by ipc/attach.c, for a reply.
 */
#ifndef FERRY_IPC_PATIENCE_H
#define FERRY_IPC_PATIENCE_H

#include "ipc/ferry_types.h"

#include <stdatomic.h>
#include <stdbool.h>

/* seconds that people wait for a status, and who only looks whether a router is there for its taking a connection */
#define FERRY_PATIENCE_LOOKS     5
#define FERRY_PATIENCE_GLANCE_MS 50 /* how often it is looked whether the answer is wanted still */

struct ferry_patience {
	unsigned seconds;
	uint64_t until;                   /* ferry_now_ns */
	const _Atomic uint32_t *given_up; /* NULL, or: not 0 ends it */
	bool (*gives_up)(void *who);      /* NULL, or: asked as often as that is looked at; true ends it */
	void *who;
	bool over;
};

struct ferry_patience ferry_patience_for(unsigned seconds, const _Atomic uint32_t *given_up);

/** Whether nobody waits any more, however much time there is left. */
bool ferry_patience_is_given_up(const struct ferry_patience *patience);

/** Remembers it in `over`. */
bool ferry_patience_is_over(struct ferry_patience *patience);

/** Until one of poll's events is there: true; false: patience is over. */
bool ferry_patience_waits(int connection, short events, struct ferry_patience *patience);

/** FERRY_ATTACH_TIMEOUT, or its default. ferryInvalidArgument if that is no number of seconds. */
ferryResult_t ferry_patience_seconds(long *seconds);

#endif
