/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The cuda device: the inside that cuda.c (streams), cuda_memory.c (what buffers may be) and cuda_export.c (buffers of
 * other processes) share. One struct per GPU of the process, made on first use and kept until the process ends.
 *
 * No callback is put into a user's stream: memory operations and copies are all, or, with FERRY_WAIT=kernel, kernels
 * of one thread that wait.
 */
#ifndef FERRY_DEVICE_CUDA_H
#define FERRY_DEVICE_CUDA_H

#include "rank-lib/device/device.h"
#include "rank-lib/device/export.h"
#include "router/copy/cuda.h"

struct ferry_cuda_device {
	struct ferry_device base;
	struct ferry_cuda_copier copier;
	const struct ferry_cuda_driver *driver;
	CUdevice device;
	CUcontext context;          /* the primary one */
	CUfunction wait_kernel; /* NULL: streams wait at memory operations */
	/* CU_STREAM_WAIT_VALUE_FLUSH where the device has it: what others wrote is seen behind the wait */
	unsigned wait_flags;
};

static inline struct ferry_cuda_device *ferry_cuda_device(struct ferry_device *device)
{
	return (struct ferry_cuda_device *)device;
}

static inline ferryResult_t ferry_cuda_enter(struct ferry_cuda_device *device, struct ferry_cuda_visit *visit)
{
	return ferry_cuda_visit(device->driver, device->context, visit);
}

/** As ferry_device_open. */
ferryResult_t ferry_cuda_device_open(int ordinal, int local_rank, struct ferry_device **device);

/* cuda_memory.c */
ferryResult_t ferry_cuda_check_buffer(struct ferry_device *device, const void *buffer, size_t bytes, const char *what);
int ferry_cuda_node(struct ferry_device *device);

/* cuda_pieces.c */
extern const struct ferry_pieces_ops ferry_cuda_pieces;

/* cuda_export.c */
ferryResult_t ferry_cuda_export(struct ferry_device *device, const void *buffer, size_t bytes,
                                struct ferry_export *handle);
ferryResult_t ferry_cuda_import(struct ferry_device *device, const struct ferry_export *handle,
                                struct ferry_imported *imported);
void ferry_cuda_import_close(struct ferry_device *device, struct ferry_imported *imported);
/**
 * Which of this process's CUDA devices an exported buffer is on. ferryInvalidArgument: none of them, or the handle is
 * bad.
 */
ferryResult_t ferry_cuda_exported_ordinal(const struct ferry_export *handle, int *ordinal);
/** A GPU's 16 bytes as nvidia-smi -L writes them and CUDA_VISIBLE_DEVICES takes them. */
void ferry_cuda_write_uuid(const unsigned char *uuid, char text[48]);

#endif
