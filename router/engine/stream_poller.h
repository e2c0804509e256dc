/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The stream poller: a router's thread that looks, for lanes that have slept for long, whether a stream has come to a
 * call of theirs. A GPU rings no bell, and captured calls may be replayed after any time: somebody has to look, and one
 * thread for all GPUs wakes up less often than a lane of each.
 */
#ifndef FERRY_ROUTER_ENGINE_STREAM_POLLER_H
#define FERRY_ROUTER_ENGINE_STREAM_POLLER_H

#include "ipc/ferry_types.h"

#include <pthread.h>
#include <stdbool.h>

#define FERRY_STREAM_POLLER_US 2000 /* from one look to the next */

/* A part of who sleeps, who has filled in `look`. */
struct ferry_sleeper {
	/*
	 * By the stream poller, under its lock: wakes the sleeper if it has something to do. What the sleeper alone
	 * changes may be read: it does nothing before it has left.
	 */
	void (*look)(struct ferry_sleeper *sleeper);
	struct ferry_sleeper *next; /* the stream poller's */
};

struct ferry_stream_poller {
	pthread_mutex_t lock;   /* of what follows, but `thread` */
	pthread_cond_t changed; /* somebody sleeps, or it is to stop */
	struct ferry_sleeper *sleepers;
	bool stopping;
	pthread_t thread;
};

/** Starts the thread. Error: ferrySystemError. */
ferryResult_t ferry_stream_poller_open(struct ferry_stream_poller *stream_poller);

/** Nobody is asleep here any more. */
void ferry_stream_poller_close(struct ferry_stream_poller *stream_poller);

/** Around the caller's sleep. What there was to find before it is found, too: at the next look. */
void ferry_stream_poller_enter(struct ferry_stream_poller *stream_poller, struct ferry_sleeper *sleeper);
void ferry_stream_poller_leave(struct ferry_stream_poller *stream_poller, struct ferry_sleeper *sleeper);

#endif
