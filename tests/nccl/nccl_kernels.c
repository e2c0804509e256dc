/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Short calls of NCCL programs that kernels of Ferry's carry: begun at one call on all ranks, whenever these come, in
 * streams, groups and graphs. Over both doubles; ranks are threads of this process.
 */
#include "tests/nccl/players.h"

#include <unistd.h>

#define SHORTS REPEATS(400, 150)

static pthread_barrier_t together;

/* ---- calls ---- */

static ncclResult_t reduce(struct player *player, size_t count)
{
	return ncclAllReduce(player->send, player->receive, count, ncclFloat32, ncclSum, player->rank.comm,
	                     (cudaStream_t)player->stream);
}

static void reduce_and_check(struct player *player, size_t count, int round)
{
	fill(player, count, round);
	NCCL(reduce(player, count));
	settle(player);
	check_sum(player, count, round);
}

static void warm_up(struct player *player)
{
	warm_up_in(player, player->rank.comm);
}

static void play(void (*work)(struct rank *rank))
{
	pthread_barrier_init(&together, NULL, RANKS);
	setenv("FERRY_SHARES", "nccl:0.5,host:0.5", 0); /* from the floor on */
	run(work);
	pthread_barrier_destroy(&together);
}

/* ---- where they begin ---- */

static int begins[RANKS];

/* Nobody waits for anybody but in the calls themselves; each rank finds the first one by itself. */
static void come_late(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	player_open(player);
	begins[rank->rank] = -1;
	for (int i = 0; i < MANY && (begins[rank->rank] < 0 || i < begins[rank->rank] + SHORTS); i++) {
		uint64_t before = kernels_in(rank->comm);
		if (i % 50 == 7 * rank->rank)
			settle(player); /* now this rank is ahead, now that one */
		if (i == 20 && rank->rank == 1)
			usleep(20000);
		NCCL(reduce(player, i % 7 ? SMALL : LARGE));
		bool kernel = kernels_in(rank->comm) > before;
		HOLDS(!kernel || i % 7);
		if (begins[rank->rank] < 0 && kernel)
			begins[rank->rank] = i;
		HOLDS(begins[rank->rank] < 0 || kernel == !!(i % 7)); /* and from then on they stay */
		usleep(begins[rank->rank] < 0 ? 1000 : 0);
	}
	settle(player);
	reduce_and_check(player, SMALL, 3);
	player_close(player);
}

static void kernels_begin_at_one_call_on_all_ranks(void **state)
{
	(void)state;
	setenv("FERRY_SPLIT_WAIT", "0", 1);
	for (int times = 0; times < REPEATS(3, 2); times++) {
		play(come_late);
		for (int rank = 0; rank < RANKS; rank++)
			assert_int_equal(begins[rank], begins[0]);
		assert_true(begins[0] > 0);
	}
	unsetenv("FERRY_SPLIT_WAIT");
}

/* As a program that makes a communicator, tries it, and captures what it will replay. */
static void capture_early(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	ncclComm_t second;
	CUgraph captured;
	CUgraphExec graph;
	player_open(player);
	NCCL(ncclCommSplit(rank->comm, 0, rank->rank, &second, NULL)); /* not the first one, which is waited for */
	reduce_and_check(player, SMALL, 0);
	NCCL(ncclAllReduce(player->send, player->receive, SMALL, ncclFloat32, ncclSum, second,
	                   (cudaStream_t)player->stream));
	settle(player);
	uint64_t before = kernels_in(second);
	pthread_barrier_wait(&together); /* the mode concerns all threads */
	EQUAL(cuStreamBeginCapture(player->stream, CU_STREAM_CAPTURE_MODE_GLOBAL), 0);
	for (int i = 0; i < 5; i++)
		NCCL(ncclAllReduce(player->send, player->receive, SMALL, ncclFloat32, ncclSum, second,
		                   (cudaStream_t)player->stream));
	EQUAL(cuStreamEndCapture(player->stream, &captured), 0);
	pthread_barrier_wait(&together);
	EQUAL(kernels_in(second) - before, 5);
	EQUAL(cuGraphInstantiateWithFlags(&graph, captured, 0), 0);
	EQUAL(cuGraphDestroy(captured), 0);
	for (int round = 0; round < 5; round++) {
		fill(player, SMALL, round);
		EQUAL(cuGraphLaunch(graph, player->stream), 0);
		settle(player);
		check_sum(player, SMALL, round);
		NCCL(ncclAllReduce(player->send, player->receive, SMALL, ncclFloat32, ncclSum, second,
		                   (cudaStream_t)player->stream)); /* plain ones between */
		settle(player);
	}
	EQUAL(cuGraphExecDestroy(graph), 0);
	NCCL(ncclCommDestroy(second));
	player_close(player);
}

