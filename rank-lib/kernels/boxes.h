/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The memory of mailboxes in this process: what its ranks have allocated, and what they have mapped of others'. It
 * outlives communicators: to free device memory, to unmap another process's or to unregister host memory waits for all
 * work of the device, which may wait for a rank that is dead. So memory that a communicator no longer uses is kept for
 * the next one on the device; all but a little is freed as the device's last communicator ends. Used by threads that
 * make and end communicators.
 */
#ifndef FERRY_RANK_LIB_KERNELS_BOXES_H
#define FERRY_RANK_LIB_KERNELS_BOXES_H

#include "rank-lib/device/device.h"
#include "rank-lib/failover/rank.h"
#include "rank-lib/kernels/kernel_call.h"

/* A piece of an arena, registered with the device. */
struct ferry_box_window {
	void *address;
	uint64_t bytes;
};

/* Kernels of calls, and of messages, each have a state and an order by themselves. */
enum ferry_box_line { FERRY_BOX_CALLS, FERRY_BOX_MESSAGES, FERRY_BOX_LINES };

/* Bytes from a box's states to the counters of channels, and to the table of messages (kernel_call.h). */
#define FERRY_BOX_COUNTERS 4096u
#define FERRY_BOX_TABLE    (FERRY_BOX_COUNTERS + FERRY_CHANNELS * 128u) /* FERRY_CHANNEL_WORDS of ferry_device.cuh */

struct ferry_box_import;

/* A rank's own memory. */
struct ferry_box {
	/* constant while a communicator has it */
	struct ferry_device *device;
	/* the inbox that other ranks map; NULL and 0: it has none */
	char *memory;
	uint64_t bytes;
	bool first;                    /* no communicator had a box on the device when this one took it */
	/* FERRY_BOX_LINES, and more; an allocation apart, which no other process can map; device memory */
	struct ferry_kernel_state *states;
	uint32_t word;                 /* number of the stream flag that has its abort word, `flag` */
	struct ferry_stream_flag *aborted; /* that flag */
	struct ferry_box_window windows[FERRY_KERNEL_RANKS + 1]; /* outboxes, and cells of ADDs */
	uint32_t nwindows;
	struct ferry_box *next;        /* under the lock of boxes.c; so are the next two */
	bool failed;                   /* its communicator had failed: others' kernels may write to it yet */
	/* under the communicator's lock while it has the box; their events outlive it, as graphs name them */
	struct ferry_kernel_order orders[FERRY_BOX_LINES];
	struct ferry_kernel_order adds[FERRY_PARITIES]; /* the event alone: behind the parity's last kernel of ADDs */
	_Atomic uint32_t holders;      /* the communicator, and each graph with a kernel of the box's; any thread */
	/* other ranks' boxes that the holders' kernels use; under the lock, as all below */
	struct ferry_box_import *imports[FERRY_KERNEL_RANKS];
	struct ferry_box *near[FERRY_KERNEL_RANKS]; /* of this process */
	uint32_t nimports, nnear;
	uint32_t users;                /* boxes that have it in `near` */
	uint32_t resident;             /* blocks of ADDs that the communicator may have on the device at a time */
	bool owned;                    /* a communicator has it; the next two are its key, */
	uint8_t key[FERRY_KEY_BYTES];
	int rank;                      /* and which of its ranks */
};

/**
 * Finds or makes a box for the rank, with an inbox of so many bytes: a multiple of 2 MiB, or 0. Inbox, states and abort
 * word are all 0. Errors: the device's; ferryInvalidUsage without a free stream flag.
 */
ferryResult_t ferry_box_take(struct ferry_device *device, const struct ferry_rank *rank, uint64_t bytes,
                             struct ferry_box **box);

/**
 * The communicator no longer uses the box. discard: no other one may get it. If the communicator was the device's last
 * and has not failed, frees boxes and imports that are not used.
 */
void ferry_box_give_back(struct ferry_box *box, bool discard, bool failed);

/**
 * Counts so many blocks of ADDs for the box's communicator, which other ones then leave it, in place of what it has
 * had. Returns false if all communicators' that this process has on the device would be more than `most`: then none.
 */
bool ferry_box_reserve(struct ferry_box *box, uint32_t blocks, uint32_t most);

/** Whether its communicator's calls are over, those of launched graphs, too. */
bool ferry_box_is_idle(const struct ferry_box *box);

/** A graph has a kernel of the box, or no longer has it: `box`, as a callback of the driver gets it. Any thread. */
void ferry_box_hold(void *box);
void ferry_box_drop(void *box);

/**
 * Finds the inbox of as many bytes that another rank of the communicator has in this process: *inbox; returns its
 * device. NULL: there is none, whatever the rank says. The inbox stays while kernels of this box may run.
 */
struct ferry_device *ferry_box_of(struct ferry_box *box, int other, void **inbox);

/** Maps that part of a shared memory for the box, and registers it. Errors: ferrySystemError, the device's. */
ferryResult_t ferry_box_add_window(struct ferry_box *box, int descriptor, uint64_t from, uint64_t bytes,
                                   void **address);

/* A box as a rank of another process describes it. */
struct ferry_box_claim {
	uint8_t handle[64];
	uint64_t process, start; /* and when that process began */
	uint64_t bytes;
};

/**
 * Maps such a box with the device of `box`, as long as kernels of `box` may run. Errors: the device's;
 * ferryInvalidUsage: it has fewer bytes than claimed.
 */
ferryResult_t ferry_box_import(struct ferry_box *box, const struct ferry_box_claim *claim, void **address);

#endif
