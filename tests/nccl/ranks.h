/* SPDX-License-Identifier: Apache-2.0 */
/** Ranks of a communicator of NCCL's as threads of one process, over the double of NCCL. */
#ifndef FERRY_TESTS_NCCL_RANKS_H
#define FERRY_TESTS_NCCL_RANKS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "orchestrator/communicators.h"
#include "orchestrator/nccl_types.h"
#include "tests/fake_nccl/fake_nccl.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As programs declare them. */
#define NCCL_VALUE(since, type, name, parameters, arguments) extern type nccl##name parameters;
#include "orchestrator/functions.def"

#define RANKS 3
#define COUNT 1000

/* Of any thread, where cmocka's say nothing. */
#define HOLDS(condition)                                                                                               \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                        \
			abort();                                                                                       \
		}                                                                                                      \
	} while (0)
#define EQUAL(call, expected)                                                                                          \
	do {                                                                                                           \
		long got_ = (long)(call), wanted_ = (long)(expected);                                                  \
		if (got_ != wanted_) {                                                                                 \
			fprintf(stderr, "%s:%d: %s is %ld, not %ld\n", __FILE__, __LINE__, #call, got_, wanted_);      \
			abort();                                                                                       \
		}                                                                                                      \
	} while (0)
#define NCCL(call) EQUAL(call, ncclSuccess)

struct rank {
	int rank;
	ncclUniqueId id;
	ncclComm_t comm;
	void (*work)(struct rank *rank);
	float input[COUNT * RANKS], output[COUNT * RANKS];
	struct ferry_nccl_key key;
	pthread_t thread;
};

static inline void *rank_main(void *context)
{
	struct rank *rank = context;
	rank->work(rank);
	return NULL;
}

/** Runs work(rank) for RANKS ranks at once, each with the same id and input 1 + rank everywhere. */
static inline struct rank *ranks_run(void (*work)(struct rank *rank))
{
	struct rank *ranks = calloc(RANKS, sizeof *ranks);
	ncclUniqueId id;
	NCCL(ncclGetUniqueId(&id));
	for (int i = 0; i < RANKS; i++) {
		ranks[i].rank = i;
		ranks[i].id = id;
		ranks[i].work = work;
		for (int j = 0; j < COUNT * RANKS; j++)
			ranks[i].input[j] = (float)(1 + i);
	}
	for (int i = 0; i < RANKS; i++)
		pthread_create(&ranks[i].thread, NULL, rank_main, &ranks[i]);
	for (int i = 0; i < RANKS; i++)
		pthread_join(ranks[i].thread, NULL);
	return ranks;
}

static inline void ranks_init(struct rank *rank)
{
	NCCL(ncclCommInitRank(&rank->comm, RANKS, rank->id, rank->rank));
}

/** How many calls Ferry has looked at; -1: it does not know the communicator. */
static inline long calls_seen(ncclComm_t handle)
{
	struct ferry_nccl_comm *comm = ferry_nccl_comm_take(handle);
	long calls = comm ? (long)atomic_load(&comm->calls) : -1;
	ferry_nccl_comm_release(comm);
	return calls;
}

static inline ncclResult_t all_reduce(struct rank *rank, ncclComm_t comm)
{
	return ncclAllReduce(rank->input, rank->output, COUNT, ncclFloat32, ncclSum, comm, NULL);
}

#define SUM ((float)(RANKS * (RANKS + 1) / 2))

#endif
