/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What a communicator needs of a device, behind one struct of functions: streams in which a call takes its place, and
 * on host devices copy engines for each direction (router/copy/copy.h). Backends: host (ordinary memory) and cuda.
 *
 * Called by any thread of the application. A stream and the lanes communicate by tickets (host) or stream flags (GPUs):
 * the stream stores that it has reached the call, the lanes store that the call is done.
 */
#ifndef FERRY_DEVICE_DEVICE_H
#define FERRY_DEVICE_DEVICE_H

#include "ferry.h"
#include "ipc/stream_flag.h"
#include "rank-lib/device/kernels.h"
#include "rank-lib/device/pieces.h"
#include "rank-lib/device/ticket.h"
#include "rank-lib/kernels/kernel_call.h"
#include "router/copy/copy.h"

#include <stdatomic.h>
#include <stdbool.h>

struct ferry_device;

struct ferry_local_copy {
	void *destination;
	const void *source;
	size_t bytes;
};

/** A kernel that waits for nothing. */
struct ferry_local_kernel {
	void *function; /* NULL: none */
	uint32_t blocks, threads;
	struct ferry_kernel_call call;
};

/** A kernel that goes on while the call does. */
struct ferry_beside_kernel {
	void *function; /* NULL: none */
	struct ferry_kernel_order *order; /* its event: the kernel begins behind it, and records it */
	uint32_t blocks, threads;
	struct ferry_kernel_adds *adds; /* its argument, which the driver copies */
};

/** A call in a stream of a device with stream flags (ipc/stream_flag.h): what the stream does itself. */
struct ferry_stream_call {
	struct ferry_stream_flag *flag;  /* the stream writes 1 when it reaches the call, then waits for 0 */
	struct ferry_local_copy *copies; /* made between the write and the wait */
	uint32_t ncopies;
	struct ferry_local_copy *before, *after; /* made before the write of 1; behind the wait */
	uint32_t nbefore, nafter;
	struct ferry_beside_kernel beside; /* behind `copies`, before the wait */
	struct ferry_local_kernel kernel; /* behind `after` */
	bool open;                       /* the wait, and what follows it, are left to finish_flag */
	const void *scalar;              /* NULL, or in device memory: the stream first copies it to flag->scalar */
	size_t scalar_bytes;
	/* captured: any thread calls it once no graph has the call; after an error of enqueue_flag perhaps never */
	void (*forget)(void *argument);
	void *argument;
};

/** Memory for what a device remembers from `enter` to `leave`. */
struct ferry_device_visit {
	uint64_t state[4];
};

/** A stream as calls see it. */
struct ferry_stream_state {
	ferryStream_t stream; /* host: a default stream where NULL was given */
	uint64_t id;   /* unique among all streams of the process, now and before; devices with stream flags only */
	bool captures; /* calls go into a graph */
};

struct ferry_device_ops {
	const char *kind;
	/**
	 * A thread that calls several of these functions may call `enter` before and `leave` after them, so that their
	 * common work is done only once. Both NULL: there is no such work. Errors of `enter`: the driver's.
	 */
	ferryResult_t (*enter)(struct ferry_device *device, struct ferry_device_visit *visit);
	void (*leave)(struct ferry_device_visit *visit);
	/**
	 * Host devices only; cuda has enqueue_flag. Puts the ticket into the stream that check_stream gave. The stream
	 * starts the ticket when it reaches it; later work in the stream waits until the ticket is finished.
	 */
	ferryResult_t (*enqueue_ticket)(ferryStream_t stream, struct ferry_ticket *ticket);
	/**
	 * CUDA: puts the call into the stream, or into the graph that it captures. The stream itself makes copies
	 * within the device. On an error the call may be in the stream already.
	 */
	ferryResult_t (*enqueue_flag)(struct ferry_device *device, ferryStream_t stream,
	                              const struct ferry_stream_call *call);
	/** CUDA: puts the rest of an open call into the stream: the wait, and what is behind it. */
	ferryResult_t (*finish_flag)(struct ferry_device *device, ferryStream_t stream,
	                             const struct ferry_stream_call *call);
	/**
	 * Registers the process's stream flags with the device, so that its streams can use them. NULL with tickets.
	 */
	ferryResult_t (*register_flags)(struct ferry_device *device, struct ferry_stream_flag *flags, size_t bytes);
	/** ferrySuccess if `stream` belongs to this kind of device and may be used. */
	ferryResult_t (*check_stream)(struct ferry_device *device, ferryStream_t stream,
	                              struct ferry_stream_state *state);
	/** ferrySuccess if calls on this device may name these bytes. `what` names the buffer in the message. */
	ferryResult_t (*check_buffer)(struct ferry_device *device, const void *buffer, size_t bytes, const char *what);
	/** find and export pieces of the device's memory; NULL: no other process can map it */
	const struct ferry_pieces_ops *pieces;
	/** NULL: kernels carry no calls on this device */
	const struct ferry_kernels_ops *kernels;
	/** The NUMA node of the device, -1 if unknown. */
	int (*node)(struct ferry_device *device);
	void (*close)(struct ferry_device *device);
};

struct ferry_device {
	const struct ferry_device_ops *ops;
	struct ferry_copier *copier; /* host: for lanes of this process */
	int ordinal;
	/* host: calls of all communicators; the calling thread adds, the lane that ends a call subtracts */
	_Atomic uint32_t inflight;
};

#endif
