/* SPDX-License-Identifier: Apache-2.0 */
#include "router/lookout.h"

#include "ipc/error.h"
#include "ipc/process.h"

#include <string.h>
#include <time.h>

static void *lookout_main(void *argument)
{
	const struct timespec pause = {.tv_nsec = FERRY_LOOKOUT_US * 1000};
	struct ferry_lookout *lookout = argument;
	pthread_mutex_lock(&lookout->lock);
	while (!lookout->stopping) {
		if (!lookout->sleepers) {
			pthread_cond_wait(&lookout->changed, &lookout->lock);
			continue;
		}
		for (struct ferry_sleeper *sleeper = lookout->sleepers; sleeper; sleeper = sleeper->next)
			sleeper->look(sleeper);
		pthread_mutex_unlock(&lookout->lock);
		clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL);
		pthread_mutex_lock(&lookout->lock);
	}
	pthread_mutex_unlock(&lookout->lock);
	return NULL;
}

ferryResult_t ferry_lookout_open(struct ferry_lookout *lookout)
{
	*lookout = (struct ferry_lookout){.stopping = false};
	pthread_mutex_init(&lookout->lock, NULL);
	pthread_cond_init(&lookout->changed, NULL);
	int refused = pthread_create(&lookout->thread, NULL, lookout_main, lookout);
	if (!refused)
		return ferrySuccess;
	pthread_cond_destroy(&lookout->changed);
	pthread_mutex_destroy(&lookout->lock);
	return ferry_fail(ferrySystemError, "a thread that looks for replays of captured calls: %s%s",
	                  strerror(refused), ferry_ulimit_threads_hint(refused));
}

void ferry_lookout_close(struct ferry_lookout *lookout)
{
	pthread_mutex_lock(&lookout->lock);
	lookout->stopping = true;
	pthread_cond_signal(&lookout->changed);
	pthread_mutex_unlock(&lookout->lock);
	pthread_join(lookout->thread, NULL);
	pthread_cond_destroy(&lookout->changed);
	pthread_mutex_destroy(&lookout->lock);
}

void ferry_lookout_enter(struct ferry_lookout *lookout, struct ferry_sleeper *sleeper)
{
	pthread_mutex_lock(&lookout->lock);
	if (!lookout->sleepers)
		pthread_cond_signal(&lookout->changed);
	sleeper->next = lookout->sleepers;
	lookout->sleepers = sleeper;
	pthread_mutex_unlock(&lookout->lock);
}

void ferry_lookout_leave(struct ferry_lookout *lookout, struct ferry_sleeper *sleeper)
{
	pthread_mutex_lock(&lookout->lock);
	for (struct ferry_sleeper **link = &lookout->sleepers; *link; link = &(*link)->next)
		if (*link == sleeper) {
			*link = sleeper->next;
			break;
		}
	pthread_mutex_unlock(&lookout->lock);
}
