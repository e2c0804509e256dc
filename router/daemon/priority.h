/* SPDX-License-Identifier: Apache-2.0 */
/**
 * How the threads of a router that move data are scheduled: its lanes, workers and job threads. A router process asks
 * for better than its ranks have, where it may: on a busy machine a thread that slices wait for comes late by whole
 * time slices of the scheduler. Not by default where ranks have lanes of their own, as on host devices: a worker that
 * takes the CPU from the lane that feeds it gains nothing (AllReduce of 16 MiB between two ranks on two CPUs: 25%
 * slower). Each thread asks for itself; a refusal is no error. A process that is not Ferry's but hosts a router or
 * lanes has no such struct (NULL), and its threads stay as they are.
 */
#ifndef FERRY_ROUTER_DAEMON_PRIORITY_H
#define FERRY_ROUTER_DAEMON_PRIORITY_H

#include "ipc/ferry_types.h"

#include <stdatomic.h>
#include <stdbool.h>

#define FERRY_PRIORITY_DEFAULT "gpu"
#define FERRY_PRIORITY_REALTIME 100 /* `got`, beside nice values */

struct ferry_priority {
	int nice;        /* to ask for; constant once threads run, as is the next */
	bool realtime;   /* to ask for before that: SCHED_RR, of the lowest real-time priority */
	/* whether to ask; 0 to 1, by the threads that read the setting or open lanes for GPUs */
	_Atomic uint32_t needed;
	/* nice value, or FERRY_PRIORITY_REALTIME, of the last thread that asked, which stores it. For ferry-stat */
	_Atomic int got;
};

/**
 * Reads a number from -20 to 19, or "rt", or "gpu" (-10 once GPUs need it). ferryInvalidArgument, naming `of` and the
 * value, for anything else.
 */
ferryResult_t ferry_priority_read(struct ferry_priority *priority, const char *of, const char *text);

/** There are lanes for GPUs here: threads ask from now on. NULL: does nothing. */
void ferry_priority_need(struct ferry_priority *priority);

/** The calling thread asks if it is needed, once: *asked is false at first. NULL: it does not. */
void ferry_priority_take(struct ferry_priority *priority, bool *asked);

/** Prints the priority that was got, a nice value or rt: at least 8 bytes. NULL: that of the calling thread. */
void ferry_priority_print(struct ferry_priority *priority, char *text, size_t bytes);

#endif