static void what_is_captured_after_one_call_is_kernels(void **state)
{
	(void)state;
	setenv("FERRY_SPLIT_WAIT", "30", 1); /* a second is enough where nothing else runs */
	play(capture_early);
	unsetenv("FERRY_SPLIT_WAIT");
}

/* One thread that drives all devices: the first of its ranks that waits may not be the only one that has begun. */
static void what_one_thread_captures_for_several_gpus_is_kernels(void **state)
{
	static const int devices[RANKS] = {0, 1, 2};
	struct player *players = calloc(RANKS, sizeof *players);
	ncclComm_t first[RANKS];
	CUgraph captured[RANKS];
	CUgraphExec graph;
	CUcontext context;
	(void)state;
	domains_open(1);
	setenv("FERRY_SPLIT_WAIT", "30", 1);
	for (int i = 0; i < RANKS; i++) {
		players[i].rank.rank = i;
		buffers_open(&players[i]);
	}
	NCCL(ncclCommInitAll(first, RANKS, devices));
	NCCL(ncclGroupStart());
	for (int i = 0; i < RANKS; i++)
		NCCL(ncclCommSplit(first[i], 0, i, &players[i].rank.comm, NULL));
	NCCL(ncclGroupEnd());
	for (int i = 0; i < RANKS; i++)
		EQUAL(cuStreamBeginCapture(players[i].stream, CU_STREAM_CAPTURE_MODE_RELAXED), 0);
	NCCL(ncclGroupStart());
	for (int i = 0; i < RANKS; i++)
		NCCL(reduce(&players[i], SMALL));
	NCCL(ncclGroupEnd());
	for (int i = 0; i < RANKS; i++) {
		EQUAL(cuStreamEndCapture(players[i].stream, &captured[i]), 0);
		EQUAL(kernels_in(players[i].rank.comm), 1);
		fill(&players[i], SMALL, 1);
	}
	for (int i = 0; i < RANKS; i++) {
		EQUAL(cuStreamGetCtx(players[i].stream, &context), 0);
		EQUAL(cuCtxSetCurrent(context), 0);
		EQUAL(cuGraphInstantiateWithFlags(&graph, captured[i], 0), 0);
		EQUAL(cuGraphDestroy(captured[i]), 0);
		EQUAL(cuGraphLaunch(graph, players[i].stream), 0);
		EQUAL(cuGraphExecDestroy(graph), 0);
	}
	for (int i = 0; i < RANKS; i++) {
		settle(&players[i]);
		check_sum(&players[i], SMALL, 1);
	}
	for (int i = 0; i < RANKS; i++) {
		NCCL(ncclCommDestroy(first[i]));
		player_close(&players[i]);
	}
	unsetenv("FERRY_SPLIT_WAIT");
	free(players);
	domains_close();
}

