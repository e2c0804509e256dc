/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What Ferry knows of NCCL's communicators, beside them: handles stay NCCL's own. constructors.c adds and removes them;
 * every call looks its communicator up, without a lock and from any thread.
 *
 * The table is an array of chains of entries. An entry belongs to its chain for good: when its communicator ends it
 * loses its handle, and the next communicator whose handle falls into the chain gets it. So a thread that walks a chain
 * never leaves it, and no entry is freed while a thread may look at it; there are as many entries as communicators have
 * lived at a time.
 *
 * - `handle` is written under the table's lock. It is stored with release after all that the communicator begins with
 *   has been written, and a lookup loads it with acquire.
 * - `users` counts the table, while the communicator is there, and the threads that have looked it up. A lookup goes
 *   from a count above 0 to the next one, never from 0, then reads the handle once more: an entry that has changed its
 *   handle meanwhile is released again; if NCCL has given out the same handle again, it is the right entry. The thread
 *   that comes to 0 ends the entry's state, alone, and then marks it as free (release; the lock's owner acquires).
 * - A communicator is removed before NCCL frees it, so that no entry of a later one with the same handle is removed.
 *
 * The other fields' comments name their writers.
 */
#ifndef FERRY_ORCHESTRATOR_COMMUNICATORS_H
#define FERRY_ORCHESTRATOR_COMMUNICATORS_H

#include "orchestrator/key.h"
#include "orchestrator/nccl_tuner.h"
#include "orchestrator/nccl_types.h"
#include "orchestrator/shadow_comm.h"

#include <stdatomic.h>
#include <stdbool.h>

/** The states of a communicator. Bits are only added, except SUSPENDED, and states that NCCL has refused. */
enum ferry_nccl_comm_state {
	FERRY_NCCL_FINALIZED = 1, /* no calls any more */
	FERRY_NCCL_REVOKED = 2,
	FERRY_NCCL_SUSPENDED = 4
};

struct ferry_nccl_redop {
	struct ferry_nccl_redop *next;
	ncclRedOp_t op;
	ncclDataType_t type;
	ncclScalarResidence_t residence;
	void *device_scalar; /* ncclScalarDevice: read by NCCL when a call runs */
	unsigned char scalar[8];
};

/* How often communicators were made in one way (child_keys.h). */
struct ferry_nccl_way {
	struct ferry_nccl_way *next;
	struct ferry_nccl_key name;
	uint64_t times;
};

struct ferry_nccl_comm {
	_Atomic(ncclComm_t) handle;
	_Atomic unsigned users;
	atomic_bool vacant;
	struct ferry_nccl_comm *_Atomic next;

	/* of the thread that makes it, before the handle is stored */
	struct ferry_nccl_key key;
	bool has_key; /* ranks that joined by ncclCommGrow share none */
	bool copies;  /* made for copy engines: NCCL's own business */
	struct ferry_nccl_tuner *tuner; /* held; NULL: none */

	/* ferry_nccl_comm_learn: written by one thread (compare and exchange of `known`), then read. */
	_Atomic int known;
	int rank, nranks, device;

	_Atomic unsigned state;                    /* enum ferry_nccl_comm_state; of the thread that calls NCCL */
	_Atomic uint64_t calls;                    /* that Ferry has seen; of the thread that makes calls */
	bool miscounted;                           /* as ways: one is missing */
	struct ferry_nccl_way *ways;               /* under child_keys.c's lock; ended by the last user, alone */
	struct ferry_nccl_redop *redops;           /* under redops.c's lock; ended by the last user, alone */
	_Atomic(struct ferry_shadow_comm *) shadow_comm; /* Ferry's, once there is one; of the thread that begins it */
	_Atomic bool aborted; /* Ferry's is given up, not waited for; of the thread that calls NCCL for it */
};

/** What is known of a new communicator. */
struct ferry_nccl_pending_comm {
	struct ferry_nccl_key key;
	bool has_key, copies;
	bool child; /* made out of another one: Ferry's begins with its calls */
	struct ferry_nccl_tuner *tuner; /* of its creation; its communicator holds it, too */
};

/** Adds a communicator that NCCL has given out; an entry with the same handle that was not removed is forgotten. */
void ferry_nccl_comm_add(ncclComm_t handle, const struct ferry_nccl_pending_comm *pending_comm);

/**
 * Returns the communicator, which the caller releases by ferry_nccl_comm_release; NULL if Ferry has not seen it made.
 */
struct ferry_nccl_comm *ferry_nccl_comm_take(ncclComm_t handle);

/** Releases what ferry_nccl_comm_take has returned; does nothing for NULL. */
void ferry_nccl_comm_release(struct ferry_nccl_comm *comm);

/** Takes one more reference, for a caller that has one. */
void ferry_nccl_comm_hold(struct ferry_nccl_comm *comm);

/** To be called before NCCL ends it. What Ferry has for it ends when the last thread that uses it releases it. */
void ferry_nccl_comm_remove(ncclComm_t handle);

/**
 * Sets and clears bits of enum ferry_nccl_comm_state, if Ferry knows the communicator. Returns the bits that are new.
 */
unsigned ferry_nccl_comm_change(ncclComm_t handle, unsigned set, unsigned clear);

/**
 * To be called when NCCL has made it. For the process's first communicator with all its devices, Ferry's is begun now
 * instead of with its calls (ferry_shadow_comm_expect), and the caller waits for it, for a second at most: a quarter of
 * one is usual, and a short program, as a benchmark, would be over before Ferry has a call. Later communicators might
 * make few calls, and each communicator of Ferry's takes staging and memory of its GPU. FERRY_SPLIT_WAIT says how long
 * the caller waits for all that were begun together: ferry_nccl_comm_await, from when they were (ferry_now_ns).
 */
void ferry_nccl_comm_made(ncclComm_t handle);
void ferry_nccl_comm_await(ncclComm_t handle, uint64_t since_ns);

/**
 * To be called before it is aborted: no thread waits for Ferry's communicator any more. If Ferry's is still being made,
 * its thread may wait for what NCCL's abort ends: then returns the entry, which the caller releases after the abort.
 * Else returns NULL.
 */
struct ferry_nccl_comm *ferry_nccl_comm_give_up(ncclComm_t handle);

/**
 * To be called before NCCL stops its calls under way without ending it. Ferry's parts of them are given up first, as
 * NCCL waits for streams; later calls are NCCL's. Returns the bits of its state that are new.
 */
unsigned ferry_nccl_comm_revoke(ncclComm_t handle);

/** Whether a part that Ferry had of a call may not have arrived, though the communicator was not revoked. */
bool ferry_nccl_comm_lost(ncclComm_t handle);

/**
 * Asks NCCL for rank, size and device, once, when the communicator is ready. The first time rank 0 logs that Ferry
 * watches it, or why it is NCCL's alone. Returns false if NCCL does not answer: it is not ready, or has failed.
 */
bool ferry_nccl_comm_learn(struct ferry_nccl_comm *comm);

/** Returns Ferry's communicator beside a learned one, which may not have begun. NULL if there can be none. */
struct ferry_shadow_comm *ferry_nccl_comm_shadow_comm(struct ferry_nccl_comm *comm);

#endif
