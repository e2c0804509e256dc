/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/call/bounce_buffers.h"

#include "ipc/error.h"

#include <pthread.h>
#include <stdlib.h>

#define ROUND (2u << 20) /* what drivers allocate at least */
#define LARGER 2u        /* an adopted buffer is at most so many times as large as needed */

static struct ferry_bounce_buffer *abandoned; /* of communicators that have failed; under its lock */
static pthread_mutex_t abandoned_lock = PTHREAD_MUTEX_INITIALIZER;

void ferry_bounce_buffers_abandon(struct ferry_bounce_buffers *bounces, const struct ferry_device *device)
{
	pthread_mutex_lock(&abandoned_lock);
	while (bounces->all) {
		struct ferry_bounce_buffer *bounce = bounces->all;
		bounces->all = bounce->next;
		bounce->device = bounce->direction == FERRY_DIR_H2D ? device : NULL;
		bounce->next = abandoned;
		abandoned = bounce;
	}
	pthread_mutex_unlock(&abandoned_lock);
}

/* Takes an abandoned buffer of the device that is large enough; NULL: there is none. */
static struct ferry_bounce_buffer *adopt(const struct ferry_device *device, uint64_t bytes)
{
	struct ferry_bounce_buffer *found, **link = &abandoned;
	pthread_mutex_lock(&abandoned_lock);
	while (*link && ((*link)->device != device || (*link)->bytes < bytes || (*link)->bytes > LARGER * bytes))
		link = &(*link)->next;
	if ((found = *link))
		*link = found->next;
	pthread_mutex_unlock(&abandoned_lock);
	return found;
}

/* Adopts an abandoned buffer, or allocates one. */
static ferryResult_t make(struct ferry_device *device, uint64_t bytes, struct ferry_bounce_buffer **made)
{
	const uint64_t whole = (bytes + ROUND - 1) / ROUND * ROUND;
	struct ferry_bounce_buffer *bounce = adopt(device, whole);
	if (bounce) {
		*bounce = (struct ferry_bounce_buffer){.memory = bounce->memory, .bytes = bounce->bytes};
		*made = bounce;
		return ferrySuccess;
	}
	if (!(bounce = calloc(1, sizeof *bounce)))
		return ferry_fail(ferrySystemError, "no memory for a bounce buffer");
	bounce->bytes = whole;
	ferryResult_t result = device->ops->pieces->allocate(device, bounce->bytes, &bounce->memory);
	if (result) {
		free(bounce);
		return ferry_fail_context(result, "%llu bytes of memory of Ferry's on the GPU",
		                          (unsigned long long)bytes);
	}
	*made = bounce;
	return ferrySuccess;
}

/* Finds the buffer of the stream's calls, of any size; for a captured call (stream 0) a free one of enough bytes. */
static struct ferry_bounce_buffer *find(const struct ferry_bounce_buffers *bounces, uint64_t stream,
                                        enum ferry_direction direction, uint64_t bytes)
{
	for (struct ferry_bounce_buffer *bounce = bounces->all; bounce; bounce = bounce->next) {
		if (bounce->stream != stream || bounce->direction != direction)
			continue;
		if (stream ? !bounce->replaced : !bounce->taken && bounce->bytes >= bytes)
			return bounce;
	}
	return NULL;
}

void *ferry_bounce_buffers_have(const struct ferry_bounce_buffers *bounces, uint64_t stream,
                                enum ferry_direction direction, uint64_t bytes)
{
	const struct ferry_bounce_buffer *found = find(bounces, stream, direction, bytes);
	return found && found->bytes >= bytes ? found->memory : NULL;
}

ferryResult_t ferry_bounce_buffers_take(struct ferry_bounce_buffers *bounces, struct ferry_device *device,
                                        uint64_t stream, enum ferry_direction direction, uint64_t bytes, void **memory)
{
	struct ferry_bounce_buffer *found = find(bounces, stream, direction, bytes);
	if (found && found->bytes >= bytes) {
		found->taken = true;
		*memory = found->memory;
		return ferrySuccess;
	}
	struct ferry_bounce_buffer *made = NULL;
	ferryResult_t result = make(device, bytes, &made);
	if (result)
		return result;
	made->stream = stream;
	made->direction = direction;
	made->taken = true;
	if (found)
		found->replaced = true;
	if (bounces->bytes)
		atomic_fetch_add_explicit(bounces->bytes, made->bytes, memory_order_relaxed);
	made->next = bounces->all;
	bounces->all = made;
	*memory = made->memory;
	return ferrySuccess;
}

void ferry_bounce_buffers_hold(struct ferry_bounce_buffers *bounces, uint32_t flag)
{
	for (struct ferry_bounce_buffer *bounce = bounces->all; bounce; bounce = bounce->next)
		if (!bounce->stream && bounce->taken && !bounce->held) {
			bounce->held = true;
			bounce->flag = flag;
		}
}

void ferry_bounce_buffers_release(struct ferry_bounce_buffers *bounces, uint32_t flag)
{
	for (struct ferry_bounce_buffer *bounce = bounces->all; bounce; bounce = bounce->next)
		if (bounce->held && bounce->flag == flag)
			bounce->held = bounce->taken = false;
}

void ferry_bounce_buffers_free(struct ferry_bounce_buffers *bounces, struct ferry_device *device)
{
	while (bounces->all) {
		struct ferry_bounce_buffer *bounce = bounces->all;
		bounces->all = bounce->next;
		device->ops->pieces->release(device, bounce->memory);
		free(bounce);
	}
}
