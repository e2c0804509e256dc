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

/** Puts the ticket into the stream, which keeps a reference until it has passed it. */
ferryResult_t ferry_host_enqueue(ferryStream_t stream, struct ferry_ticket *ticket);

/** ferrySuccess for a stream of this process. */
ferryResult_t ferry_host_check_stream(ferryStream_t stream);

/**
 * ferryStreamSynchronize of a stream that has been checked. `function` is the API's name for the message. Errors: those
 * of the calls waited for; ferryInvalidUsage inside a host function of that stream.
 */
ferryResult_t ferry_host_synchronize(ferryStream_t stream, const char *function);

/** Called when the stream's thread ends: the work that is left in the stream runs without that thread. */
void ferry_host_leave_stream(ferryStream_t stream);

/** Returns true if the stream is idle: another thread may then use it. Drops the errors of earlier calls. */
bool ferry_host_take_stream(ferryStream_t stream);

/** Called in a child after a fork: from then on the child refuses streams and events of its parent. */
void ferry_host_streams_forked(void);

#endif
