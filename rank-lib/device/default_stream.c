/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/device/default_stream.h"

#include "ipc/error.h"
#include "rank-lib/device/host_stream.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A stream that no thread has. */
struct kept {
	ferryStream_t stream;
	struct kept *next;
};

static _Thread_local struct {
	int devices; /* none of these from here on: a look at all takes longer than a short call */
	ferryStream_t streams[FERRY_HOST_DEVICES];
} mine;
static struct kept *free_ones[FERRY_HOST_DEVICES]; /* under free_lock */
static pthread_mutex_t free_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_key_t at_end; /* set in threads that have a default stream */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool has_key;

/* If there is no memory for the entry, no thread uses the stream again; its remaining work still runs. */
static void keep(int ordinal, ferryStream_t stream)
{
	struct kept *kept = malloc(sizeof *kept);
	if (!kept)
		return;
	kept->stream = stream;
	pthread_mutex_lock(&free_lock);
	kept->next = free_ones[ordinal];
	free_ones[ordinal] = kept;
	pthread_mutex_unlock(&free_lock);
}

/* Runs in a thread that ends. */
static void give_back(void *unused)
{
	(void)unused;
	for (int i = 0; i < mine.devices; i++) {
		if (!mine.streams[i])
			continue;
		ferry_host_leave_stream(mine.streams[i]);
		keep(i, mine.streams[i]);
		mine.streams[i] = NULL;
	}
}

static void make_key(void)
{
	has_key = !pthread_key_create(&at_end, give_back);
}

/* Returns NULL if no stream is idle. */
static ferryStream_t take(int ordinal)
{
	ferryStream_t stream = NULL;
	pthread_mutex_lock(&free_lock);
	for (struct kept **link = &free_ones[ordinal]; *link; link = &(*link)->next) {
		struct kept *kept = *link;
		if (!ferry_host_take_stream(kept->stream))
			continue;
		stream = kept->stream;
		*link = kept->next;
		free(kept);
		break;
	}
	pthread_mutex_unlock(&free_lock);
	return stream;
}

/* The thread's first call for the device. */
static ferryResult_t begin(int ordinal)
{
	ferryResult_t result = ferrySuccess;
	if (!(mine.streams[ordinal] = take(ordinal)))
		result = ferryStreamCreate(&mine.streams[ordinal], ordinal);
	if (result)
		return result;
	mine.devices = mine.devices > ordinal ? mine.devices : ordinal + 1;
	pthread_once(&once, make_key);
	if (has_key)
		pthread_setspecific(at_end, &mine);
	return ferrySuccess;
}

ferryResult_t ferry_default_stream(int ordinal, ferryStream_t *stream)
{
	ferryResult_t result = mine.streams[ordinal] ? ferrySuccess : begin(ordinal);
	*stream = mine.streams[ordinal];
	return result;
}

ferryResult_t ferryStreamSynchronize(ferryStream_t stream)
{
	static const char name[] = "ferryStreamSynchronize";
	char text[512];
	ferryResult_t result = ferrySuccess;
	if (stream)
		return (result = ferry_host_check_stream(stream)) ? result : ferry_host_synchronize(stream, name);
	for (int i = 0; i < mine.devices; i++) {
		ferryResult_t one = mine.streams[i] ? ferry_host_synchronize(mine.streams[i], name) : ferrySuccess;
		if (one && !result) /* a later one's message replaces it */
			snprintf(text, sizeof text, "%s", ferry_last_message());
		result = result ? result : one;
	}
	return result ? ferry_fail(result, "%s", text) : ferrySuccess;
}

void ferry_default_streams_before_fork(void)
{
	pthread_mutex_lock(&free_lock);
}

void ferry_default_streams_after_fork(bool in_child)
{
	if (in_child) {
		ferry_host_streams_forked();
		memset(free_ones, 0, sizeof free_ones);
		memset(&mine, 0, sizeof mine); /* the only thread of the child is the one that forked */
	}
	pthread_mutex_unlock(&free_lock);
}
