/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Ferry's communicator beside one of NCCL's, and what its ranks agree on by it. Made by a thread of its own while NCCL
 * goes on alone, from the first call on that is worth it; of ranks that never come, on another host or without Ferry,
 * nobody hears anything: the thread gives up after FERRY_ATTACH_TIMEOUT. Later it shows buffers to the routers
 * (showing.h); otherwise it sleeps.
 *
 * - `state` is the thread's, release; before it, the thread writes all that is marked as constant.
 * - The lock is for the numbers of calls, and for what a call takes by them: calls of a communicator are made in one
 *   order, so nobody waits for it.
 */
#ifndef FERRY_ORCHESTRATOR_SHADOW_COMM_H
#define FERRY_ORCHESTRATOR_SHADOW_COMM_H

#include "ferry.h"
#include "ipc/agreement.h"
#include "ipc/shares.h"
#include "orchestrator/key.h"
#include "orchestrator/meter.h"
#include "orchestrator/preregister.h"
#include "orchestrator/tally.h"

#include <pthread.h>

enum ferry_shadow_comm_state { FERRY_SHADOW_COMM_MAKING, FERRY_SHADOW_COMM_READY, FERRY_SHADOW_COMM_NONE };

/* The messages of this rank and another one, in one direction. */
struct ferry_shadow_comm_pair {
	struct ferry_agreement agreement;
	uint64_t made; /* messages that are worth it */
	bool joined;
};

struct ferry_shadow_comm {
	_Atomic uint32_t state; /* enum ferry_shadow_comm_state; futex word: the thread */
	_Atomic bool abandoned; /* who ends or revokes it */
	struct ferry_maker maker;
	pthread_t thread;
	bool begun;             /* under the lock */
	/* constant */
	struct ferry_nccl_key key;
	int rank, nranks, device;
	/* constant once it is ready */
	ferryComm_t comm;
	struct ferry_preregister preregister; /* by itself */
	struct ferry_tally tally;     /* who makes calls */

	pthread_mutex_t lock; /* of all below */
	struct ferry_meter meter;
	struct ferry_agreement agreement;
	uint64_t made; /* calls that are worth it; messages apart */
	bool alike; /* all ranks are known to number the same calls */
	bool failed, lost;
	uint64_t confirmed; /* submissions that have ended while nothing had failed */
	bool captured;      /* graphs have calls of Ferry's */
	struct ferry_shadow_comm_pair *pairs[2]; /* [sends][peer] */
};

/** One that counts calls, and is not begun. NULL, with a line in the log: no memory, or settings that cannot be. */
struct ferry_shadow_comm *ferry_shadow_comm_new(const struct ferry_nccl_key *key, int rank, int nranks, int device);

/** Starts the thread that makes Ferry's communicator. Once. */
void ferry_shadow_comm_begin(struct ferry_shadow_comm *shadow_comm);

/* Who makes a call, while its word is taken. Under the lock. */
struct ferry_shadow_comm_caller {
	uint32_t (*propose)(void *argument, uint64_t n); /* the word for call n, if nobody has sealed another */
	void (*agreed)(void *argument, uint64_t n, uint32_t word); /* where all ranks look calls up */
	void *argument;
};

/**
 * The word of this rank's next call, or of its next message to or from a peer (ipc/agreement.h). For every one that is
 * worth it, in the program's order, whatever becomes of it.
 */
uint32_t ferry_shadow_comm_take(struct ferry_shadow_comm *shadow_comm, const struct ferry_shadow_comm_caller *caller,
                                uint64_t *n);
uint32_t ferry_shadow_comm_take_message(struct ferry_shadow_comm *shadow_comm, int peer, bool sends,
                                        const struct ferry_shadow_comm_caller *caller);

/* What such calls are called on all ranks, and whose they are. */
struct ferry_shadow_comm_kind {
	/* those that differ in FERRY_SHADOW_COMM_IN_PLACE alone are one to ranks of which some call in place */
	uint64_t name;
	int peer;      /* of messages the other end; -1: all ranks */
};

/**
 * Under the lock, in a proposal: says whether this rank wants Ferry to have such calls. True where any rank does: then
 * what this rank's routers need of it is to be shown. *all_shown: the others have.
 */
bool ferry_shadow_comm_is_wanted(struct ferry_shadow_comm *shadow_comm, struct ferry_shadow_comm_kind kind, bool wanted,
                                 bool *all_shown);

/**
 * Whether this rank's routers have what the call needs; if not, has it shown, and says so. now: the call would have it.
 * Where so many calls are under way that its stream does not reach it soon, the rank waits for it, for half of that
 * time at most: the stream loses nothing, and a program that runs ahead would have made many calls without it.
 */
bool ferry_shadow_comm_has_shown(struct ferry_shadow_comm *shadow_comm, const struct ferry_preregister_asked *call,
                                 bool now);

#define FERRY_SHADOW_COMM_IN_PLACE 1u

/** Waits, at most until `deadline` (ferry_now_ns), until it is known whether there is a communicator of Ferry's. */
void ferry_shadow_comm_await(struct ferry_shadow_comm *shadow_comm, uint64_t deadline);

/** Whether there is a communicator of Ferry's; from then on `comm` may be read. */
bool ferry_shadow_comm_is_ready(const struct ferry_shadow_comm *shadow_comm);

/** Whether parts can be given to it now. Notes, once, and says in the log, that it has failed. */
bool ferry_shadow_comm_works(struct ferry_shadow_comm *shadow_comm);

/** This rank cannot do its part: no more splits, on any rank. Says why in the log, once. */
void ferry_shadow_comm_withdraw(struct ferry_shadow_comm *shadow_comm, const char *why);

/** Graphs have calls of its from now on: nobody hears when those are replayed. */
void ferry_shadow_comm_captured(struct ferry_shadow_comm *shadow_comm);

/** Whether a part that it had may not have arrived. */
bool ferry_shadow_comm_lost(struct ferry_shadow_comm *shadow_comm);

/**
 * It is about to be ended. True: the communicator is still being made, so no call has a part of it; its thread may be
 * waiting for the device, which may wait for NCCL.
 */
bool ferry_shadow_comm_abandon(struct ferry_shadow_comm *shadow_comm);

/**
 * Its calls under way are given up, on all ranks, so that nobody's stream waits for them; there are none where it is
 * still being made, which ends. It is NCCL's alone from now on.
 */
void ferry_shadow_comm_revoke(struct ferry_shadow_comm *shadow_comm);

/** Waits for its calls, if they may end, and frees it. abort: they are given up. NULL is fine. */
void ferry_shadow_comm_end(struct ferry_shadow_comm *shadow_comm, bool abort);

#endif
