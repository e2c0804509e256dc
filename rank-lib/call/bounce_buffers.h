/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Windows: device memory of Ferry's own for buffers that no router can reach (stream-ordered pools, say). A call on
 * such a buffer names a window in its place, and the user's stream copies: what is sent before it comes to the call,
 * what was received behind it. Calls of one stream share a window in each direction, as the stream puts them in order.
 * A captured call has its own, as graphs are replayed in any stream, until no graph has the call; then another has it.
 * Under the communicator's lock.
 */
#ifndef FERRY_RANK_LIB_CALL_BOUNCE_BUFFERS_H
#define FERRY_RANK_LIB_CALL_BOUNCE_BUFFERS_H

#include "rank-lib/device/device.h"

struct ferry_bounce_buffer {
	uint64_t stream; /* 0: of captured calls */
	enum ferry_direction direction;
	void *memory;
	uint64_t bytes;
	bool replaced;    /* by a larger one: the stream may still have calls with it */
	bool taken, held; /* of captured calls: by one, whose word is known */
	uint32_t flag;
	struct ferry_bounce_buffer *next;
};

struct ferry_bounce_buffers {
	struct ferry_bounce_buffer *all;
};

/**
 * At least so many bytes for calls on that stream, kept until ferry_bounce_buffers_free. A stream of 0: for a captured
 * call alone. Errors: ferrySystemError, the driver's.
 */
ferryResult_t ferry_bounce_buffers_take(struct ferry_bounce_buffers *windows, struct ferry_device *device,
                                        uint64_t stream, enum ferry_direction direction, uint64_t bytes, void **memory);

/** What has been taken for a captured call is that of this word; also what one that failed had taken before it. */
void ferry_bounce_buffers_hold(struct ferry_bounce_buffers *windows, uint32_t flag);

/** No graph has the captured call of that word any more. */
void ferry_bounce_buffers_release(struct ferry_bounce_buffers *windows, uint32_t flag);

/** No stream will use them any more. */
void ferry_bounce_buffers_free(struct ferry_bounce_buffers *windows, struct ferry_device *device);

#endif