/* One thread for all devices, and more kernels in a group than a stream takes before a launch waits. */
static void a_group_of_more_kernels_than_streams_take_ends(void **state)
{
	static const int devices[RANKS] = {0, 1, 2};
	struct player *players = calloc(RANKS, sizeof *players);
	ncclComm_t comms[RANKS];
	int calls = 1;
	(void)state;
	domains_open(1);
	NCCL(ncclCommInitAll(comms, RANKS, devices));
	for (int i = 0; i < RANKS; i++) {
		players[i].rank.rank = i;
		players[i].rank.comm = comms[i];
		buffers_open(&players[i]);
	}
	for (int round = 0; round < MANY && calls < 3000; round++) {
		calls = kernels_in(comms[0]) ? 3000 : 1;
		for (int i = 0; i < RANKS; i++)
			fill(&players[i], SMALL, round);
		NCCL(ncclGroupStart());
		for (int i = 0; i < RANKS; i++)
			for (int call = 0; call < calls; call++)
				NCCL(reduce(&players[i], SMALL));
		NCCL(ncclGroupEnd());
		for (int i = 0; i < RANKS; i++) {
			settle(&players[i]);
			check_sum(&players[i], SMALL, round);
		}
		doze(1);
	}
	for (int i = 0; i < RANKS; i++) {
		HOLDS(kernels_in(comms[i]) > 3000);
		player_close(&players[i]);
	}
	free(players);
	domains_close();
}

/* ---- what they carry ---- */

static void group(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	cudaStream_t stream;
	float *send, *receive;
	int next = (rank->rank + 1) % RANKS, last = (rank->rank + RANKS - 1) % RANKS;
	ncclComm_t other;
	player_open(player);
	stream = (cudaStream_t)player->stream;
	send = player->send;
	receive = player->receive;
	NCCL(ncclCommSplit(rank->comm, 0, rank->rank, &other, NULL));
	warm_up(player);
	warm_up_in(player, other);
	for (int round = 0; round < 20; round++) {
		uint64_t before = kernels_in(rank->comm), others = kernels_in(other);
		fill(player, LARGE, round);
		memset(player->out + LARGE, 0, SMALL * 8 * sizeof(float));
		NCCL(ncclGroupStart());
		NCCL(ncclAllReduce(send, receive, LARGE, ncclFloat32, ncclSum, rank->comm, stream));
		NCCL(ncclSend(send, SMALL, ncclFloat32, next, rank->comm, stream));
		for (int i = 0; i < 3; i++)
			NCCL(ncclAllReduce(send, receive + LARGE + i * SMALL, SMALL, ncclFloat32, ncclSum,
			                   i == 1 ? other : rank->comm, stream));
		NCCL(ncclRecv(receive + LARGE + 3 * SMALL, SMALL, ncclFloat32, last, rank->comm, stream));
		NCCL(ncclBroadcast(send, receive + LARGE + 4 * SMALL, SMALL, ncclFloat32, 1, rank->comm, stream));
		NCCL(ncclGroupEnd());
		settle(player);
		check_sum(player, LARGE, round);
		for (int i = 0; i < 3; i++)
			HOLDS(!memcmp(player->out, player->out + LARGE + i * SMALL, SMALL * sizeof(float)));
		HOLDS(player->out[LARGE + 3 * SMALL] == value_of(last, 0, round));
		HOLDS(player->out[LARGE + 5 * SMALL - 1] == value_of(1, SMALL - 1, round));
		EQUAL(kernels_in(rank->comm) - before, 5);
		EQUAL(kernels_in(other) - others, 1);
	}
	NCCL(ncclCommDestroy(other));
	player_close(player);
}

static void short_calls_of_a_group_are_kernels_beside_others(void **state)
{
	(void)state;
	play(group);
}

struct late {
	struct player *player;
	int round;
};

static void fill_late(void *argument)
{
	const struct late *late = argument;
	doze(1);
	fill(late->player, SMALL, late->round);
	for (int i = 0; i < SMALL; i++)
		((uint64_t *)(void *)(late->player->in + SMALL))[i] =
		        (uint64_t)(late->player->rank.rank + late->round + i);
}

