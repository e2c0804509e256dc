/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Copy engines: how lanes move slices between a device and staging, behind one struct of functions. Two kinds: host
 * (the lane's own thread copies, over links of a modelled speed where asked) and cuda (an event per copy, in a stream).
 *
 * A copier belongs to a device in one process; any lane of that process may open queues on it. A queue belongs to one
 * lane's thread.
 */
#ifndef FERRY_ROUTER_COPY_COPY_H
#define FERRY_ROUTER_COPY_COPY_H

#include "ipc/ferry_types.h"

#include <stdbool.h>

enum ferry_direction { FERRY_DIR_D2H /* D2H, and pushes */, FERRY_DIR_H2D /* H2D, and copies on the device */ };

struct ferry_copier;

/** The target of a PUT. */
struct ferry_put_target {
	char *address;
	int64_t process;   /* the process of that address, if not this process; 0: this one */
	uint32_t from, to; /* ranks: which link it takes, where links are modelled */
	/* nanoseconds: when each shared link is free, for all that model it; NULL: those of this copier alone */
	_Atomic uint64_t *shared_busy_until;
	/* keeps the memory mapped until it is released (router/engine/member.h); NULL: nothing to release */
	void *hold;
};

/** One lane's copies, finished in the order in which they were started. Used by that lane's thread alone. */
struct ferry_copy_queue {
	struct ferry_copier *copier;
	enum ferry_direction direction;
	uint64_t started;
	void *backend;
};

struct ferry_copy_ops {
	const char *kind;
	/** This device rings no bell when it makes progress: lanes poll its copies, and calls in its streams. */
	bool polled;
	/** Staging is read and written by DMA: it should not stay in a core's private cache. */
	bool direct_memory_access;
	/** Makes host memory (whole pages) known to the copy engines, before any copy names it. NULL, both: no need. */
	ferryResult_t (*register_memory)(struct ferry_copier *copier, void *memory, size_t bytes);
	void (*unregister_memory)(struct ferry_copier *copier, void *memory);
	ferryResult_t (*queue_open)(struct ferry_copier *copier, enum ferry_direction direction,
	                            struct ferry_copy_queue *queue);
	void (*queue_close)(struct ferry_copy_queue *queue);
	/**
	 * Starts a copy, a part of one of `whole` bytes. crosses: over the link to the host; false: inside the device.
	 */
	ferryResult_t (*copy)(struct ferry_copy_queue *queue, void *destination, const void *source, size_t bytes,
	                      uint64_t whole, bool crosses);
	/**
	 * Starts a copy from this device's memory to another device's. Such copies have a queue of their own, of
	 * direction FERRY_DIR_D2H. NULL: the device pushes into no other.
	 */
	ferryResult_t (*push)(struct ferry_copy_queue *queue, const struct ferry_put_target *to, const void *source,
	                      size_t bytes);
	/** How many copies of this queue have finished since it was opened. */
	uint64_t (*finished)(struct ferry_copy_queue *queue);
	/**
	 * Microseconds until the next one finishes, at least 1; 0: unknown, poll. Only asked while copies are
	 * outstanding.
	 */
	int64_t (*wait_us)(struct ferry_copy_queue *queue);
	/** An error if copies of this queue will never finish. NULL: they always do. */
	ferryResult_t (*queue_check)(struct ferry_copy_queue *queue);
};

struct ferry_copier {
	const struct ferry_copy_ops *ops;
};

#endif
