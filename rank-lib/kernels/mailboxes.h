/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The mailboxes of one rank of a communicator (their geometry: kernel_call.h), and the agreement of all ranks on them.
 * Made by the thread that makes the communicator, before any call of it; constant from then on.
 *
 * By peer memory, where every rank's GPU reaches every other one's, each rank has an inbox in its own device memory,
 * which the other ranks map (boxes.h). By host memory each has an outbox in the arena of its own domain, which all
 * ranks register with their GPUs. Ranks agree in two steps by a cell in each rank's line: "mine is there", then "I have
 * mapped all of them". Any rank may say "I cannot" instead of either, and then none uses kernels.
 *
 * Behind what Ferry's kernels use lies the memory of kernels of the caller's own, where that is asked for: a page of
 * signals, and so many bytes.
 */
#ifndef FERRY_RANK_LIB_KERNELS_MAILBOXES_H
#define FERRY_RANK_LIB_KERNELS_MAILBOXES_H

#include "rank-lib/call/fabrics.h"
#include "rank-lib/device/device.h"
#include "rank-lib/failover/router_monitor.h"
#include "rank-lib/failover/watchdog.h"
#include "rank-lib/kernels/boxes.h"

/* What waiting kernels, of calls or of messages, have said last. */
struct ferry_mailbox_waits {
	struct ferry_watchdog watchdog; /* since when a kernel has waited in call `number` */
	uint32_t number;
	uint64_t said;     /* its last word, */
	uint64_t heard_ns; /* and when that word was new */
	uint32_t departed; /* times that a kernel has waited for a message of a rank that has left */
};

struct ferry_mailboxes {
	struct ferry_monitor_entry entry; /* first: raises the abort word where the rank has failed; router monitor */
	/* constant, set by the maker of the communicator */
	struct ferry_rank *rank;
	struct ferry_device *device;
	const struct ferry_fabrics *fabrics;
	uint64_t channel_bytes; /* ferryConfig_t.channels */
	/* constant once they are open */
	bool ready;            /* all ranks have all of them, and their kernels */
	bool peer;             /* in peer memory; else in host memory */
	bool watched;          /* by the router monitor */
	uint32_t blocks;       /* of a call at most: the least of all ranks'; */
	uint32_t line_blocks;  /* of one by lines of LL128 */
	struct ferry_box *box; /* the rank's own; NULL: none */
	struct ferry_kernel_call blank;          /* all that is the same for every call */
	void *adds;            /* cells of its ADDs, of each parity (ipc/arena.h); NULL: not mapped */
	ferryChannels_t channels; /* for kernels of the caller's own; bytes 0: none, */
	char why_not[200];        /* as this says, if the caller has asked for them */
	struct ferry_mailbox_waits waits[FERRY_BOX_LINES]; /* the router monitor's */
};

/**
 * Makes and maps the mailboxes, loads the kernels, and agrees on both with the other ranks. It waits for them until
 * `until` (ferry_now_ns). Success, with `ready` false and the reason logged (FERRY_LOG=info), where the ranks have no
 * kernels. Errors: ferryInvalidArgument for FERRY_KERNELS; the job has failed meanwhile.
 */
ferryResult_t ferry_mailboxes_open(struct ferry_mailboxes *mailboxes, uint64_t until);

/**
 * Finds, alike on all ranks, whether each rank's GPU has room for the communicator's kernels of ADDs beside those of
 * other communicators of its process, and maps the cells of the rank's ADDs. Waits for the others until `until`.
 * Errors: the job has failed meanwhile; those of ferry_mailboxes_map_adds.
 */
ferryResult_t ferry_mailboxes_make_room(struct ferry_mailboxes *mailboxes, uint64_t until, bool *room);

/** Maps the cells of the rank's ADDs, once; of ranks that have kernels. A box that has them is not used again. */
ferryResult_t ferry_mailboxes_map_adds(struct ferry_mailboxes *mailboxes);

/** Counts a call that a kernel carries. Under the communicator's lock. */
void ferry_mailboxes_count(struct ferry_mailboxes *mailboxes);

/** Returns when all calls are over, those of launched graphs, too, or the rank has failed. */
void ferry_mailboxes_wait(struct ferry_mailboxes *mailboxes);

/** No more calls come, and those that were launched are over, or end at once. Waits for nothing. */
void ferry_mailboxes_close(struct ferry_mailboxes *mailboxes);

#endif
