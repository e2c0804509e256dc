/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The cuda device: calls in streams of GPUs. No callback is put into a user's stream: memory operations and copies are
 * all, or, with FERRY_WAIT=kernel, kernels of one thread that wait.
 */
#ifndef FERRY_DEVICE_CUDA_H
#define FERRY_DEVICE_CUDA_H

#include "rank-lib/device/device.h"

/** As ferry_device_open. */
ferryResult_t ferry_cuda_device_open(int ordinal, int local_rank, struct ferry_device **device);

#endif
