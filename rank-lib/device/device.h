/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What a communicator needs of a device, behind one struct of functions: streams that a call takes its place in, and
 * copy engines for each direction. Backends: host (ordinary memory) and cuda. The copy engines themselves are
 * router/copy/copy.h's.
 *
 * Who calls: any thread of the application. Tickets (host) and words (GPUs) are how a stream and the lanes speak: the
 * stream says "reached", the lanes say "done".
 */
#ifndef FERRY_DEVICE_DEVICE_H
#define FERRY_DEVICE_DEVICE_H

#include "ferry.h"
#include "ipc/words.h"
#include "rank-lib/device/export.h"
#include "rank-lib/device/pieces.h"
#include "router/copy/copy.h"

#include <stdatomic.h>
#include <stdbool.h>

/**
 * A call's place in a host stream. Shared by the stream and whoever runs the call; freed by whoever lets go last.
 */
struct ferry_ticket {
	_Atomic uint32_t started;  /* 1: the stream is at the call; the stream */
	_Atomic uint32_t finished; /* 1: it is over; who runs it. Futex word; 2: somebody sleeps */
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
bool ferry_ticket_started(const struct ferry_ticket *ticket);
bool ferry_ticket_finished(struct ferry_ticket *ticket);
void ferry_ticket_wait(struct ferry_ticket *ticket);

struct ferry_device;

struct ferry_local_copy {
	void *destination;
	const void *source;
	size_t bytes;
};

/** A call in a stream of a device with words (ipc/words.h): what the stream does itself. */
struct ferry_stream_call {
	struct ferry_word *word;         /* written 1 when the stream reaches the call, then waited for to be 0 */
	struct ferry_local_copy *copies; /* made between the two */
	uint32_t ncopies;
	struct ferry_local_copy *before, *after; /* made before the stream comes to the call, and behind it */
	uint32_t nbefore, nafter;
	const void *scalar;              /* NULL or a value in device memory, copied to word->scalar before */
	size_t scalar_bytes;
	/* captured: called once no graph has the call any more, from any thread; not if putting it in failed */
	void (*forget)(void *argument);
	void *argument;
};

/** A stream as calls see it. */
struct ferry_stream_state {
	uint64_t id;   /* no other stream of the process has, or had, the same; devices with words only */
	bool captures; /* calls go into a graph */
};

struct ferry_device_ops {
	const char *kind;
	/**
	 * One of the two. Host: puts the ticket into the stream (NULL: the default one): started when reached, later
	 * work waits for finished.
	 */
	ferryResult_t (*enqueue_ticket)(struct ferry_device *device, ferryStream_t stream, struct ferry_ticket *ticket);
	/**
	 * CUDA: puts the call into the stream, or into the graph that it captures. Copies within the device are the
	 * stream's own work then. On an error it may be in the stream already.
	 */
	ferryResult_t (*enqueue_word)(struct ferry_device *device, ferryStream_t stream,
	                              const struct ferry_stream_call *call);
	/** Whether threads of this process may make copies while streams wait for them; if not, why. NULL: they may. */
	ferryResult_t (*may_copy)(struct ferry_device *device);
	/** Makes the process's words known to the device's streams. NULL with tickets. */
	ferryResult_t (*register_words)(struct ferry_device *device, struct ferry_word *words, size_t bytes);
	/** ferrySuccess if `stream` belongs to this kind of device and may be used. */
	ferryResult_t (*check_stream)(struct ferry_device *device, ferryStream_t stream,
	                              struct ferry_stream_state *state);
	/** ferrySuccess if the bytes are memory that calls on this device may name; `what` is for the message. */
	ferryResult_t (*check_buffer)(struct ferry_device *device, const void *buffer, size_t bytes, const char *what);
	/**
	 * Behind the functions of export.h, which say what they do; NULL, all three: this kind's memory stays in its
	 * process.
	 */
	ferryResult_t (*export_buffer)(struct ferry_device *device, const void *buffer, size_t bytes,
	                               struct ferry_export *handle);
	ferryResult_t (*import_buffer)(struct ferry_device *device, const struct ferry_export *handle,
	                               struct ferry_imported *imported);
	void (*import_close)(struct ferry_device *device, struct ferry_imported *imported);
	/** What its memory is made of, for who exports it to a router; NULL: it stays in its process. */
	const struct ferry_pieces_ops *pieces;
	/** The NUMA node that the device hangs on, -1 if unknown. */
	int (*node)(struct ferry_device *device);
	void (*close)(struct ferry_device *device);
};

struct ferry_device {
	const struct ferry_device_ops *ops;
	struct ferry_copier *copier; /* for lanes of this process */
	int ordinal;
	/*
	 * Calls of all communicators on it; whoever makes one adds, the lane that ends it takes away. Futex word: rung
	 * at 0.
	 */
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

/**
 * Which of this process's CUDA devices an exported buffer is on. ferryInvalidArgument: none of them, or the handle is
 * bad.
 */
ferryResult_t ferry_cuda_exported_ordinal(const struct ferry_export *handle, int *ordinal);

#endif
