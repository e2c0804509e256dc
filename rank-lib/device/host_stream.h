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

/** The default stream of device `ordinal`; made on first use, kept until the process ends. */
ferryResult_t ferry_host_default_stream(int ordinal, ferryStream_t *stream);

/** Puts the ticket into the stream, which holds it until it has passed it. */
ferryResult_t ferry_host_enqueue(ferryStream_t stream, struct ferry_ticket *ticket);

/** ferrySuccess for a stream of this process. */
ferryResult_t ferry_host_check_stream(ferryStream_t stream);

/** Around a fork, as in host.h, for streams alone. */
void ferry_host_streams_before_fork(void);
void ferry_host_streams_after_fork(bool in_child);

#endif
