/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/windows.h"

#include "ipc/error.h"

#include <stdlib.h>

#define ROUND (2u << 20) /* what drivers allocate at least */

ferryResult_t ferry_windows_take(struct ferry_windows *windows, struct ferry_device *device, uint64_t stream,
                                 enum ferry_direction direction, uint64_t bytes, void **memory)
{
	struct ferry_window *found = NULL;
	for (struct ferry_window *window = windows->all; window && stream; window = window->next)
		if (window->stream == stream && window->direction == direction && !window->replaced)
			found = window;
	if (found && found->bytes >= bytes) {
		*memory = found->memory;
		return ferrySuccess;
	}
	struct ferry_window *made = calloc(1, sizeof *made);
	if (!made)
		return ferry_fail(ferrySystemError, "no memory for a window");
	made->stream = stream;
	made->direction = direction;
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

void ferry_windows_free(struct ferry_windows *windows, struct ferry_device *device)
{
	while (windows->all) {
		struct ferry_window *window = windows->all;
		windows->all = window->next;
		device->ops->pieces->release(device, window->memory);
		free(window);
	}
}
