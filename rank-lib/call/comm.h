/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A communicator: the parts that make up one rank of one job, behind the public handle. Each part has its own header,
 * which says which threads may use it; no part includes this header. The functions of the API open it, and launch.c on
 * their behalf.
 */
#ifndef FERRY_RANK_LIB_CALL_COMM_H
#define FERRY_RANK_LIB_CALL_COMM_H

#include "rank-lib/api/registrations.h"
#include "rank-lib/api/user_programs.h"
#include "rank-lib/attach/routers.h"
#include "rank-lib/call/direct.h"
#include "rank-lib/call/mapped.h"
#include "rank-lib/call/plans.h"
#include "rank-lib/call/short_call.h"
#include "rank-lib/failover/takeover.h"
#include "rank-lib/kernels/mailboxes.h"

struct ferryComm {
	_Atomic uint64_t magic; /* FERRY_COMM_MAGIC until it is ended; written by the threads that make and end it;
	                           relaxed */
	struct ferry_holders holders;
	struct ferry_rank rank;
	/* constant once it is made */
	struct ferry_routers routers;
	struct ferry_topology topology;
	struct ferry_device *device;
	/* one of the two: `mapped` on GPUs, which has submissions.ring, else `direct` */
	struct ferry_mapped mapped;
	struct ferry_direct direct;
	struct ferry_stream_flag_table flags; /* on GPUs */
	struct ferry_takeovers takeovers;
	struct ferry_mailboxes mailboxes; /* of calls that kernels carry, on GPUs */
	struct ferry_journal journal; /* what the rank has given to routers, for their successors */
	struct ferry_redops redops;

	pthread_mutex_t lock; /* of all below, and of what `mapped` and `direct` do for calls */
	struct ferry_short_calls shorts; /* of `direct` */
	struct ferry_numbering numbers;
	struct ferry_fabrics fabrics;
	struct ferry_plans plans;
	struct ferry_user_programs programs;
	struct ferry_registrations registrations;
	uint64_t splits;
	_Atomic bool finalized; /* calls are refused; read without the lock, relaxed, for a first look */
	bool closed;            /* a thread ends it, and no thread is inside any more */
};

#define FERRY_COMM_MAGIC 0x6665727279436f6dull

/** Fills in what a communicator made out of this one takes from it, where `config` leaves that open. */
void ferry_comm_inherit(const struct ferryComm *comm, ferryConfig_t *config);

/** ferryInvalidArgument unless comm is a live communicator; ferryInvalidUsage in a child that its process forked. */
ferryResult_t ferry_comm_check(struct ferryComm *comm);

/**
 * Every function of the API begins with this: ferry_comm_check, then holds the communicator, so that its memory stays
 * until ferry_comm_release even if another thread ends it. A call that comes after the end has returned reads freed
 * memory.
 */
ferryResult_t ferry_comm_hold(struct ferryComm *comm);
void ferry_comm_release(struct ferryComm *comm);

/**
 * Takes the lock before using connections or making calls; a thread that ends the communicator waits for
 * ferry_comm_exit. A thread inside must check while it waits whether the rank has failed. Errors: ferryInvalidUsage if
 * the communicator was ended meanwhile, or the rank's failure; then the lock is not taken.
 */
ferryResult_t ferry_comm_enter(struct ferryComm *comm);
/** The same for calls by kernels, which need no router. Of another call ferry_rank_failed is checked yet. */
ferryResult_t ferry_comm_enter_kernels(struct ferryComm *comm);
void ferry_comm_exit(struct ferryComm *comm);

/** Returns the communicator that these holders belong to. */
struct ferryComm *ferry_comm_of(struct ferry_holders *holders);

/** The same without waiting: returns false, too, if another thread is inside. */
bool ferry_comm_try_enter(struct ferryComm *comm);

/** Checks the connections, unless another thread is inside, which notices itself. */
void ferry_comm_check_sockets(struct ferryComm *comm);

/** Whether a router moves the rank's data. */
bool ferry_comm_is_mapped(const struct ferryComm *comm);

/**
 * Makes a communicator with its number only, and connects its parts to each other. It is freed when its handle and all
 * its calls have been released. Error: ferrySystemError.
 */
ferryResult_t ferry_comm_new(int nranks, const uint8_t *key, int rank, struct ferryComm **comm);

/**
 * Ends the calls: the lanes end, or the router is not watched any more; then the rank leaves its routers. To be called
 * while the caller is still an ordinary thread of the application.
 */
void ferry_comm_leave(struct ferryComm *comm, bool abort);

#endif
