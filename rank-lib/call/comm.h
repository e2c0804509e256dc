/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A communicator: the parts that make up one rank of one job, behind the public handle. Each part has its own header,
 * which says who may touch it; none of them knows this one. Opened by the functions of the API, and by launch.c on
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
#include "rank-lib/failover/takeover.h"

struct ferryComm {
	_Atomic uint64_t magic; /* FERRY_COMM_MAGIC until it is ended: whoever makes and ends it; relaxed */
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
	struct ferry_journal journal; /* what routers have of this rank, for their successors */
	struct ferry_redops redops;

	pthread_mutex_t lock; /* of all below, and of what `mapped` and `direct` do for calls */
	struct ferry_numbering numbers;
	struct ferry_fabrics fabrics;
	struct ferry_plans plans;
	struct ferry_user_programs programs;
	struct ferry_registrations registrations;
	uint64_t splits;
	pthread_mutex_t shrinking; /* of the next field, and held while it is shrunk */
	uint64_t shrinks;
	_Atomic bool finalized; /* calls are refused; read without the lock, relaxed, for a first look */
	bool closed;            /* somebody ends it, and no thread is inside any more */
};

#define FERRY_COMM_MAGIC 0x6665727279436f6dull

/** What a communicator that comes out of this one takes from it, where `config` leaves that open. */
void ferry_comm_inherit(const struct ferryComm *comm, ferryConfig_t *config);

/** ferryInvalidArgument unless comm is a live communicator; ferryInvalidUsage in a child that its process forked. */
ferryResult_t ferry_comm_check(struct ferryComm *comm);

/**
 * What a function of the API begins with: ferry_comm_check, and until ferry_comm_release the memory stays, whoever ends
 * the communicator meanwhile. Who comes after the end has returned may come to memory that is something else by then.
 */
ferryResult_t ferry_comm_hold(struct ferryComm *comm);
void ferry_comm_release(struct ferryComm *comm);

/**
 * Takes the lock, for what uses the connections or makes calls: who ends the communicator waits until it is given back
 * (ferry_comm_exit). Whoever is inside waits for nothing without looking whether the rank has failed. ferryInvalidUsage
 * where it has been ended meanwhile, or the failure: then the lock is not taken.
 */
ferryResult_t ferry_comm_enter(struct ferryComm *comm);
void ferry_comm_exit(struct ferryComm *comm);

/** Whose holders these are. */
struct ferryComm *ferry_comm_of(struct ferry_holders *holders);

/** The same for who need not: false also where somebody else is inside. */
bool ferry_comm_try_enter(struct ferryComm *comm);

/** Looks after the connections, unless somebody is inside, who would notice. */
void ferry_comm_check_sockets(struct ferryComm *comm);

/** Whether its router moves its data. */
bool ferry_comm_is_mapped(const struct ferryComm *comm);

/**
 * A communicator with nothing in it but its number, and its parts told of each other. It is freed when its handle and
 * all calls that lie in it are let go of. Error: ferrySystemError.
 */
ferryResult_t ferry_comm_new(int nranks, const uint8_t *key, int rank, struct ferryComm **comm);

/**
 * No more calls: its lanes end, or its router is not watched any more; then it leaves its routers. While the caller
 * still is an ordinary thread of the application.
 */
void ferry_comm_leave(struct ferryComm *comm, bool abort);

#endif
