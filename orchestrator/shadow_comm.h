/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The shadow communicator: Ferry's communicator beside one of NCCL's, and what its ranks agree on by it. A thread of
 * its own makes it while NCCL goes on alone, from where calls are worth it. If ranks never come, because they
 * are on another host or without Ferry, no caller notices: the thread gives up after FERRY_ATTACH_TIMEOUT. Later the
 * thread preregisters buffers with the routers (preregister.h); otherwise it sleeps.
 *
 * - `state` is the thread's, release; before it, the thread writes all that is marked as constant.
 * - The lock is for the numbers of calls, and for the agreement of each call. The calls of a communicator are made in
 *   one order, so no thread waits for it.
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

/* What ranks number: the communicator's calls, or the messages of this rank and another one, in one direction. */
struct ferry_shadow_comm_numbers {
	struct ferry_agreement agreement;
	uint64_t made; /* so far */
	_Atomic bool kernels_begun; /* kernels.h; before that all are numbered; read without the lock, relaxed */
};

struct ferry_shadow_comm {
	_Atomic uint32_t state; /* enum ferry_shadow_comm_state; futex word: the thread */
	_Atomic bool abandoned; /* set by the thread that ends or revokes it */
	struct ferry_maker maker;
	pthread_t thread;
	_Atomic bool begun;     /* the thread; under the lock */
	_Atomic bool awaited;   /* by a captured call; of the threads that make calls */
	/* constant */
	struct ferry_nccl_key key;
	int rank, nranks, device;
	bool tuned; /* NCCL takes tunings for its communicator */
	/* constant once it is ready */
	ferryComm_t comm;
	bool kernels; /* it has them, on all ranks */
	struct ferry_preregister preregister; /* by itself */
	struct ferry_tally tally;     /* of the threads that make calls */

	pthread_mutex_t lock; /* of all below */
	struct ferry_meter meter;
	struct ferry_shadow_comm_numbers calls, *pairs[2]; /* messages: [sends][peer] */
	uint64_t messages; /* of all pairs */
	bool alike; /* all ranks are known to number the same calls */
	bool failed, lost;
	uint64_t confirmed; /* submissions that have ended while nothing had failed */
	bool captured;      /* graphs hold calls of Ferry's */
};

/**
 * Makes one that counts calls, and is not begun. Returns NULL without memory. If a setting is invalid, logs it and
 * returns one that stays as after a failed making (ferry_shadow_comm_is_none): so no later call makes it again.
 */
struct ferry_shadow_comm *ferry_shadow_comm_new(const struct ferry_nccl_key *key, int rank, int nranks, int device);

/** Starts the thread that makes Ferry's communicator, unless it has been started. */
void ferry_shadow_comm_begin(struct ferry_shadow_comm *shadow_comm);

/**
 * A call is about to be made. Begins it where that is worth its time and memory: with the first call that is large, or
 * captured, or the eighth; of more than two ranks eight messages count as one. To be called for a whole group before
 * any of its calls is decided, as the group may have the calls of all ranks of a communicator.
 */
void ferry_shadow_comm_expect(struct ferry_shadow_comm *shadow_comm, bool large, bool captured);

/**
 * The first captured call waits for it, as a graph keeps what it has captured: for FERRY_SPLIT_WAIT seconds at most, 1
 * where that is unset.
 */
void ferry_shadow_comm_await_for_capture(struct ferry_shadow_comm *shadow_comm);

/* The caller of ferry_shadow_comm_take. Under the lock. */
struct ferry_shadow_comm_caller {
	uint32_t (*propose)(void *argument, uint64_t n); /* the packed shares for call n, if no rank has agreed on
	                                                    them yet */
	void (*agreed)(void *argument, uint64_t n, uint32_t word); /* if all ranks look calls up */
	void *argument;
};

/**
 * Returns the packed shares of this rank's next call, or of its next message to or from a peer, on which the ranks
 * agree (ipc/agreement.h). To be called for every call and every message that is numbered (kernels.h), in the program's
 * order, whatever becomes of it.
 */
uint32_t ferry_shadow_comm_take(struct ferry_shadow_comm *shadow_comm, const struct ferry_shadow_comm_caller *caller,
                                uint64_t *n);
