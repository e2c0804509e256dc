/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What calls that kernels carry need of a device (rank-lib/kernels/): loading and launching kernels, and memory that
 * the kernels of several ranks share. All but `launch` is for threads that make or end a communicator.
 */
#ifndef FERRY_DEVICE_KERNELS_H
#define FERRY_DEVICE_KERNELS_H

#include "ferry.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ferry_device;
struct ferry_kernel_call;

#define FERRY_KERNEL_CAPTURES 4 /* that one communicator's calls go into by turns */

/** A graph under capture that has some of the communicator's kernels. */
struct ferry_kernel_capture {
	uint64_t id;          /* 0: none */
	ferryStream_t stream; /* where the last of them went */
	void *last, *record;  /* their nodes: the last kernel, and the record of the event behind all of them */
};

/**
 * Where a communicator's kernels have gone so far: they must run in the order in which the program launched them and
 * the graphs that have them. Plain ones wait inside the kernel for those on other streams, until a graph has one. From
 * then on an event orders all: each plain one and each graph waits for it before, and records it behind.
 */
struct ferry_kernel_order {
	uint64_t stream;  /* of the last plain one, its id; 0: there was none */
	uint32_t plain;   /* that were launched, modulo 2^32 */
	uint32_t counted; /* of them before the first that was captured: those that the kernels count */
	bool mixed;       /* one was captured */
	void *event;      /* NULL: there is none yet */
	void *joint;      /* by which streams wait for each other; NULL: as above */
	void *beside;     /* a stream; NULL: as above */
	struct ferry_kernel_capture captures[FERRY_KERNEL_CAPTURES];
	uint32_t ncaptures; /* so far; capture n is at n % FERRY_KERNEL_CAPTURES */
};

struct ferry_kernels_ops {
	uint32_t (*multiprocessors)(struct ferry_device *device);
	/** Loads the kernels of a PTX text for good. Errors: the driver's. */
	ferryResult_t (*load)(struct ferry_device *device, const char *ptx, const char *const *names, uint32_t count,
	                      void **functions);
	/**
	 * Puts a kernel into the stream, or the graph that it captures, behind the communicator's last one; fills in
	 * call->uncounted, awaits and awaited_plain, of the first call of a group. keep: called with `argument` as the
	 * graph gets its first kernel, and `forget` once nothing has the graph any more, from any thread. Errors:
	 * ferryInvalidUsage or ferryInvalidArgument if the stream cannot be used; the driver's.
	 */
	ferryResult_t (*launch)(struct ferry_device *device, void *function, uint32_t blocks, uint32_t threads,
	                        ferryStream_t stream, struct ferry_kernel_order *order, struct ferry_kernel_call *call,
	                        void (*keep)(void *argument), void (*forget)(void *argument), void *argument);
	/**
	 * What comes into the stream from now on waits for what is in the other one; nothing if it is the same. Errors:
	 * the driver's.
	 */
	ferryResult_t (*follow)(struct ferry_device *device, struct ferry_kernel_order *order, ferryStream_t stream,
	                        ferryStream_t other);
	/** A stream of the communicator's own, for what is to run beside the program's. Errors: the driver's. */
	ferryResult_t (*stream_beside)(struct ferry_device *device, struct ferry_kernel_order *order,
	                               ferryStream_t *stream);
	/** Whether those that the kernels do not count are over, and the graphs that were launched. */
	bool (*is_over)(struct ferry_device *device, const struct ferry_kernel_order *order);
	/** Frees what the order has of the driver's. */
	void (*order_end)(struct ferry_device *device, struct ferry_kernel_order *order);
	/** Sets device memory to 0, and waits for that alone. */
	ferryResult_t (*zero)(struct ferry_device *device, void *memory, size_t bytes);
	/** Copies device memory to registered memory, and waits for that alone. */
	ferryResult_t (*read)(struct ferry_device *device, void *to, const void *memory, size_t bytes);
	/** Lets kernels of the one device use memory of the other one, in this process. Errors: the driver's. */
	ferryResult_t (*reach)(struct ferry_device *device, struct ferry_device *other);
	/**
	 * Maps an allocation of another process, or gives the address that it is mapped at already, and how many bytes
	 * are mapped there. It stays mapped until it has been unmapped as often; that waits for all work of the device.
	 * Errors: the driver's.
	 */
	ferryResult_t (*map)(struct ferry_device *device, const uint8_t handle[64], void **address, uint64_t *bytes);
	void (*unmap)(struct ferry_device *device, void *address);
	/** Registers host memory, so that kernels use it at its address; to unregister waits as `unmap` does. */
	ferryResult_t (*add_host)(struct ferry_device *device, void *memory, size_t bytes);
	void (*remove_host)(struct ferry_device *device, void *memory);
};

#endif
