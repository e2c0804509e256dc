/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/call/bounce_buffers.h"

#include "ipc/error.h"

#include <stdlib.h>

#define ROUND (2u << 20) /* what drivers allocate at least */

/* The bounce buffer that a call of the stream may use, however large it is; for a captured call one that is free. */
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

ferryResult_t ferry_bounce_buffers_take(struct ferry_bounce_buffers *bounces, struct ferry_device *device,
                                        uint64_t stream, enum ferry_direction direction, uint64_t bytes, void **memory)
{
	struct ferry_bounce_buffer *found = find(bounces, stream, direction, bytes);
	if (found && found->bytes >= bytes) {
		found->taken = true;
		*memory = found->memory;
		return ferrySuccess;
	}
	struct ferry_bounce_buffer *made = calloc(1, sizeof *made);
	if (!made)
		return ferry_fail(ferrySystemError, "no memory for a bounce buffer");
	made->stream = stream;
	made->direction = direction;
	made->taken = true;
	made->bytes = (bytes + ROUND - 1) / ROUND * ROUND;
	ferryResult_t result = device->ops->pieces->allocate(device, made->bytes, &made->memory);
	if (result) {
		free(made);
		return ferry_fail_context(result, "%llu bytes for a buffer that the router cannot reach",
		                          (unsigned long long)bytes);
	}
	if (found)
		found->replaced = true;
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
