/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What Ferry knows of NCCL's communicators, beside them: handles stay NCCL's own. constructors.c adds and removes,
 * every call looks its communicator up, without a lock and from any thread.
 *
 * The table is an array of chains of entries. An entry belongs to its chain for good: where its communicator ends it
 * loses its handle, and the next one whose handle falls into the chain has it. So who walks a chain never leaves it,
 * and no memory goes while somebody may look at it; there are as many entries as communicators have lived at a time.
 *
 * - `handle` is written under the table's lock. It is stored with release after all that the communicator begins with
 *   has been written, and who looks up loads it with acquire.
 * - `users` counts the table, while the communicator is there, and those who have looked it up. Looking up goes from a
 *   count above 0 to the next one, never from 0, then reads the handle once more: an entry that has changed hands
 *   between is let go again, or, if NCCL has given out the same handle again, is the right one. Who comes to 0 ends the
 *   entry's state, alone, and then marks it as free (release; the lock's owner acquires).
 * - A communicator is removed before NCCL frees it, so that no entry of a later one with the same handle is.
 *
 * The other fields say who writes them.
 */
#ifndef FERRY_ORCHESTRATOR_COMMUNICATORS_H
#define FERRY_ORCHESTRATOR_COMMUNICATORS_H

#include "orchestrator/key.h"
#include "orchestrator/nccl_types.h"
#include "orchestrator/shadow_comm.h"

#include <stdatomic.h>
#include <stdbool.h>

/** What has become of it. Only ever more, but for SUSPENDED, and for what NCCL has refused. */
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

/* By the same ranks that go. */
struct ferry_nccl_shrink {
	struct ferry_nccl_shrink *next;
	struct ferry_nccl_key excluded;
	uint64_t times;
};

struct ferry_nccl_comm {
	_Atomic(ncclComm_t) handle;
	_Atomic unsigned users;
	atomic_bool vacant;
	struct ferry_nccl_comm *_Atomic next;

	/* Of who makes it, before the handle is stored. */
	struct ferry_nccl_key key;
	bool has_key; /* ranks that joined by ncclCommGrow share none */
	bool copies;  /* made for copy engines: NCCL's own business */

	/* ferry_nccl_comm_learn: written by one thread (compare and exchange of `known`), then read. */
	_Atomic int known;
	int rank, nranks, device;

	_Atomic unsigned state;                    /* enum ferry_nccl_comm_state; of who calls NCCL for it */
	_Atomic uint64_t calls;                    /* that Ferry has seen; of who makes them */
	_Atomic uint64_t splits;                   /* of who makes them */
	struct ferry_nccl_shrink *shrinks;         /* under descent.c's lock; ended by the last user, alone */
	_Atomic(struct ferry_nccl_redop *) redops; /* under redops.c's lock */
	_Atomic(struct ferry_shadow_comm *) shadow_comm; /* Ferry's, once there is one; of who begins it */
	_Atomic bool aborted; /* Ferry's is given up, not waited for; of who calls NCCL for it */
};

/** How a new communicator is known. */
struct ferry_nccl_pending_comm {
	struct ferry_nccl_key key;
	bool has_key, copies;
};

/** Adds a communicator that NCCL has given out; one of the same handle that nobody has removed is forgotten. */
void ferry_nccl_comm_add(ncclComm_t handle, const struct ferry_nccl_pending_comm *pending_comm);

/** The communicator, to be let go of with ferry_nccl_comm_release; NULL for one that Ferry has not seen made. */
struct ferry_nccl_comm *ferry_nccl_comm_take(ncclComm_t handle);

/** Lets go of what ferry_nccl_comm_take has given; NULL is fine. */
void ferry_nccl_comm_release(struct ferry_nccl_comm *comm);

/** Takes it once more, for who has it. */
void ferry_nccl_comm_hold(struct ferry_nccl_comm *comm);

/** Before NCCL ends it. What Ferry has for it ends when the last thread that uses it lets go. */
void ferry_nccl_comm_remove(ncclComm_t handle);

/** Sets and clears bits of enum ferry_nccl_comm_state, if Ferry knows the communicator. Returns those that are new. */
unsigned ferry_nccl_comm_change(ncclComm_t handle, unsigned set, unsigned clear);

/**
 * NCCL has made it: of the process's first one, on all its devices, Ferry's is begun now and not with the first call
 * that is worth it, which most programs do not wait for. Others might never make such a call: a communicator of Ferry's
 * has staging. With FERRY_SPLIT_WAIT the caller then waits for those that were begun: ferry_nccl_comm_await.
 */
void ferry_nccl_comm_made(ncclComm_t handle);
void ferry_nccl_comm_await(ncclComm_t handle);

/**
 * It is about to be aborted: nobody waits for what Ferry has of it. Not NULL: Ferry's is just being made, and may wait
 * for what NCCL's abort ends; to be released behind that.
 */
struct ferry_nccl_comm *ferry_nccl_comm_give_up(ncclComm_t handle);

/**
 * NCCL is about to stop its calls under way, but not to end it. Ferry's part of them is given up first, as NCCL waits
 * for streams; later ones are NCCL's. Returns the bits of its state that are new.
 */
unsigned ferry_nccl_comm_revoke(ncclComm_t handle);

/** Whether a part of one of its calls that Ferry had may not have arrived, and nobody has asked for that. */
bool ferry_nccl_comm_lost(ncclComm_t handle);

/**
 * Asks NCCL for rank, size and device, once, when the communicator is ready; the first time rank 0 says in the log that
 * it is watched, or why it is NCCL's alone. False where NCCL does not tell: it is not ready, or has failed.
 */
bool ferry_nccl_comm_learn(struct ferry_nccl_comm *comm);

/** Ferry's communicator beside it, begun by who asks first; NULL where there can be none. Of one that is learned. */
struct ferry_shadow_comm *ferry_nccl_comm_shadow_comm(struct ferry_nccl_comm *comm);

#endif
