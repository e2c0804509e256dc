/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The reaper: a router's thread that ends ranks and jobs. That takes time: copies under way have to end first, and the
 * driver has to unregister memory. The connection thread must not wait for that, as ranks of other jobs would wait for
 * it. The reaper ends one after the other, in the order in which they were handed over: a rank before its job.
 */
#ifndef FERRY_ROUTER_DAEMON_REAPER_H
#define FERRY_ROUTER_DAEMON_REAPER_H

#include "ipc/ferry_types.h"

#include <pthread.h>
#include <stdbool.h>

/*
 * A part of each struct that is to be ended. The caller that hands it over fills in `end` and `context`, and does not
 * touch it afterwards.
 */
struct ferry_ending {
	void (*end)(struct ferry_ending *ending); /* by the reaper, once; it may free the whole */
	void *context;
	struct ferry_ending *next;                /* the reaper's */
};

struct ferry_reaper {
	pthread_mutex_t lock;                /* of what follows, but `running` */
	pthread_cond_t changed;
	struct ferry_ending *first, **last;
	bool busy, stopping;                 /* busy: it is at one that is not in the list any more */
	pthread_t thread;
	bool running;                        /* connection thread */
};

void ferry_reaper_init(struct ferry_reaper *reaper);

/** Starts the thread if there is none. Connection thread. Error: ferrySystemError. */
ferryResult_t ferry_reaper_start(struct ferry_reaper *reaper);

/**
 * Hands a struct over; it is ended at once where no thread was started. Connection thread, or the thread that has
 * joined it.
 */
void ferry_reaper_give(struct ferry_reaper *reaper, struct ferry_ending *ending);

/** Returns when all that was handed over has ended. */
void ferry_reaper_wait(struct ferry_reaper *reaper);

/** Waits for all that was handed over, and joins the thread. Nothing may be handed over any more. */
void ferry_reaper_stop(struct ferry_reaper *reaper);

#endif
