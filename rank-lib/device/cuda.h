/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The cuda device: calls in streams of GPUs. A call puts memory operations, copies and kernels into the user's stream,
 * but no callback. With FERRY_WAIT=kernel kernels of one thread wait.
 */
#ifndef FERRY_DEVICE_CUDA_H
#define FERRY_DEVICE_CUDA_H

#include "rank-lib/device/device.h"

/** As ferry_device_open. */
ferryResult_t ferry_cuda_device_open(int ordinal, int local_rank, struct ferry_device **device);

#endif
