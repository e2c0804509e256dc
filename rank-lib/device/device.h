/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What a communicator needs of a device, behind one struct of functions: streams that a call takes its place in, and copy
 * engines for each direction. Backends: host (ordinary memory) and cuda. The copy engines themselves are router/copy/copy.h's.
 *
 * Who calls: any thread of the application. Tickets are how a
 * stream and the lanes speak: the stream says "reached", the lanes say "done".
 */
#ifndef FERRY_DEVICE_DEVICE_H
#define FERRY_DEVICE_DEVICE_H

#include "ferry.h"
#include "rank-lib/device/export.h"
#include "router/copy/copy.h"

#include <stdatomic.h>
#include <stdbool.h>

/**
 * A call's place in a stream. Shared by the stream and the two lanes; freed by whoever lets go last.
 *
 * The two words: the stream writes *started = 1 when it reaches the call, the lane that ends the call writes *finished = 1.
 * A ticket that repeats belongs to a captured call, which the stream reaches again with each replay: then each word is put back
 * to 0 by the side that read it, `started` by the D2H lane before it begins, `finished` by the stream once it has passed.
 */
struct ferry_ticket {
	_Atomic uint32_t *started, *finished; /* own_words, or memory that the device writes */
	_Atomic uint32_t own_words[2];        /* the second is a futex word */
	_Atomic uint32_t holders;
	bool repeats;
	_Atomic uint32_t forgotten; /* 1: repeats, but the last graph with the call is gone; written by the device */
	void *backend;              /* the device's own */
	ferryResult_t result;
	const char *message;       /* why, if result is a failure; lives as long as the ticket */
	void (*on_start)(struct ferry_ticket *ticket); /* called by a host stream after started = 1: wakes the lanes */
	void (*on_forget)(struct ferry_ticket *ticket); /* called after forgotten = 1, from any thread */
	void (*release)(struct ferry_ticket *ticket);  /* frees; called when the last holder lets go */
};

/** Points the words at own_words. */
void ferry_ticket_init(struct ferry_ticket *ticket);
void ferry_ticket_start(struct ferry_ticket *ticket);
/** Stores the result and wakes whoever waits for the ticket. The caller still holds it. */
void ferry_ticket_finish(struct ferry_ticket *ticket, ferryResult_t result, const char *message);
void ferry_ticket_drop(struct ferry_ticket *ticket);
bool ferry_ticket_started(const struct ferry_ticket *ticket);
bool ferry_ticket_finished(struct ferry_ticket *ticket);
void ferry_ticket_wait(struct ferry_ticket *ticket);

struct ferry_device;

struct ferry_local_copy {
	void *destination;
	const void *source;
	size_t bytes;
};

/** What a call does in its stream itself, between "reached" and "done". */
struct ferry_stream_work {
	struct ferry_local_copy *copies; /* only where the device has copies_in_stream */
	uint32_t ncopies;
	const void *scalar; /* NULL or a value in device memory, read when the stream reaches the call; */
	size_t scalar_bytes;
	const void **scalar_at; /* set to where the lanes find it from then on */
	void *gate;         /* of the communicator; NULL where the device opens none */
};

struct ferry_device_ops {
	const char *kind;
	/** Copies within the device are part of the stream's work; else the lanes start them. */
	bool copies_in_stream;
	/**
	 * Puts the ticket into the stream (NULL: the device's default stream): started when reached, later work waits for finished.
	 * A ticket that repeats goes into the graph that the stream captures. On an error it may be in the stream already.
	 */
	ferryResult_t (*enqueue)(struct ferry_device *device, ferryStream_t stream, struct ferry_ticket *ticket,
	                         const struct ferry_stream_work *work);
	/** What calls of one communicator go through, in the order in which they are made. NULL: this kind needs none. */
	ferryResult_t (*gate_open)(struct ferry_device *device, void **gate);
	void (*gate_close)(struct ferry_device *device, void *gate);
	/** Gives back what enqueue attached to the ticket; its last holder calls. NULL: nothing. */
	void (*release)(struct ferry_device *device, struct ferry_ticket *ticket);
	/** ferrySuccess if `stream` belongs to this kind of device and may be used. *captures: calls go into a graph. */
	ferryResult_t (*check_stream)(struct ferry_device *device, ferryStream_t stream, bool *captures);
	/** ferrySuccess if the bytes are memory that calls on this device may name; `what` is for the message. */
	ferryResult_t (*check_buffer)(struct ferry_device *device, const void *buffer, size_t bytes, const char *what);
	/** Behind the functions of export.h, which say what they do; NULL, all three: this kind's memory stays in its process. */
	ferryResult_t (*export_buffer)(struct ferry_device *device, const void *buffer, size_t bytes, struct ferry_export *handle);
	ferryResult_t (*import_buffer)(struct ferry_device *device, const struct ferry_export *handle, struct ferry_import *imported);
	void (*import_close)(struct ferry_device *device, struct ferry_import *imported);
	/** The NUMA node that the device hangs on, -1 if unknown. */
	int (*node)(struct ferry_device *device);
	void (*close)(struct ferry_device *device);
};

struct ferry_device {
	const struct ferry_device_ops *ops;
	struct ferry_copier *copier; /* for lanes of this process */
	int ordinal;
	/* Calls of all communicators on it; whoever makes one adds, the lane that ends it takes away. Futex word: rung at 0. */
	_Atomic uint32_t inflight;
};

/**
 * Opens device `ordinal` of that kind: "host", "cuda", or NULL for cuda where the process has a CUDA device, else host.
 * ordinal -1: the calling thread's current CUDA device, else (and on the host) `local_rank`, modulo what there is.
 * Devices are shared by the communicators of a process and counted.
 */
ferryResult_t ferry_device_open(const char *kind, int ordinal, int local_rank, struct ferry_device **device);
void ferry_device_close(struct ferry_device *device);

/** The backends. */
ferryResult_t ferry_host_device_open(int ordinal, struct ferry_device **device);
ferryResult_t ferry_cuda_device_open(int ordinal, int local_rank, struct ferry_device **device);

/** Which of this process's CUDA devices an exported buffer is on. ferryInvalidArgument: none of them, or the handle is bad. */
ferryResult_t ferry_cuda_exported_ordinal(const struct ferry_export *handle, int *ordinal);

#endif
