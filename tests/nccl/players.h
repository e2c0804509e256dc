/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Ranks of a communicator of NCCL's on the double of the CUDA driver, as threads of this process, beside the double of
 * NCCL; a router of Ferry's in a process of its own moves the data of Ferry's parts.
 */
#ifndef FERRY_TESTS_NCCL_PLAYERS_H
#define FERRY_TESTS_NCCL_PLAYERS_H

#include "tests/fake_cuda/places.h"
#include "tests/fake_cuda/routers.h"
#include "tests/nccl/ranks.h"

#include "orchestrator/shadow_comm.h"
#include "rank-lib/call/comm.h"

#define LARGE (300 << 10) /* elements of 4 bytes: over the floor */
#define SMALL 100
#define MOST  400 /* calls until all ranks have come together */
#define MANY  20000 /* until kernels carry them */

struct player {
	struct rank rank; /* first: its thread and communicator */
	CUstream stream, second; /* second: for tests that make one */
	CUdeviceptr memory[2];
	float *in, *out;          /* where this process has them */
	void *send, *receive;     /* as calls take them */
};

static inline void buffers_open(struct player *player)
{
	CUcontext context;
	EQUAL(cuDevicePrimaryCtxRetain(&context, player->rank.rank), 0);
	EQUAL(cuCtxSetCurrent(context), 0);
	EQUAL(cuStreamCreate(&player->stream, CU_STREAM_NON_BLOCKING), 0);
	for (int i = 0; i < 2; i++)
		EQUAL(cuMemAlloc(&player->memory[i], (size_t)LARGE * RANKS * sizeof(float) * 2), 0);
	player->in = fake_cuda_reach(player->memory[0]);
	player->out = fake_cuda_reach(player->memory[1]);
	player->send = pointer_of(player->memory[0]);
	player->receive = pointer_of(player->memory[1]);
}

static inline void player_open(struct player *player)
{
	buffers_open(player);
	NCCL(ncclCommInitRank(&player->rank.comm, RANKS, player->rank.id, player->rank.rank));
}

static inline void buffers_close(struct player *player)
{
	for (int i = 0; i < 2; i++)
		EQUAL(cuMemFree(player->memory[i]), 0);
	EQUAL(cuStreamDestroy(player->stream), 0);
	EQUAL(cuDevicePrimaryCtxRelease(player->rank.rank), 0);
}

static inline void player_close(struct player *player)
{
	NCCL(ncclCommDestroy(player->rank.comm));
	buffers_close(player);
}

/* Waited for politely: a rank that fails ends the process, and its router with it. */
static inline void settle(struct player *player)
{
	EQUAL(cuStreamSynchronize(player->stream), 0);
}

/* Calls that Ferry has had a part of. */
static inline uint64_t parts_of(struct player *player)
{
	struct ferry_nccl_comm *comm = ferry_nccl_comm_take(player->rank.comm);
	struct ferry_shadow_comm *shadow_comm = atomic_load(&comm->shadow_comm);
	uint64_t parts = shadow_comm && ferry_shadow_comm_is_ready(shadow_comm) ? shadow_comm->comm->journal.calls : 0;
	ferry_nccl_comm_release(comm);
	return parts;
}

#define RUN 500 /* elements that are written or judged at a time */

UNSEEN static inline float value_of(int rank, size_t at, int round)
{
	return (float)((at * 7 + (size_t)round * 3) % 1000 + (size_t)(rank + 1) * 1000);
}

/* The sums of so many ranks' elements. */
UNSEEN static inline void make_run(float *run, int rank, int nranks, size_t first, size_t length, int round)
{
	for (size_t i = 0; i < length; i++) {
		run[i] = 0;
		for (int from = rank; from < rank + nranks; from++)
			run[i] += value_of(from, first + i, round);
	}
}

static inline void fill(struct player *player, size_t count, int round)
{
	float run[RUN];
	for (size_t at = 0; at < count; at += RUN) {
		size_t length = count - at < RUN ? count - at : RUN;
		make_run(run, player->rank.rank, 1, at, length, round);
		sampled_copy(player->in + at, run, length * sizeof *run);
	}
	sampled_set(player->out, 0, count * sizeof *player->out);
}

