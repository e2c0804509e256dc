/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Windows: device memory of Ferry's own for buffers that no router can reach (stream-ordered pools, say). A call on
 * such a buffer names a window in its place, and the user's stream copies: what is sent before it comes to the call,
 * what was received behind it. Calls of one stream share a window in each direction, as the stream puts them in order.
 * Under the communicator's lock.
 */
#ifndef FERRY_RANK_LIB_WINDOWS_H
#define FERRY_RANK_LIB_WINDOWS_H

#include "rank-lib/device/device.h"

struct ferry_window {
	uint64_t stream;
	enum ferry_direction direction;
	void *memory;
	uint64_t bytes;
	bool replaced; /* by a larger one: the stream may still have calls with it */
	struct ferry_window *next;
};

struct ferry_windows {
	struct ferry_window *all;
};

/**
 * At least so many bytes for calls on that stream, kept until ferry_windows_free. A stream of 0: for this call alone.
 * Errors: ferrySystemError, the driver's.
 */
ferryResult_t ferry_windows_take(struct ferry_windows *windows, struct ferry_device *device, uint64_t stream,
                                 enum ferry_direction direction, uint64_t bytes, void **memory);

/** No stream will use them any more. */
void ferry_windows_free(struct ferry_windows *windows, struct ferry_device *device);

#endif
