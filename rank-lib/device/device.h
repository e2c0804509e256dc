/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What a communicator needs of a device, behind one struct of functions: streams that a call takes its place in, and a copy
 * engine per direction. Backends: host (ordinary memory); cuda comes behind the same interface.
 *
 * Who calls: `enqueue` any thread of the application; a copy queue belongs to one lane thread. Tickets are how a stream and
 * the lanes speak: the stream says "reached", the lanes say "done"; each word has that one writer.
 */
#ifndef FERRY_DEVICE_DEVICE_H
#define FERRY_DEVICE_DEVICE_H

#include "ferry.h"

#include <stdatomic.h>
#include <stdbool.h>

/** A call's place in a stream. Shared by the stream and the two lanes; freed by whoever lets go last. */
struct ferry_ticket {
	_Atomic uint32_t started;  /* 1: the stream has reached the call; written by the stream, release */
	_Atomic uint32_t finished; /* futex word, 1: done; written by the lane that ends the call, release, after result */
	_Atomic uint32_t holders;
	ferryResult_t result;
	const char *message;       /* why, if result is a failure; lives as long as the ticket */
	void (*on_start)(struct ferry_ticket *ticket); /* called by the stream after started = 1: wakes the lanes */
	void (*release)(struct ferry_ticket *ticket);  /* frees; called when the last holder lets go */
};

void ferry_ticket_start(struct ferry_ticket *ticket);
/** Stores the result and wakes whoever waits for the ticket. The caller still holds it. */
void ferry_ticket_finish(struct ferry_ticket *ticket, ferryResult_t result, const char *message);
void ferry_ticket_drop(struct ferry_ticket *ticket);
bool ferry_ticket_finished(struct ferry_ticket *ticket);
void ferry_ticket_wait(struct ferry_ticket *ticket);

enum ferry_direction { FERRY_UP /* D2H */, FERRY_DOWN /* H2D, and copies on the device */ };

struct ferry_device;

/** One lane's copies, finished in the order in which they were started. Used by that lane's thread alone. */
struct ferry_copy_queue {
	struct ferry_device *device;
	enum ferry_direction direction;
	uint64_t started;
	void *backend;
};

struct ferry_device_ops {
	const char *kind;
	/** Puts the ticket into the stream (NULL: the device's default stream): started when reached, later work waits for finished. */
	ferryResult_t (*enqueue)(struct ferry_device *device, ferryStream_t stream, struct ferry_ticket *ticket);
	/** ferrySuccess if `stream` belongs to this kind of device and may be used. */
	ferryResult_t (*check_stream)(struct ferry_device *device, ferryStream_t stream);
	ferryResult_t (*queue_open)(struct ferry_device *device, enum ferry_direction direction, struct ferry_copy_queue *queue);
	void (*queue_close)(struct ferry_copy_queue *queue);
	/** Starts a copy, a part of one of `whole` bytes. crosses: over the link to the host; false: inside the device. */
	ferryResult_t (*copy)(struct ferry_copy_queue *queue, void *destination, const void *source, size_t bytes, uint64_t whole,
	                      bool crosses);
	/** How many copies of this queue have finished since it was opened. */
	uint64_t (*finished)(struct ferry_copy_queue *queue);
	/** Microseconds until the next one finishes, at least 1; 0: unknown, poll. Only asked while copies are outstanding. */
	int64_t (*wait_us)(struct ferry_copy_queue *queue);
	void (*close)(struct ferry_device *device);
};

struct ferry_device {
	const struct ferry_device_ops *ops;
	int ordinal;
};

/** Opens device `ordinal` of that kind ("host" or "cuda"). Devices are shared by the communicators of a process and counted. */
ferryResult_t ferry_device_open(const char *kind, int ordinal, struct ferry_device **device);
void ferry_device_close(struct ferry_device *device);

/** The host backend. */
ferryResult_t ferry_host_device_open(int ordinal, struct ferry_device **device);

#endif
