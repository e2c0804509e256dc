/* SPDX-License-Identifier: Apache-2.0 */
/**
 * How those threads of a router are scheduled that move data: its lanes, workers and attendants. A router process asks
 * for better than its ranks have, where it may: on a busy machine a thread that slices wait for comes late by whole
 * time slices of the scheduler. Each thread asks for itself, first of all; a refusal is no error. Who hosts a router or
 * lanes in a process that is not Ferry's has no such struct (NULL), and its threads stay as they are.
 */
#ifndef FERRY_ROUTER_PRIORITY_H
#define FERRY_ROUTER_PRIORITY_H

#include "ipc/ferry_types.h"

#include <stdatomic.h>
#include <stdbool.h>

#define FERRY_PRIORITY_DEFAULT "-10"
#define FERRY_PRIORITY_REALTIME 100 /* `got`, beside nice values */

struct ferry_priority {
	int nice;        /* to ask for; constant once threads run, as is the next */
	bool realtime;   /* to ask for before that: SCHED_RR, of the lowest real-time priority */
	/* nice value, or FERRY_PRIORITY_REALTIME, of the thread that was last to ask; whoever asks. For ferry-stat */
	_Atomic int got;
};

/** From a number -20 to 19, or "rt". ferryInvalidArgument, naming `of` and the value, for anything else. */
ferryResult_t ferry_priority_read(struct ferry_priority *priority, const char *of, const char *text);

/** The calling thread asks. NULL: it does not. */
void ferry_priority_take(struct ferry_priority *priority);

/** What was got, as ferry_priority_read takes it: at least 8 bytes. NULL: what the calling thread has. */
void ferry_priority_print(struct ferry_priority *priority, char *text, size_t bytes);

#endif
