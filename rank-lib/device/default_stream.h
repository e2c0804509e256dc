/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Default streams of host devices: what NULL stands for. Each thread has its own, of each device, as with CUDA's
 * per-thread default streams. With one for all threads, two threads that call with a communicator each would be put
 * into one order, which another process may not share: then each waits in one stream for the other's second call. (On
 * GPUs, NULL is CUDA's legacy default stream, as for every library.) Any thread.
 *
 * A stream of a thread that has ended is another thread's once nothing is left in it.
 */
#ifndef FERRY_DEVICE_DEFAULT_STREAM_H
#define FERRY_DEVICE_DEFAULT_STREAM_H

#include "ferry.h"

#include <stdbool.h>

/** The calling thread's, of device `ordinal`; made on first use. Error: ferrySystemError. */
ferryResult_t ferry_default_stream(int ordinal, ferryStream_t *stream);

/** Around a fork, as in host.h. A child's thread begins without default streams. */
void ferry_default_streams_before_fork(void);
void ferry_default_streams_after_fork(bool in_child);

#endif