/*
 * Each rank has other streams for them: what comes into these before and behind the group comes before and behind its
 * kernel.
 */
static void fused(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	cudaStream_t streams[2];
	player_open(player);
	streams[0] = (cudaStream_t)player->stream;
	EQUAL(cuStreamCreate((CUstream *)&streams[1], CU_STREAM_NON_BLOCKING), 0);
	warm_up(player);
	for (int round = 0; round < 30; round++) {
		uint64_t before = kernels_in(rank->comm);
		uint32_t launches = launches_in(rank->comm);
		struct late late = {player, round};
		float *out = player->receive;
		memset(player->out, 0, SMALL * 40 * sizeof(float));
		EQUAL(fake_cuda_launch((CUstream)streams[round & 1], fill_late, &late), 0);
		NCCL(ncclGroupStart());
		for (int i = 0; i < 8; i++)
			NCCL(ncclAllReduce(player->send, out + i * SMALL, SMALL, ncclFloat32, ncclSum, rank->comm,
			                   streams[(i >> rank->rank) & (round & 1)]));
		NCCL(ncclAllGather(player->send, out + 8 * SMALL, SMALL, ncclFloat32, rank->comm, streams[0]));
		NCCL(ncclAllReduce((float *)player->send + SMALL, out + 12 * SMALL, SMALL, ncclUint64, ncclMax,
		                   rank->comm, streams[0]));
		NCCL(ncclGroupEnd());
		EQUAL(kernels_in(rank->comm) - before, 10);
		EQUAL(launches_in(rank->comm) - launches, 2); /* by type */
		EQUAL(cuStreamSynchronize((CUstream)streams[round & 1]), 0);
		check_sum(player, SMALL, round);
		settle(player);
		for (int i = 1; i < 8; i++)
			HOLDS(!memcmp(player->out, player->out + i * SMALL, SMALL * sizeof(float)));
		for (int from = 0; from < RANKS; from++)
			HOLDS(player->out[(8 + from) * SMALL + 7] == value_of(from, 7, round));
		for (int i = 0; i < SMALL; i++)
			HOLDS(((uint64_t *)(void *)(player->out + 12 * SMALL))[i] == (uint64_t)(RANKS - 1 + round + i));
	}
	EQUAL(cuStreamDestroy((CUstream)streams[1]), 0);
	player_close(player);
}

static void short_calls_of_a_group_are_one_kernel_whatever_their_streams(void **state)
{
	(void)state;
	play(fused);
}

/* One rank ends the communicator in the group of its last calls, the others behind it. */
static void ends_in_group(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	ncclComm_t other;
	float *out;
	player_open(player);
	out = player->receive;
	NCCL(ncclCommSplit(rank->comm, 0, rank->rank, &other, NULL));
	warm_up_in(player, other);
	fill(player, SMALL, 5);
	NCCL(ncclGroupStart());
	for (int i = 0; i < 3; i++)
		NCCL(ncclAllReduce(player->send, out + i * SMALL, SMALL, ncclFloat32, ncclSum, other,
		                   (cudaStream_t)player->stream));
	if (rank->rank == 1)
		NCCL(ncclCommDestroy(other));
	NCCL(ncclGroupEnd());
	settle(player);
	check_sum(player, SMALL, 5);
	HOLDS(!memcmp(player->out, player->out + 2 * SMALL, SMALL * sizeof(float)));
	if (rank->rank != 1)
		NCCL(ncclCommDestroy(other));
	player_close(player);
}

static void a_group_is_one_kernel_where_its_communicator_ends_in_it(void **state)
{
	(void)state;
	play(ends_in_group);
}

