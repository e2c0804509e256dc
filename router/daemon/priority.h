/* SPDX-License-Identifier: Apache-2.0 */
/**
 * How the threads of a router that move data are scheduled: its lanes, workers and job threads. A router process that
 * serves GPUs asks for better than its ranks have, where it may: on a busy machine a thread that slices wait for comes
 * late by whole time slices of the scheduler. Not where ranks have lanes of their own, as on host devices: a worker
 * that takes the CPU from the lane that feeds it gains nothing (AllReduce of 16 MiB between two ranks on two CPUs: 25%
 * slower). Each thread asks for itself; a refusal is no error. A process that is not Ferry's but hosts a router or
 * lanes has no such struct (NULL), and its threads stay as they are.
 */
#ifndef FERRY_ROUTER_DAEMON_PRIORITY_H
#define FERRY_ROUTER_DAEMON_PRIORITY_H

#include "ipc/ferry_types.h"

#include <stdatomic.h>
#include <stdbool.h>

#define FERRY_PRIORITY_OF_ROUTERS (-10) /* nice value */

struct ferry_priority {
	int nice;                /* to ask for; constant once threads run */
	_Atomic uint32_t needed; /* whether to ask; 0 to 1, by the threads that open lanes for GPUs */
	_Atomic int got;         /* of the last thread that asked, which stores it. For ferry-stat */
};

/** Threads will ask for that nice value, once there are lanes for GPUs. */
void ferry_priority_open(struct ferry_priority *priority, int nice);

/** There are lanes for GPUs here: threads ask from now on. NULL: does nothing. */
void ferry_priority_need(struct ferry_priority *priority);

/** The calling thread asks if it is needed, once: *asked is false at first. NULL: it does not. */
void ferry_priority_take(struct ferry_priority *priority, bool *asked);

/** Returns the nice value that was got. NULL: that of the calling thread. */
int ferry_priority_got(struct ferry_priority *priority);

#endif
