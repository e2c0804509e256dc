/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The host device: buffers in ordinary memory. Its copy engine is router/copy/host.c; host_stream.h has its streams.
 */
#ifndef FERRY_DEVICE_HOST_H
#define FERRY_DEVICE_HOST_H

#include "rank-lib/device/device.h"
#include "router/copy/host.h"

struct ferry_host_device {
	struct ferry_device base;
	uint32_t users; /* under the table's lock */
	struct ferry_host_copier copier;
};

/** As ferry_device_open. The ordinal is from 0 to FERRY_HOST_DEVICES - 1. */
ferryResult_t ferry_host_device_open(int ordinal, struct ferry_device **device);

/**
 * Called around a fork: locks the tables before it, and unlocks them after it in both processes. A child begins without
 * devices, and refuses the streams and events that it inherits: the threads that run them are in the parent.
 */
void ferry_host_before_fork(void);
void ferry_host_after_fork(bool in_child);

#endif
