/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/call/bounce_buffers.h"

#include "ipc/error.h"

#include <stdlib.h>

#define ROUND (2u << 20) /* what drivers allocate at least */

/* The bounce buffer that a call of the stream may use, however large it is; for a captured call one that is free. */
static struct ferry_bounce_buffer *find(const struct ferry_bounce_buffers *windows, uint64_t stream,
                                        enum ferry_direction direction, uint64_t bytes)
{
	for (struct ferry_bounce_buffer *window = windows->all; window; window = window->next) {
		if (window->stream != stream || window->direction != direction)
			continue;
		if (stream ? !window->replaced : !window->taken && window->bytes >= bytes)
			return window;
	}
	return NULL;
}

ferryResult_t ferry_bounce_buffers_take(struct ferry_bounce_buffers *windows, struct ferry_device *device,
                                        uint64_t stream, enum ferry_direction direction, uint64_t bytes, void **memory)
{
	struct ferry_bounce_buffer *found = find(windows, stream, direction, bytes);
	if (found && found->bytes >= bytes) {
		found->taken = true;
		*memory = found->memory;
		return ferrySuccess;
	}
	struct ferry_bounce_buffer *made = calloc(1, sizeof *made);
	if (!made)
		return ferry_fail(ferrySystemError, "no memory for a window");
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
	made->next = windows->all;
	windows->all = made;
	*memory = made->memory;
	return ferrySuccess;
}

void ferry_bounce_buffers_hold(struct ferry_bounce_buffers *windows, uint32_t flag)
{
	for (struct ferry_bounce_buffer *window = windows->all; window; window = window->next)
		if (!window->stream && window->taken && !window->held) {
			window->held = true;
			window->flag = flag;
		}
}

void ferry_bounce_buffers_release(struct ferry_bounce_buffers *windows, uint32_t flag)
{
	for (struct ferry_bounce_buffer *window = windows->all; window; window = window->next)
		if (window->held && window->flag == flag)
			window->held = window->taken = false;
}

void ferry_bounce_buffers_free(struct ferry_bounce_buffers *windows, struct ferry_device *device)
{
	while (windows->all) {
		struct ferry_bounce_buffer *window = windows->all;
		windows->all = window->next;
		device->ops->pieces->release(device, window->memory);
		free(window);
	}
}
