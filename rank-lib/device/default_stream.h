/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Default streams of host devices: what a NULL stream means. Each thread has its own for each device, as with CUDA's
 * per-thread default streams. One stream for all threads would put the calls of two threads, each with a communicator
 * of its own, into one order. Another process may have the opposite order, and then each waits in one stream for the
 * other's second call. (On GPUs, NULL is CUDA's legacy default stream, as for every library.) Any thread.
 *
 * When a thread has ended and its stream is empty, another thread takes the stream.
 */
#ifndef FERRY_DEVICE_DEFAULT_STREAM_H
#define FERRY_DEVICE_DEFAULT_STREAM_H

#include "ferry.h"

#include <stdbool.h>

/** Returns the calling thread's stream of device `ordinal`; makes it on first use. Error: ferrySystemError. */
ferryResult_t ferry_default_stream(int ordinal, ferryStream_t *stream);

/** Around a fork, as in host.h. A child's thread begins without default streams. */
void ferry_default_streams_before_fork(void);
void ferry_default_streams_after_fork(bool in_child);

#endif
