/* SPDX-License-Identifier: Apache-2.0 */
#include "router/daemon/reaper.h"

#include "ipc/error.h"
#include "ipc/process.h"

#include <string.h>

static void *reaper_main(void *argument)
{
	struct ferry_reaper *reaper = argument;
	pthread_mutex_lock(&reaper->lock);
	while (reaper->first || !reaper->stopping) {
		struct ferry_ending *ending = reaper->first;
		if (!ending) {
			pthread_cond_wait(&reaper->changed, &reaper->lock);
			continue;
		}
		if (!(reaper->first = ending->next))
			reaper->last = &reaper->first;
		reaper->busy = true;
		pthread_mutex_unlock(&reaper->lock);
		ending->end(ending);
		pthread_mutex_lock(&reaper->lock);
		reaper->busy = false;
		pthread_cond_broadcast(&reaper->changed);
	}
	pthread_mutex_unlock(&reaper->lock);
	return NULL;
}

void ferry_reaper_init(struct ferry_reaper *reaper)
{
	*reaper = (struct ferry_reaper){.last = &reaper->first};
	pthread_mutex_init(&reaper->lock, NULL);
	pthread_cond_init(&reaper->changed, NULL);
}

ferryResult_t ferry_reaper_start(struct ferry_reaper *reaper)
{
	if (reaper->running)
		return ferrySuccess;
	int refused = pthread_create(&reaper->thread, NULL, reaper_main, reaper);
	if (refused)
		return ferry_fail(ferrySystemError, "a thread that ends ranks' lanes: %s%s", strerror(refused),
		                  ferry_ulimit_threads_hint(refused));
	reaper->running = true;
	return ferrySuccess;
}

void ferry_reaper_give(struct ferry_reaper *reaper, struct ferry_ending *ending)
{
	if (!reaper->running) {
		ending->end(ending);
		return;
	}
	pthread_mutex_lock(&reaper->lock);
	ending->next = NULL;
	*reaper->last = ending;
	reaper->last = &ending->next;
	pthread_cond_broadcast(&reaper->changed);
	pthread_mutex_unlock(&reaper->lock);
}

void ferry_reaper_wait(struct ferry_reaper *reaper)
{
	pthread_mutex_lock(&reaper->lock);
	while (reaper->first || reaper->busy)
		pthread_cond_wait(&reaper->changed, &reaper->lock);
	pthread_mutex_unlock(&reaper->lock);
}

void ferry_reaper_stop(struct ferry_reaper *reaper)
{
	if (reaper->running) {
		pthread_mutex_lock(&reaper->lock);
		reaper->stopping = true;
		pthread_cond_broadcast(&reaper->changed);
		pthread_mutex_unlock(&reaper->lock);
		pthread_join(reaper->thread, NULL);
	}
	pthread_cond_destroy(&reaper->changed);
	pthread_mutex_destroy(&reaper->lock);
}
