/* SPDX-License-Identifier: Apache-2.0 */
/** Opening a device by the name of its kind. By the threads that make communicators. */
#ifndef FERRY_DEVICE_OPEN_H
#define FERRY_DEVICE_OPEN_H

#include "rank-lib/device/device.h"

/**
 * Opens device `ordinal` of that kind: "host", "cuda", or NULL for cuda where the process has a CUDA device, else host.
 * ordinal -1: the calling thread's current CUDA device, or local_rank modulo the devices if it has none; on the host,
 * local_rank. Communicators share devices: a host device is freed with its last user, a CUDA device is kept.
 */
ferryResult_t ferry_device_open(const char *kind, int ordinal, int local_rank, struct ferry_device **device);

/** Ends one use of the device. NULL: does nothing. */
void ferry_device_close(struct ferry_device *device);

#endif
