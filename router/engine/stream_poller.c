/* SPDX-License-Identifier: Apache-2.0 */
#include "router/engine/stream_poller.h"

#include "ipc/error.h"
#include "ipc/process.h"

#include <string.h>
#include <time.h>

static void *stream_poller_main(void *argument)
{
	const struct timespec pause = {.tv_nsec = FERRY_STREAM_POLLER_US * 1000};
	struct ferry_stream_poller *stream_poller = argument;
	pthread_mutex_lock(&stream_poller->lock);
	while (!stream_poller->stopping) {
		if (!stream_poller->sleepers) {
			pthread_cond_wait(&stream_poller->changed, &stream_poller->lock);
			continue;
		}
		for (struct ferry_sleeper *sleeper = stream_poller->sleepers; sleeper; sleeper = sleeper->next)
			sleeper->look(sleeper);
		pthread_mutex_unlock(&stream_poller->lock);
		clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL);
		pthread_mutex_lock(&stream_poller->lock);
	}
	pthread_mutex_unlock(&stream_poller->lock);
	return NULL;
}

ferryResult_t ferry_stream_poller_open(struct ferry_stream_poller *stream_poller)
{
	*stream_poller = (struct ferry_stream_poller){.stopping = false};
	pthread_mutex_init(&stream_poller->lock, NULL);
	pthread_cond_init(&stream_poller->changed, NULL);
	int refused = pthread_create(&stream_poller->thread, NULL, stream_poller_main, stream_poller);
	if (!refused)
		return ferrySuccess;
	pthread_cond_destroy(&stream_poller->changed);
	pthread_mutex_destroy(&stream_poller->lock);
	return ferry_fail(ferrySystemError, "a thread that looks for replays of captured calls: %s%s",
	                  strerror(refused), ferry_ulimit_threads_hint(refused));
}

void ferry_stream_poller_close(struct ferry_stream_poller *stream_poller)
{
	pthread_mutex_lock(&stream_poller->lock);
	stream_poller->stopping = true;
	pthread_cond_signal(&stream_poller->changed);
	pthread_mutex_unlock(&stream_poller->lock);
	pthread_join(stream_poller->thread, NULL);
	pthread_cond_destroy(&stream_poller->changed);
	pthread_mutex_destroy(&stream_poller->lock);
}

void ferry_stream_poller_enter(struct ferry_stream_poller *stream_poller, struct ferry_sleeper *sleeper)
{
	pthread_mutex_lock(&stream_poller->lock);
	if (!stream_poller->sleepers)
		pthread_cond_signal(&stream_poller->changed);
	sleeper->next = stream_poller->sleepers;
	stream_poller->sleepers = sleeper;
	pthread_mutex_unlock(&stream_poller->lock);
}

void ferry_stream_poller_leave(struct ferry_stream_poller *stream_poller, struct ferry_sleeper *sleeper)
{
	pthread_mutex_lock(&stream_poller->lock);
	for (struct ferry_sleeper **link = &stream_poller->sleepers; *link; link = &(*link)->next)
		if (*link == sleeper) {
			*link = sleeper->next;
			break;
		}
	pthread_mutex_unlock(&stream_poller->lock);
}
