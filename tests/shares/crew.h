/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The ranks of ferry-shares: a thread for each GPU of this process, with a communicator of NCCL's as libferry-nccl.so
 * has it. Settings of the environment hold for the communicators that are made after them.
 */
#ifndef FERRY_TESTS_SHARES_CREW_H
#define FERRY_TESTS_SHARES_CREW_H

#include "orchestrator/nccl_types.h"

#include <pthread.h>
#include <stdbool.h>

#define CREW_MOST 16

enum crew_collective { CREW_ALLREDUCE, CREW_ALLGATHER, CREW_REDUCESCATTER, CREW_COLLECTIVES };

struct crew {
	int nranks;
	size_t bytes;  /* of each of a rank's two buffers */
	ncclUniqueId id;
	pthread_barrier_t together;
	const char *(*work)(struct crew *crew, int rank, ncclComm_t comm, void *argument);
	void *argument;
	void *buffers[CREW_MOST][2];
	void *streams[CREW_MOST];
	int ordinals[CREW_MOST];
};

/** Opens the library, and a stream and buffers on each GPU. NULL, or why not. */
const char *crew_open(struct crew *crew, const char *library, int nranks, size_t bytes);
void crew_close(struct crew *crew);

/** Runs work for each rank, in a thread of its own, with a communicator of its own. NULL, or what went wrong. */
const char *crew_run(struct crew *crew,
                     const char *(*work)(struct crew *crew, int rank, ncclComm_t comm, void *argument), void *argument);

/**
 * Enqueues a call that moves so many bytes at most on any rank, between the rank's buffers. NULL, or what NCCL says.
 */
const char *crew_call(struct crew *crew, int rank, ncclComm_t comm, enum crew_collective collective, size_t bytes);

/** Until the stream is done. */
const char *crew_wait(struct crew *crew, int rank);

/** The share of the host, of all calls of communicators that are made from now on; negative: what is learned. */
void crew_pin(double share);

const char *crew_name(enum crew_collective collective);

/** False for a name that there is not. */
bool crew_named(const char *name, enum crew_collective *collective);

#endif
