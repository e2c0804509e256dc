/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A GPU as the cuda device's files share it: cuda.c (streams), cuda_kernels.c (kernels), cuda_memory.c (checks of
 * buffers) and cuda_pieces.c (exports). One struct per GPU, made by cuda.c on first use and kept until the process
 * ends.
 */
#ifndef FERRY_DEVICE_CUDA_DEVICE_H
#define FERRY_DEVICE_CUDA_DEVICE_H

#include "rank-lib/device/device.h"
#include "rank-lib/device/pieces.h"
#include "router/copy/cuda.h"

struct ferry_cuda_device {
	struct ferry_device base;
	const struct ferry_cuda_driver *driver;
	CUdevice device;
	CUcontext context;      /* the primary one */
	CUfunction wait_kernel; /* NULL: streams wait at memory operations */
	/* CU_STREAM_WAIT_VALUE_FLUSH if the device has it: work behind the wait sees what others wrote before the 0 */
	unsigned wait_flags;
	struct ferry_piece sample; /* 0 bytes: none yet; cuda_pieces.c writes it under its lock */
};

static inline struct ferry_cuda_device *ferry_cuda_device(struct ferry_device *device)
{
	return (struct ferry_cuda_device *)device;
}

static inline ferryResult_t ferry_cuda_enter(struct ferry_cuda_device *device, struct ferry_cuda_visit *visit)
{
	return ferry_cuda_visit(device->driver, device->context, visit);
}

#endif