/* Factors of each rank's own, at the host and on the device, and destroyed in the group that uses them. */
static void factors(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	float factor = (float)(2 + rank->rank);
	player_open(player);
	warm_up(player);
	for (int round = 0; round < 4; round++) {
		ncclRedOp_t op;
		uint64_t before = kernels_in(rank->comm);
		float *at = round % 2 ? (float *)player->send + LARGE : &factor;
		fill(player, SMALL, round);
		player->in[LARGE] = factor;
		NCCL(ncclRedOpCreatePreMulSum(&op, at, ncclFloat32,
		                              round % 2 ? ncclScalarDevice : ncclScalarHostImmediate, rank->comm));
		if (round / 2)
			NCCL(ncclGroupStart());
		NCCL(ncclAllReduce(player->send, player->receive, SMALL, ncclFloat32, op, rank->comm,
		                   (cudaStream_t)player->stream));
		NCCL(ncclRedOpDestroy(op, rank->comm));
		if (round / 2)
			NCCL(ncclGroupEnd());
		settle(player);
		EQUAL(kernels_in(rank->comm) - before, 1);
		for (size_t i = 0; i < SMALL; i++) {
			float sum = 0;
			for (int from = 0; from < RANKS; from++)
				sum += (float)(2 + from) * value_of(from, i, round);
			HOLDS(player->out[i] == sum);
		}
	}
	player_close(player);
}

static void factors_are_kernels_too(void **state)
{
	(void)state;
	play(factors);
}

/* Memory that NCCL would use its symmetric kernels for. */
static void window(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	ncclWindow_t windows[2];
	player_open(player);
	warm_up(player);
	NCCL(ncclCommWindowRegister(rank->comm, player->send, LARGE, &windows[0], 1));
	if (rank->rank) /* whether one is in a window is no matter of all */
		NCCL(ncclCommWindowRegister(rank->comm, player->receive, LARGE, &windows[1], 1));
	uint64_t before = kernels_in(rank->comm);
	for (int round = 0; round < 3; round++)
		reduce_and_check(player, SMALL, round);
	EQUAL(kernels_in(rank->comm) - before, 3);
	NCCL(ncclCommWindowDeregister(rank->comm, windows[0]));
	if (rank->rank)
		NCCL(ncclCommWindowDeregister(rank->comm, windows[1]));
	player_close(player);
}

static void windows_change_nothing(void **state)
{
	(void)state;
	play(window);
}

/* ---- what is not worth it ---- */

static void seldom(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	ncclComm_t other;
	player_open(player);
	NCCL(ncclCommSplit(rank->comm, 0, rank->rank, &other, NULL));
	for (int i = 0; i < 8; i++) {
		HOLDS(!i || !atomic_load(&shadow_of(other)->begun));
		NCCL(ncclAllReduce(player->send, player->receive, SMALL, ncclFloat32, ncclSum, other,
		                   (cudaStream_t)player->stream));
	}
	HOLDS(atomic_load(&shadow_of(other)->begun));
	settle(player);
	NCCL(ncclCommDestroy(other));
	player_close(player);
}

static void communicators_of_few_short_calls_have_none(void **state)
{
	(void)state;
	play(seldom);
}

static void of_any_size(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	player_open(player);
	warm_up(player);
	uint64_t before = kernels_in(rank->comm);
	reduce_and_check(player, LARGE, 1);
	EQUAL(kernels_in(rank->comm) - before, 1);
	EQUAL(parts_of(player), 0);
	int shown = 0;
	struct ferry_share_line line;
	const struct ferry_share_table *table = shadow_of(rank->comm)->meter.table;
	for (int i = FERRY_TUNER_LINES; i < FERRY_SHARE_LINES && !rank->rank; i++)
		if (ferry_share_line_read(&table->lines[i], &line) && line.why == FERRY_BALANCE_KERNEL)
			shown += (int)line.calls;
	EQUAL(shown, rank->rank ? 0 : (int)kernels_in(rank->comm)); /* ferry-stat --shares shows those */
	player_close(player);
}

/* They carry what they are the fastest for (kernels/choice.h), where no shares are fixed. */
static void kernels_carry_calls_over_the_floor_too(void **state)
{
	(void)state;
	unsetenv("FERRY_SHARES");
	pthread_barrier_init(&together, NULL, RANKS);
	run(of_any_size);
	pthread_barrier_destroy(&together);
}