static inline void check_sum(struct player *player, size_t count, int round)
{
	float run[RUN];
	for (size_t at = 0; at < count; at += RUN) {
		size_t length = count - at < RUN ? count - at : RUN, i = 0;
		make_run(run, 0, RANKS, at, length, round);
		if (sampled_same(player->out + at, run, length * sizeof *run))
			continue;
		while (player->out[at + i] == run[i])
			i++;
		fprintf(stderr, "rank %d, round %d: element %zu is %g, not %g\n", player->rank.rank, round, at + i,
		        (double)player->out[at + i], (double)run[i]);
		HOLDS(!"the sum");
	}
}

/* AllReduces of changing lengths until Ferry has had a part of `enough` of them. Returns how many it took. */
static inline int reduce_until(struct player *player, uint64_t enough)
{
	uint64_t before = parts_of(player);
	int round = 0;
	for (; round < MOST && parts_of(player) - before < enough; round++) {
		size_t count = LARGE - (size_t)(round % 5) * 1001;
		fill(player, count, round);
		NCCL(ncclAllReduce(player->send, player->receive, count, ncclFloat32, ncclSum, player->rank.comm,
		                   (cudaStream_t)player->stream));
		settle(player);
		check_sum(player, count, round);
	}
	HOLDS(round < MOST);
	return round;
}

static inline void run(void (*work)(struct rank *rank))
{
	struct player *players = calloc(RANKS, sizeof *players);
	ncclUniqueId id;
	setenv("FERRY_SPLIT_FLOOR", "256K", 0); /* buffers here are short */
	domains_open(1);
	NCCL(ncclGetUniqueId(&id));
	for (int i = 0; i < RANKS; i++) {
		players[i].rank.rank = i;
		players[i].rank.id = id;
		players[i].rank.work = work;
		pthread_create(&players[i].rank.thread, NULL, rank_main, &players[i].rank);
	}
	for (int i = 0; i < RANKS; i++)
		pthread_join(players[i].rank.thread, NULL);
	free(players);
	domains_close();
}

/* The same with everything by Ferry's host, and a barrier of all ranks, of the caller's. */
static inline void run_by_host_alone(pthread_barrier_t *together, void (*work)(struct rank *rank))
{
	pthread_barrier_init(together, NULL, RANKS);
	setenv("FERRY_SHARES", "nccl:0,host:1", 1);
	run(work);
	unsetenv("FERRY_SHARES");
	pthread_barrier_destroy(together);
}

/** An AllGather that is checked. */
static inline void gather_blocks(struct player *player, size_t block, int round)
{
	fill(player, block, round);
	NCCL(ncclAllGather(player->send, player->receive, block, ncclFloat32, player->rank.comm,
	                   (cudaStream_t)player->stream));
	settle(player);
	for (size_t from = 0; from < RANKS; from++)
		HOLDS(player->out[(from + 1) * block - 1] == value_of((int)from, block - 1, round));
}

static inline void gather_round(struct player *player, int round)
{
	gather_blocks(player, LARGE / RANKS, round);
}

static inline struct ferry_shadow_comm *shadow_of(ncclComm_t handle)
{
	struct ferry_nccl_comm *comm = ferry_nccl_comm_take(handle);
	struct ferry_shadow_comm *shadow_comm = comm ? atomic_load(&comm->shadow_comm) : NULL;
	ferry_nccl_comm_release(comm); /* the program's */
	return shadow_comm;
}

/* Calls that kernels have carried, or hold in a graph. */
static inline uint64_t kernels_in(ncclComm_t comm)
{
	struct ferry_shadow_comm *shadow_comm = shadow_of(comm);
	return shadow_comm ? ferry_tally_kernels(&shadow_comm->tally) : 0;
}

/* Until kernels carry its calls. */
static inline void warm_up_in(struct player *player, ncclComm_t comm)
{
	int round = 0;
	for (; round < MANY && !kernels_in(comm); round++) {
		NCCL(ncclAllReduce(player->send, player->receive, SMALL, ncclFloat32, ncclSum, comm,
		                   (cudaStream_t)player->stream));
		settle(player);
		doze(1);
	}
	HOLDS(round < MANY);
}

/* Kernels that were launched, plain ones. */
static inline uint32_t launches_in(ncclComm_t comm)
{
	const struct ferry_kernel_order *orders = shadow_of(comm)->comm->mailboxes.box->orders;
	return orders[FERRY_BOX_CALLS].plain + orders[FERRY_BOX_MESSAGES].plain;
}

#endif