uint32_t ferry_shadow_comm_take_message(struct ferry_shadow_comm *shadow_comm, int peer, bool sends,
                                        const struct ferry_shadow_comm_caller *caller);

/* The name of a kind of calls on all ranks, and the ranks that make them. */
struct ferry_shadow_comm_kind {
	/*
	 * Some ranks of a call may call in place and others not. So where a rank has published nothing for this name,
	 * its entry for the name with the other FERRY_SHADOW_COMM_IN_PLACE bit counts.
	 */
	uint64_t name;
	int peer;      /* of messages the other end; -1: all ranks */
};

/**
 * Under the lock, in a proposal: publishes whether this rank wants Ferry to have such calls. Returns true if any rank
 * does: then this rank preregisters what its routers need for it. *all_preregistered: the other ranks have done that.
 */
bool ferry_shadow_comm_is_wanted(struct ferry_shadow_comm *shadow_comm, struct ferry_shadow_comm_kind kind, bool wanted,
                                 bool *all_preregistered);

/**
 * Whether this rank's routers have what the call needs. If not, starts preregistering it. Publishes the answer, unless
 * it is unknown. now: the call is about to be made. Then, if earlier calls keep its stream busy for a while, this waits
 * for the preregistering, for half of that while at most. The stream does not run dry, and a program that runs ahead
 * would otherwise make many calls without Ferry.
 */
bool ferry_shadow_comm_has_preregistered(struct ferry_shadow_comm *shadow_comm,
                                         const struct ferry_preregister_asked *call, bool now);

#define FERRY_SHADOW_COMM_IN_PLACE 1u

/**
 * Waits, at most until `deadline` (ferry_now_ns), until Ferry's communicator is made and all ranks look calls up, or it
 * cannot be made. Returns at once where it has not begun.
 */
void ferry_shadow_comm_await(struct ferry_shadow_comm *shadow_comm, uint64_t deadline);

/** Whether there is a communicator of Ferry's; from then on `comm` may be read. */
bool ferry_shadow_comm_is_ready(const struct ferry_shadow_comm *shadow_comm);

/** Whether there will be none: the ranks never agree on anything. */
bool ferry_shadow_comm_is_none(const struct ferry_shadow_comm *shadow_comm);

/** Whether kernels carry calls from now on (kernels.h), or messages to or from a peer. */
static inline bool ferry_shadow_comm_kernels_begun(const struct ferry_shadow_comm *shadow_comm)
{
	return atomic_load_explicit(&shadow_comm->calls.kernels_begun, memory_order_relaxed);
}

static inline bool ferry_shadow_comm_messages_begun(const struct ferry_shadow_comm *shadow_comm, int peer, bool sends)
{
	return atomic_load_explicit(&shadow_comm->pairs[sends][peer].kernels_begun, memory_order_relaxed);
}

/** Whether it can take parts of calls now. Logs once that it has failed. */
bool ferry_shadow_comm_works(struct ferry_shadow_comm *shadow_comm);

/** This rank cannot take its part: no more calls are divided, on any rank. Logs the reason once. */
void ferry_shadow_comm_withdraw(struct ferry_shadow_comm *shadow_comm, const char *why);

/** Graphs hold calls of it from now on, whose replays are not seen here. */
void ferry_shadow_comm_captured(struct ferry_shadow_comm *shadow_comm);

/** Whether a part of a call that it had may not have arrived. */
bool ferry_shadow_comm_lost(struct ferry_shadow_comm *shadow_comm);

/**
 * To be called before it is ended. Returns true if the communicator is still being made, so that no call has a part of
 * it; its thread may be waiting for the device, which may wait for NCCL.
 */
bool ferry_shadow_comm_abandon(struct ferry_shadow_comm *shadow_comm);

/**
 * Gives up its calls under way, on all ranks, so that no stream waits for them. If it is still being made there are
 * none, and the making ends. From now on all calls are NCCL's.
 */
void ferry_shadow_comm_revoke(struct ferry_shadow_comm *shadow_comm);

/** Waits for its calls, if they may end, and frees it. abort: gives them up. Does nothing for NULL. */
void ferry_shadow_comm_end(struct ferry_shadow_comm *shadow_comm, bool abort);

#endif