static void pinned(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	player_open(player);
	warm_up(player);
	size_t least = (4 << 10) / sizeof(float);
	uint64_t kernels = kernels_in(rank->comm);
	reduce_and_check(player, least - 1, 1);
	EQUAL(kernels_in(rank->comm) - kernels, 1);
	uint64_t parts = parts_of(player);
	reduce_and_check(player, least, 2);
	EQUAL(kernels_in(rank->comm) - kernels, 1);
	EQUAL(parts_of(player) - parts, 1);
	player_close(player);
}

static void fixed_shares_hold_from_the_floor_on(void **state)
{
	(void)state;
	setenv("FERRY_SHARES", "nccl:0,host:1", 1);
	setenv("FERRY_SPLIT_FLOOR", "4K", 1);
	play(pinned);
	setenv("FERRY_SPLIT_FLOOR", "256K", 1);
	unsetenv("FERRY_SHARES");
}

/* ---- what fails ---- */

/* Rank 1's part of Ferry fails; calls that kernels carry end with an error on all ranks, others are NCCL's. */
static void fails(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	ncclResult_t error = ncclSuccess;
	player_open(player);
	warm_up(player);
	pthread_barrier_wait(&together);
	for (int i = 0; i < 10; i++)
		NCCL(reduce(player, SMALL));
	pthread_barrier_wait(&together);
	if (rank->rank == 1)
		ferry_shadow_comm_withdraw(shadow_of(rank->comm), "this rank is broken on purpose");
	int calls = 0;
	for (; calls < MOST && !reduce(player, SMALL); calls++)
		doze(10);
	HOLDS(calls < MOST);
	HOLDS(reduce(player, SMALL) != ncclSuccess); /* and all later ones */
	settle(player);
	NCCL(ncclCommGetAsyncError(rank->comm, &error));
	EQUAL(error, ncclRemoteError);
	pthread_barrier_wait(&together);
	reduce_and_check(player, LARGE, 1);
	player_close(player);
}

static void where_one_fails_calls_end_with_an_error_on_all(void **state)
{
	(void)state;
	play(fails);
}

/* A graph of a kernel, and plain calls; the rest is NCCL's. */
static void loses_router(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	ncclResult_t error;
	CUgraph captured;
	CUgraphExec graph;
	player_open(player);
	warm_up(player);
	pthread_barrier_wait(&together);
	EQUAL(cuStreamBeginCapture(player->stream, CU_STREAM_CAPTURE_MODE_GLOBAL), 0);
	NCCL(reduce(player, SMALL));
	EQUAL(cuStreamEndCapture(player->stream, &captured), 0);
	EQUAL(cuGraphInstantiateWithFlags(&graph, captured, 0), 0);
	EQUAL(cuGraphDestroy(captured), 0);
	pthread_barrier_wait(&together);
	if (rank->rank == 1)
		routers_kill(0);
	pthread_barrier_wait(&together);
	while (!ferry_rank_failed(&shadow_of(rank->comm)->comm->rank))
		doze(1);
	doze(500); /* time for the abort word, if it were to be raised */
	uint64_t before = kernels_in(rank->comm), parts = parts_of(player);
	for (int round = 0; round < 5; round++) {
		reduce_and_check(player, SMALL, round);
		reduce_and_check(player, LARGE, round);
		fill(player, SMALL, round + 1);
		EQUAL(cuGraphLaunch(graph, player->stream), 0);
		settle(player);
		check_sum(player, SMALL, round + 1);
	}
	EQUAL(kernels_in(rank->comm) - before, 5);
	EQUAL(parts_of(player), parts);
	NCCL(ncclCommGetAsyncError(rank->comm, &error));
	EQUAL(error, ncclSuccess);
	EQUAL(cuGraphExecDestroy(graph), 0);
	player_close(player);
}

