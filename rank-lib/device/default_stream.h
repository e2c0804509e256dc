/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Default streams of host devices: what a NULL stream means. Each thread has its own for each device, as with CUDA's
 * per-thread default streams. If threads shared one stream, the calls of two communicators would be in one order.
 * Another process may have the opposite order: each would then wait in its stream for a call that is second in the
 * other. (On GPUs, NULL is CUDA's legacy default stream, as for every library.) Any thread.
 *
 * When a thread has ended and its stream is empty, another thread takes the stream.
 */
#ifndef FERRY_DEVICE_DEFAULT_STREAM_H
#define FERRY_DEVICE_DEFAULT_STREAM_H

#include "ferry.h"

#include <stdbool.h>

/** Returns the calling thread's stream of device `ordinal`; makes it on first use. Error: ferrySystemError. */
ferryResult_t ferry_default_stream(int ordinal, ferryStream_t *stream);

/** Called around a fork, as those of host.h. A child's thread begins without default streams. */
void ferry_default_streams_before_fork(void);
void ferry_default_streams_after_fork(bool in_child);

#endif
