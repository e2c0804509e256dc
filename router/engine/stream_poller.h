/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The stream poller: a router's thread that checks, for lanes that have slept for long, whether a stream has reached
 * one of their calls. A GPU rings no bell, and captured calls may be replayed after any time, so a thread has to poll;
 * one thread for all GPUs wakes up less often than a lane of each.
 */
#ifndef FERRY_ROUTER_ENGINE_STREAM_POLLER_H
#define FERRY_ROUTER_ENGINE_STREAM_POLLER_H

#include "ipc/ferry_types.h"

#include <pthread.h>
#include <stdbool.h>

#define FERRY_STREAM_POLLER_US 2000 /* from one poll to the next */

/* A part of the struct of each thread that sleeps; that thread fills in `look`. */
struct ferry_sleeper {
	/*
	 * Called by the stream poller, under its lock: wakes the sleeper if it has something to do. It may read what
	 * the sleeper alone changes: the sleeper changes nothing before it has left.
	 */
	void (*look)(struct ferry_sleeper *sleeper);
	struct ferry_sleeper *next; /* the stream poller's */
};

struct ferry_stream_poller {
	pthread_mutex_t lock;   /* of what follows, but `thread` */
	pthread_cond_t changed; /* a thread sleeps, or the poller is to stop */
	struct ferry_sleeper *sleepers;
	bool stopping;
	pthread_t thread;
};

/** Starts the thread. Error: ferrySystemError. */
ferryResult_t ferry_stream_poller_open(struct ferry_stream_poller *stream_poller);

/** Stops the thread. No thread is asleep here any more. */
void ferry_stream_poller_close(struct ferry_stream_poller *stream_poller);

/** Around the caller's sleep. An event from before the sleep is found, too: at the next poll. */
void ferry_stream_poller_enter(struct ferry_stream_poller *stream_poller, struct ferry_sleeper *sleeper);
void ferry_stream_poller_leave(struct ferry_stream_poller *stream_poller, struct ferry_sleeper *sleeper);

#endif