static void after_a_routers_death_short_calls_stay_kernels_and_others_are_nccls(void **state)
{
	(void)state;
	setenv("FERRY_TAKEOVER", "off", 1);
	play(loses_router);
	unsetenv("FERRY_TAKEOVER");
}

/* It has withdrawn before kernels have begun, so they never do. */
static void withdraws_early(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	player_open(player);
	struct ferry_nccl_comm *comm = ferry_nccl_comm_take(rank->comm);
	HOLDS(ferry_nccl_comm_learn(comm));
	struct ferry_shadow_comm *shadow_comm = ferry_nccl_comm_shadow_comm(comm);
	ferry_nccl_comm_release(comm);
	ferry_shadow_comm_begin(shadow_comm);
	ferry_shadow_comm_await(shadow_comm, UINT64_MAX);
	HOLDS(ferry_shadow_comm_is_ready(shadow_comm));
	if (rank->rank == 1)
		ferry_shadow_comm_withdraw(shadow_comm, "this rank is broken on purpose");
	pthread_barrier_wait(&together);
	for (int round = 0; round < 20; round++)
		reduce_and_check(player, round % 2 ? SMALL : LARGE, round);
	EQUAL(kernels_in(rank->comm), 0);
	player_close(player);
}

static void a_rank_that_has_withdrawn_before_leaves_all_to_nccl(void **state)
{
	(void)state;
	play(withdraws_early);
}

/* Streams go on, and later calls are NCCL's to refuse. */
static void revokes(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	player_open(player);
	warm_up(player);
	pthread_barrier_wait(&together);
	if (rank->rank) /* one that rank 0 never makes */
		NCCL(reduce(player, SMALL));
	pthread_barrier_wait(&together);
	NCCL(ncclCommRevoke(rank->comm, 0));
	settle(player);
	pthread_barrier_wait(&together);
	NCCL(ncclCommAbort(rank->comm));
	buffers_close(player);
}

static void what_is_revoked_frees_streams_that_wait_in_kernels(void **state)
{
	(void)state;
	play(revokes);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test_teardown(kernels_begin_at_one_call_on_all_ranks, no_misuse),
	        cmocka_unit_test_teardown(what_is_captured_after_one_call_is_kernels, no_misuse),
	        cmocka_unit_test_teardown(what_one_thread_captures_for_several_gpus_is_kernels, no_misuse),
	        cmocka_unit_test_teardown(a_group_of_more_kernels_than_streams_take_ends, no_misuse),
	        cmocka_unit_test_teardown(short_calls_of_a_group_are_kernels_beside_others, no_misuse),
	        cmocka_unit_test_teardown(short_calls_of_a_group_are_one_kernel_whatever_their_streams, no_misuse),
	        cmocka_unit_test_teardown(a_group_is_one_kernel_where_its_communicator_ends_in_it, no_misuse),
	        cmocka_unit_test_teardown(factors_are_kernels_too, no_misuse),
	        cmocka_unit_test_teardown(windows_change_nothing, no_misuse),
	        cmocka_unit_test_teardown(communicators_of_few_short_calls_have_none, no_misuse),
	        cmocka_unit_test_teardown(kernels_carry_calls_over_the_floor_too, no_misuse),
	        cmocka_unit_test_teardown(fixed_shares_hold_from_the_floor_on, no_misuse),
	        cmocka_unit_test_teardown(where_one_fails_calls_end_with_an_error_on_all, no_misuse),
	        cmocka_unit_test_teardown(after_a_routers_death_short_calls_stay_kernels_and_others_are_nccls,
	                                  no_misuse),
	        cmocka_unit_test_teardown(a_rank_that_has_withdrawn_before_leaves_all_to_nccl, no_misuse),
	        cmocka_unit_test_teardown(what_is_revoked_frees_streams_that_wait_in_kernels, no_misuse),
	};
	setenv("FERRY_KERNELS", "on", 1);
	fake_is_the_driver();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
