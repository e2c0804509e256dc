/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The host device: buffers in ordinary memory; its copy engine is router/copy/host.c. Between host.c (the device) and
 * host_stream.c (streams).
 */
#ifndef FERRY_DEVICE_HOST_H
#define FERRY_DEVICE_HOST_H

#include "rank-lib/device/device.h"
#include "router/copy/host.h"

#include <pthread.h>

#define FERRY_HOST_DEVICES 256

struct ferry_host_device {
	struct ferry_device base;
	uint32_t users;                /* under the table's lock */
	struct ferry_host_copier copier;
	ferryStream_t stream;          /* the default stream */
};

/** The default stream of device `ordinal`; made on first use, kept until the process ends. */
ferryResult_t ferry_host_default_stream(int ordinal, ferryStream_t *stream);

/**
 * Around a fork, and the same for host_stream.c alone: no other thread has the tables locked meanwhile. A child begins
 * without devices, and refuses the streams and events that it inherits: who runs them is in the parent.
 */
void ferry_host_before_fork(void);
void ferry_host_after_fork(bool in_child);
void ferry_host_streams_before_fork(void);
void ferry_host_streams_after_fork(bool in_child);

ferryResult_t ferry_host_enqueue(ferryStream_t stream, struct ferry_ticket *ticket);
ferryResult_t ferry_host_check_stream(ferryStream_t stream);

#endif
