/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The kernels of each element type, as loaded into a device: from PTX that the build embeds (ptx/TYPE.ptx), once per
 * process and device, all types at once, by the thread that makes the first communicator with kernels on that device.
 * No call ever loads one: that could wait for the very call.
 */
#ifndef FERRY_RANK_LIB_KERNELS_MODULES_H
#define FERRY_RANK_LIB_KERNELS_MODULES_H

#include "rank-lib/device/device.h"
#include "rank-lib/kernels/choice.h"

/** Loads them unless they are there. Errors: the driver's, which stay. Any thread. */
ferryResult_t ferry_modules_load(struct ferry_device *device);

/** The kernel, in the driver's terms, of a device that has them loaded. kernel: not NONE. */
void *ferry_modules_function(const struct ferry_device *device, ferryDataType_t type, enum ferry_kernel kernel);

#endif
