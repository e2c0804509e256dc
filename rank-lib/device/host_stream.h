/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Streams and events of host devices (ferry.h has their functions) as the device uses them: calls take their place in a
 * stream by a ticket. Any thread.
 */
#ifndef FERRY_DEVICE_HOST_STREAM_H
#define FERRY_DEVICE_HOST_STREAM_H

#include "ferry.h"
#include "rank-lib/device/ticket.h"

#define FERRY_HOST_DEVICES 256

/** Puts the ticket into the stream, which holds it until it has passed it. */
ferryResult_t ferry_host_enqueue(ferryStream_t stream, struct ferry_ticket *ticket);

/** ferrySuccess for a stream of this process. */
ferryResult_t ferry_host_check_stream(ferryStream_t stream);

/**
 * ferryStreamSynchronize of a stream that has been checked, under the name of the function that does so. Errors: of the
 * calls waited for; ferryInvalidUsage inside a host function of that stream.
 */
ferryResult_t ferry_host_synchronize(ferryStream_t stream, const char *function);

/** The thread that has used it ends: what is left in it moves without. */
void ferry_host_leave_stream(ferryStream_t stream);

/** Whether it is idle, and may be another thread's, which hears of no errors from before. */
bool ferry_host_take_stream(ferryStream_t stream);

/** In a child, after a fork: the streams and events that it has are its parent's. */
void ferry_host_streams_forked(void);

#endif
