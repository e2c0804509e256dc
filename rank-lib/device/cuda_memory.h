/* SPDX-License-Identifier: Apache-2.0 */
/** Which buffers calls on a GPU accept, and the GPU's NUMA node: device.h's functions of the same names. */
#ifndef FERRY_DEVICE_CUDA_MEMORY_H
#define FERRY_DEVICE_CUDA_MEMORY_H

#include "rank-lib/device/device.h"

ferryResult_t ferry_cuda_check_buffer(struct ferry_device *device, const void *buffer, size_t bytes, const char *what);
int ferry_cuda_node(struct ferry_device *device);

#endif
