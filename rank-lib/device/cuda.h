/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The cuda device: the inside that cuda.c (streams, tickets), cuda_memory.c (what buffers may be) and cuda_export.c (buffers of other processes) share. One struct per GPU of the process, made on first use and
 * kept until the process ends: a stream may still be about to read a line after the last communicator has gone.
 *
 * No kernel is launched and no callback put into a user's stream: memory operations and copies are all.
 */
#ifndef FERRY_DEVICE_CUDA_H
#define FERRY_DEVICE_CUDA_H

#include "rank-lib/device/device.h"
#include "router/copy/cuda.h"

#include <pthread.h>

/* Pinned host memory that a stream reads and writes: a ticket's words. */
struct ferry_cuda_line {
	_Atomic uint32_t started;  /* GPU: 1; a lane: 0 (tickets that repeat); whoever takes the line, before the GPU knows it: 0 */
	_Atomic uint32_t finished; /* a lane: 1; GPU: 0 once it has passed */
	uint64_t scalar;           /* GPU, before started */
	CUevent passed;            /* the gate is past the call; made when first needed; host side */
	char pad[40];
};

struct ferry_cuda_device {
	struct ferry_device base;
	struct ferry_cuda_copier copier;
	const struct ferry_cuda_driver *driver;
	CUdevice device;
	CUcontext context;          /* the primary one */
	pthread_mutex_t lock;       /* for the lines */
	struct ferry_cuda_line **lines; /* a ring of those given back; usable once `started` is 1 and `finished` 0 */
	uint32_t nlines, capacity, first;
};

static inline struct ferry_cuda_device *ferry_cuda_device(struct ferry_device *device)
{
	return (struct ferry_cuda_device *)device;
}

static inline ferryResult_t ferry_cuda_enter(struct ferry_cuda_device *device, struct ferry_cuda_visit *visit)
{
	return ferry_cuda_visit(device->driver, device->context, visit);
}

/** A line with both words 0; under no lock, within a visit. */
ferryResult_t ferry_cuda_take_line(struct ferry_cuda_device *device, struct ferry_cuda_line **line);
void ferry_cuda_give_line(struct ferry_cuda_device *device, struct ferry_cuda_line *line);

/* cuda_memory.c */
ferryResult_t ferry_cuda_check_buffer(struct ferry_device *device, const void *buffer, size_t bytes, const char *what);
int ferry_cuda_node(struct ferry_device *device);

/* cuda_export.c */
ferryResult_t ferry_cuda_export(struct ferry_device *device, const void *buffer, size_t bytes, struct ferry_export *handle);
ferryResult_t ferry_cuda_import(struct ferry_device *device, const struct ferry_export *handle, struct ferry_import *imported);
void ferry_cuda_import_close(struct ferry_device *device, struct ferry_import *imported);
/** A GPU's 16 bytes as nvidia-smi -L writes them and CUDA_VISIBLE_DEVICES takes them. */
void ferry_cuda_write_uuid(const unsigned char *uuid, char text[48]);

#endif
