/* SPDX-License-Identifier: Apache-2.0 */
/** Kernels of the cuda device (kernels.h). */
#ifndef FERRY_DEVICE_CUDA_KERNELS_H
#define FERRY_DEVICE_CUDA_KERNELS_H

#include "rank-lib/device/kernels.h"

extern const struct ferry_kernels_ops ferry_cuda_kernels;

#endif
