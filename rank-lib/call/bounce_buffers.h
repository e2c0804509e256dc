/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Bounce buffers: device memory of Ferry's for user buffers that no router can map (stream-ordered pools, say). A call
 * on such a buffer names a bounce buffer instead, and the user's stream copies: what is sent, before the call; what was
 * received, behind it. Calls of one stream share a bounce buffer for each direction, as the stream orders them. A
 * captured call has its own, as graphs may be replayed in any stream; when no graph holds the call any more, another
 * call reuses it. Under the communicator's lock.
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
	bool taken, held; /* of captured calls: taken by one; held: its stream flag is known */
	uint32_t flag;
	const struct ferry_device *device; /* once abandoned */
	struct ferry_bounce_buffer *next;
};

struct ferry_bounce_buffers {
	struct ferry_bounce_buffer *all;
	_Atomic uint64_t *bytes; /* of all of them, in the rank's line; NULL: nobody counts */
};

/**
 * Returns a bounce buffer of at least so many bytes for calls on that stream; it stays until ferry_bounce_buffers_free.
 * stream 0: for one captured call. Errors: ferrySystemError, the driver's.
 */
ferryResult_t ferry_bounce_buffers_take(struct ferry_bounce_buffers *bounces, struct ferry_device *device,
                                        uint64_t stream, enum ferry_direction direction, uint64_t bytes, void **memory);

/**
 * Returns the bounce buffer that ferry_bounce_buffers_take would give to a call that is not captured, if it has been
 * made; else NULL.
 */
void *ferry_bounce_buffers_have(const struct ferry_bounce_buffers *bounces, uint64_t stream,
                                enum ferry_direction direction, uint64_t bytes);

/**
 * Assigns the bounce buffers taken for a captured call to its stream flag, with those that an earlier call had taken
 * before it failed.
 */
void ferry_bounce_buffers_hold(struct ferry_bounce_buffers *bounces, uint32_t flag);

/** No graph holds the captured call of that stream flag any more: its bounce buffers may be reused. */
void ferry_bounce_buffers_release(struct ferry_bounce_buffers *bounces, uint32_t flag);

/**
 * The communicator has failed: gives up its bounce buffers without freeing them, because freeing would wait for
 * streams, which may wait for dead ranks. Later communicators of this process on the device reuse the buffers of
 * received data, as the old streams only read them. The buffers of data to be sent stay unused, because a stream may
 * still copy into them. device NULL: all stay unused, because a router may still copy into them.
 */
void ferry_bounce_buffers_abandon(struct ferry_bounce_buffers *bounces, const struct ferry_device *device);

/** Frees all of them; no stream may use them any more. */
void ferry_bounce_buffers_free(struct ferry_bounce_buffers *bounces, struct ferry_device *device);

#endif
