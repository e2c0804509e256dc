/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What a device does for calls that kernels carry (rank-lib/kernels/): it loads and launches kernels, and maps memory
 * that the kernels of several ranks share. `launch`, `follow` and `stream_beside` are for threads that make calls, all
 * else for threads that make or end a communicator.
 */
#ifndef FERRY_DEVICE_KERNELS_H
#define FERRY_DEVICE_KERNELS_H

#include "ferry.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ferry_device;
struct ferry_kernel_call;

#define FERRY_KERNEL_CAPTURES 4 /* graphs under capture that a communicator's calls may take turns in */

/** A graph under capture that has some of the communicator's kernels. */
struct ferry_kernel_capture {
	uint64_t id;          /* 0: none */
	ferryStream_t stream; /* of the last of these kernels */
	void *last, *record;  /* graph nodes: the last kernel; the record of the event behind all of the kernels */
};

/**
 * The order of a communicator's kernels. They must run in the order in which the program launched them and the graphs
 * that hold them. Until a kernel is captured, a kernel waits on the GPU for the previous one if that is on another
 * stream: kernels count themselves. From the first capture on, an event orders them: each plain kernel (one that is not
 * captured) and each graph waits for the event first, and records it at its end.
 */
struct ferry_kernel_order {
	uint64_t stream;  /* id of the stream of the last plain kernel; 0: none was launched */
	uint32_t plain;   /* plain kernels launched, modulo 2^32 */
	uint32_t counted; /* plain kernels launched before the first capture: these count themselves */
	bool mixed;       /* a kernel was captured */
	void *event;      /* NULL: there is none yet */
	void *joint;      /* the event by which `follow` lets a stream wait for another one; NULL: likewise */
	void *beside;     /* the stream of stream_beside; NULL: likewise */
	struct ferry_kernel_capture captures[FERRY_KERNEL_CAPTURES];
	uint32_t ncaptures; /* so far; capture n is at n % FERRY_KERNEL_CAPTURES */
};

struct ferry_kernels_ops {
	uint32_t (*multiprocessors)(struct ferry_device *device);
	/** Loads the kernels of a PTX text for good. Errors: the driver's. */
	ferryResult_t (*load)(struct ferry_device *device, const char *ptx, const char *const *names, uint32_t count,
	                      void **functions);
	/**
	 * Puts a kernel into the stream, or into the graph that it captures, behind the communicator's last kernel.
	 * Fills in uncounted, awaits and awaited_plain of `call`, the first of a group. Calls keep(argument) when a
	 * graph gets its first kernel; any thread calls forget(argument) once neither the graph nor an instance of it
	 * exists. Errors: ferryInvalidUsage or ferryInvalidArgument if the stream cannot be used; the driver's.
	 */
	ferryResult_t (*launch)(struct ferry_device *device, void *function, uint32_t blocks, uint32_t threads,
	                        ferryStream_t stream, struct ferry_kernel_order *order, struct ferry_kernel_call *call,
	                        void (*keep)(void *argument), void (*forget)(void *argument), void *argument);
	/**
	 * Work put into `stream` from now on waits for the work that is in `other` now. Does nothing if they are the
	 * same. Errors: the driver's.
	 */
	ferryResult_t (*follow)(struct ferry_device *device, struct ferry_kernel_order *order, ferryStream_t stream,
	                        ferryStream_t other);
	/** Gives a stream of the communicator's own, to run beside the program's streams. Errors: the driver's. */
	ferryResult_t (*stream_beside)(struct ferry_device *device, struct ferry_kernel_order *order,
	                               ferryStream_t *stream);
	/** Whether all kernels that do not count themselves have ended, and all launched graphs that hold kernels. */
	bool (*is_over)(struct ferry_device *device, const struct ferry_kernel_order *order);
	/** Frees the order's events and its stream. */
	void (*order_end)(struct ferry_device *device, struct ferry_kernel_order *order);
	/** Sets device memory to 0; waits for that, and for no other work. */
	ferryResult_t (*zero)(struct ferry_device *device, void *memory, size_t bytes);
	/** Copies device memory to registered host memory; waits for that, and for no other work. */
	ferryResult_t (*read)(struct ferry_device *device, void *to, const void *memory, size_t bytes);
	/** Lets kernels of `device` use memory of `other`, in this process. Errors: the driver's. */
	ferryResult_t (*reach)(struct ferry_device *device, struct ferry_device *other);
	/**
	 * Maps an allocation of another process, unless it is mapped already; gives its address and bytes. It stays
	 * mapped until `unmap` was called as often as `map`; the last `unmap` waits for all work of the device. Errors:
	 * the driver's.
	 */
	ferryResult_t (*map)(struct ferry_device *device, const uint8_t handle[64], void **address, uint64_t *bytes);
	void (*unmap)(struct ferry_device *device, void *address);
	/** Registers host memory, so that kernels use it at its host address. remove_host waits as `unmap` does. */
	ferryResult_t (*add_host)(struct ferry_device *device, void *memory, size_t bytes);
	void (*remove_host)(struct ferry_device *device, void *memory);
};

#endif
