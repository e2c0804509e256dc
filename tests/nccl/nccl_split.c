/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls of NCCL's that Ferry has a part of: ranks are threads of this process on the double of the CUDA driver, beside
 * the double of NCCL, and a router of Ferry's in a process of its own moves the data of their parts.
 */
#include "tests/nccl/players.h"

#include <unistd.h>

/* ---- promises ---- */

static void reduce(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	player_open(player);
	reduce_until(player, 20);
	/* short ones are NCCL's */
	uint64_t parts = parts_of(player);
	for (int round = 0; round < 20; round++)
		NCCL(ncclAllReduce(player->send, player->receive, SMALL, ncclFloat32, ncclSum, rank->comm,
		                   (cudaStream_t)player->stream));
	settle(player);
	EQUAL(parts_of(player), parts);
	player_close(player);
}

static void allreduce_is_divided_and_right(void **state)
{
	(void)state;
	setenv("FERRY_SHARES", "nccl:0.75,host:0.25", 1);
	run(reduce);
	setenv("FERRY_SHARES", "nccl:0,host:1", 1);
	run(reduce);
	unsetenv("FERRY_SHARES");
}

static void collectives(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	player_open(player);
	reduce_until(player, 1);
	size_t n = LARGE / RANKS;
	float *out = player->out;
	cudaStream_t stream = (cudaStream_t)player->stream;
	int me = rank->rank;
	for (int round = 0; round < 5; round++) {
		uint64_t parts = parts_of(player);
		fill(player, n, round);
		NCCL(ncclAllGather(player->send, player->receive, n, ncclFloat32, rank->comm, stream));
		settle(player);
		for (int from = 0; from < RANKS; from++)
			HOLDS(out[(size_t)from * n + n - 1] == value_of(from, n - 1, round));
		fill(player, RANKS * n, round);
		NCCL(ncclReduceScatter(player->send, player->receive, n, ncclFloat32, ncclMax, rank->comm, stream));
		settle(player);
		HOLDS(out[n - 1] == value_of(RANKS - 1, (size_t)me * n + n - 1, round));
		NCCL(ncclAlltoAll(player->send, player->receive, n, ncclFloat32, rank->comm, stream));
		settle(player);
		for (int from = 0; from < RANKS; from++)
			HOLDS(out[(size_t)from * n] == value_of(from, (size_t)me * n, round));
		fill(player, LARGE, round);
		NCCL(ncclBroadcast(player->send, player->receive, LARGE, ncclFloat32, 1, rank->comm, stream));
		settle(player);
		HOLDS(out[0] == value_of(1, 0, round) && out[LARGE - 1] == value_of(1, LARGE - 1, round));
		NCCL(ncclReduce(player->send, player->receive, LARGE, ncclFloat32, ncclMin, 2, rank->comm, stream));
		settle(player);
		HOLDS(me != 2 || (out[0] == value_of(0, 0, round) && out[LARGE - 1] == value_of(0, LARGE - 1, round)));
		fill(player, RANKS * n, round);
		NCCL(ncclGather(player->send, player->receive, n, ncclFloat32, 0, rank->comm, stream));
		settle(player);
		HOLDS(me || out[RANKS * n - 1] == value_of(RANKS - 1, n - 1, round));
		NCCL(ncclScatter(player->send, player->receive, n, ncclFloat32, 2, rank->comm, stream));
		settle(player);
		HOLDS(out[n - 1] == value_of(2, (size_t)me * n + n - 1, round));
		EQUAL(parts_of(player) - parts, 7);
	}
	player_close(player);
}

static void every_collective_goes_by_ferry_where_shares_say_so(void **state)
{
	(void)state;
	setenv("FERRY_SHARES", "nccl:0,host:1", 1);
	run(collectives);
	unsetenv("FERRY_SHARES");
}

/* NCCL takes any address. */
static void unaligned(struct rank *rank)
{
	enum { COUNTED = LARGE / RANKS - 1 };
	struct player *player = (struct player *)rank;
	player_open(player);
	reduce_until(player, 1);
	uint64_t parts = parts_of(player);
	for (int round = 0; round < 4; round++) {
		size_t off = (size_t)round % 4;
		float *in = malloc(COUNTED * sizeof *in), *out = malloc(COUNTED * sizeof *out), sum = 0;
		for (size_t i = 0; i < COUNTED; i++)
			in[i] = value_of(rank->rank, i, round);
		memcpy((char *)player->in + off, in, COUNTED * sizeof *in);
		NCCL(ncclAllReduce((char *)player->send + off, (char *)player->receive + (off + 1) % 4, COUNTED,
		                   ncclFloat32, ncclSum, rank->comm, (cudaStream_t)player->stream));
		settle(player);
		memcpy(out, (char *)player->out + (off + 1) % 4, COUNTED * sizeof *out);
		for (int from = 0; from < RANKS; from++)
			sum += value_of(from, COUNTED - 1, round);
		HOLDS(out[COUNTED - 1] == sum);
		NCCL(ncclAllGather((char *)player->send + off, (char *)player->receive + (off + 1) % 4, COUNTED,
		                   ncclFloat32, rank->comm, (cudaStream_t)player->stream));
		settle(player);
		memcpy(out, (char *)player->out + (off + 1) % 4 + sizeof *out * COUNTED, COUNTED * sizeof *out);
		for (size_t i = 0; i < COUNTED; i++)
			HOLDS(out[i] == value_of(1, i, round));
		free(in);
		free(out);
	}
	EQUAL(parts_of(player) - parts, 8);
	player_close(player);
}

static void buffers_may_lie_at_any_address(void **state)
{
	(void)state;
	setenv("FERRY_SHARES", "nccl:0,host:1", 1);
	run(unaligned);
	unsetenv("FERRY_SHARES");
}

static void messages(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	size_t n = LARGE / RANKS;
	player_open(player);
	cudaStream_t stream = (cudaStream_t)player->stream;
	reduce_until(player, 1); /* so that all have come; pairs agree for themselves, one after the other */
	uint64_t first = parts_of(player);
	for (int round = 0; round < 20; round++) {
		fill(player, RANKS * n, round);
		NCCL(ncclGroupStart());
		for (int peer = 0; peer < RANKS; peer++) {
			NCCL(ncclSend((float *)player->send + (size_t)peer * n, n, ncclFloat32, peer, rank->comm,
			              stream));
			NCCL(ncclRecv((float *)player->receive + (size_t)peer * n, n, ncclFloat32, peer, rank->comm,
			              stream));
		}
		NCCL(ncclGroupEnd());
		settle(player);
		for (int from = 0; from < RANKS; from++) {
			float got = player->out[(size_t)from * n + n - 1],
			      expected = value_of(from, (size_t)rank->rank * n + n - 1, round);
			if (got != expected)
				fprintf(stderr, "round %d: rank %d has %g of rank %d, not %g\n", round, rank->rank,
				        (double)got, from, (double)expected);
			HOLDS(got == expected);
		}
	}
	HOLDS(parts_of(player) - first >= 18);
	player_close(player);
}

static void messages_of_a_group_go_by_ferry(void **state)
{
	(void)state;
	setenv("FERRY_SHARES", "nccl:0,host:1", 1);
	run(messages);
	unsetenv("FERRY_SHARES");
}

/* As in a pipeline, or around a ring. */
static void exchanged(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	size_t n = LARGE / RANKS;
	player_open(player);
	cudaStream_t stream = (cudaStream_t)player->stream;
	reduce_until(player, 1);
	uint64_t first = parts_of(player);
	for (int round = 0; round < 60; round++) {
		NCCL(ncclGroupStart());
		NCCL(ncclSend(player->send, n, ncclFloat32, (rank->rank + 1) % RANKS, rank->comm, stream));
		NCCL(ncclRecv(player->receive, n, ncclFloat32, (rank->rank + RANKS - 1) % RANKS, rank->comm, stream));
		NCCL(ncclGroupEnd());
		settle(player);
	}
	HOLDS(parts_of(player) - first >= 40);
	player_close(player);
}

/* The first of a group alone can be measured, so a try is a matter of the group. */
static void messages_of_a_group_are_whose_are_faster(void **state)
{
	(void)state;
	setenv("FAKE_NCCL_GBPS", "0.002", 1);
	run(exchanged);
	unsetenv("FAKE_NCCL_GBPS");
}

/* What they take together says nothing of any size: a try would never end. */
static void exchanged_unequally(struct rank *rank)
{
	static const size_t counts[RANKS] = {LARGE, LARGE / 4 * 3, LARGE / 2};
	struct player *player = (struct player *)rank;
	cudaStream_t stream;
	player_open(player);
	stream = (cudaStream_t)player->stream;
	reduce_until(player, 1);
	uint64_t first = parts_of(player);
	for (int round = 0; round < 12; round++) {
		int next = (rank->rank + 1) % RANKS, last = (rank->rank + RANKS - 1) % RANKS;
		NCCL(ncclGroupStart());
		NCCL(ncclSend(player->send, counts[rank->rank], ncclFloat32, next, rank->comm, stream));
		NCCL(ncclRecv(player->receive, counts[last], ncclFloat32, last, rank->comm, stream));
		NCCL(ncclGroupEnd());
		settle(player);
	}
	EQUAL(parts_of(player), first);
	player_close(player);
}

static void unequal_messages_of_a_group_try_nothing(void **state)
{
	(void)state;
	setenv("FAKE_NCCL_GBPS", "0.02", 1);
	run(exchanged_unequally);
	unsetenv("FAKE_NCCL_GBPS");
}

static void grouped(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	player_open(player);
	cudaStream_t stream = (cudaStream_t)player->stream;
	reduce_until(player, 1);
	size_t n = LARGE / 3;
	for (int round = 0; round < 10; round++) {
		uint64_t parts = parts_of(player);
		fill(player, 3 * n, round);
		NCCL(ncclGroupStart());
		for (size_t i = 0; i < 3; i++)
			NCCL(ncclAllReduce((float *)player->send + i * n, (float *)player->receive + i * n, n,
			                   ncclFloat32, ncclSum, rank->comm, stream));
		NCCL(ncclGroupEnd());
		settle(player);
		check_sum(player, 3 * n, round);
		EQUAL(parts_of(player) - parts, 3);
	}
	player_close(player);
}

static void calls_of_a_group_are_divided(void **state)
{
	(void)state;
	setenv("FERRY_SHARES", "nccl:0.6,host:0.4", 1);
	run(grouped);
	unsetenv("FERRY_SHARES");
}

/* NCCL's double does 2 MB/s, so that Ferry's part is worth it however busy the machine is. */
static void balanced(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	player_open(player);
	reduce_until(player, 5);
	player_close(player);
}

static void shares_are_found(void **state)
{
	(void)state;
	setenv("FAKE_NCCL_GBPS", "0.002", 1);
	run(balanced);
	unsetenv("FAKE_NCCL_GBPS");
}

/* Tried a few times, and then had by Ferry, as what both take is known. */
static void gathered(struct rank *rank)
{
	enum { ENOUGH = 20 };
	struct player *player = (struct player *)rank;
	player_open(player);
	uint64_t before = parts_of(player);
	int round = 0;
	for (; round < MOST && parts_of(player) - before < ENOUGH; round++)
		gather_round(player, round);
	HOLDS(round < MOST);
	player_close(player);
}

static void whole_calls_are_whose_are_faster(void **state)
{
	(void)state;
	char path[] = "/tmp/ferry-whole-test-XXXXXX", text[400];
	int file = mkstemp(path), nccls = 0, ferrys = 0;
	assert_true(file >= 0);
	close(file);
	setenv("FERRY_SHARES_LOG", path, 1);
	setenv("FAKE_NCCL_GBPS", "0.002", 1);
	run(gathered);
	unsetenv("FAKE_NCCL_GBPS");
	unsetenv("FERRY_SHARES_LOG");
	FILE *log = fopen(path, "r");
	assert_non_null(log);
	while (fgets(text, sizeof text, log)) {
		nccls += strstr(text, "\"allgather\"") && strstr(text, "\"nccl\":1.0000,\"tuning\":0,\"us\":");
		ferrys += strstr(text, "\"allgather\"") && strstr(text, "\"nccl\":0.0000,\"tuning\":0,\"us\":");
	}
	fclose(log);
	unlink(path);
	assert_in_range(nccls, 1, MOST);
	assert_in_range(ferrys, 1, MOST);
}

static pthread_barrier_t together;

static void scattered(struct rank *rank)
{
	enum { BLOCK = 2 * LARGE, ENOUGH = 12 };
	struct player *player = (struct player *)rank;
	player_open(player);
	uint64_t before = parts_of(player);
	int round = 0;
	for (; round < MOST && parts_of(player) - before < ENOUGH; round++) {
		fill(player, RANKS * BLOCK, round);
		NCCL(ncclReduceScatter(player->send, player->receive, BLOCK, ncclFloat32, ncclSum, rank->comm,
		                       (cudaStream_t)player->stream));
		settle(player);
		for (size_t i = 0; i < BLOCK; i++) {
			float sum = 0;
			for (int from = 0; from < RANKS; from++)
				sum += value_of(from, (size_t)rank->rank * BLOCK + i, round);
			HOLDS(player->out[i] == sum);
		}
	}
	HOLDS(round < MOST);
	player_close(player);
}

/* What NCCL has left of blocks it makes by Reduces. */
static void long_calls_with_blocks_are_divided_by_fixed_shares_alone(void **state)
{
	(void)state;
	unsigned long blocks = fake_nccl_count("Reduce");
	setenv("FAKE_NCCL_GBPS", "0.02", 1);
	run(scattered);
	unsetenv("FAKE_NCCL_GBPS");
	assert_int_equal(fake_nccl_count("Reduce"), blocks);
	setenv("FERRY_SHARES", "nccl:0.75,host:0.25", 1);
	run(scattered);
	unsetenv("FERRY_SHARES");
	assert_true(fake_nccl_count("Reduce") - blocks >= RANKS * RANKS);
}

/* As `nccl-tests -g`: communicators of one process, all called by one thread in groups, each with its own stream. */
static void drive_several_gpus(bool grouped)
{
	struct player players[RANKS] = {{.rank = {.rank = 0}}};
	ncclComm_t comms[RANKS];
	int devices[RANKS];
	uint64_t parts = 0;
	CUcontext context;
	setenv("FAKE_NCCL_GBPS", "0.002", 1);
	setenv("FERRY_SPLIT_WAIT", "60", 1);
	domains_open(1);
	for (int i = 0; i < RANKS; i++) {
		devices[i] = players[i].rank.rank = i;
		buffers_open(&players[i]);
	}
	if (grouped) {
		ncclUniqueId id;
		NCCL(ncclGetUniqueId(&id));
		NCCL(ncclGroupStart());
		for (int i = 0; i < RANKS; i++) {
			EQUAL(cuDevicePrimaryCtxRetain(&context, i), 0);
			EQUAL(cuCtxSetCurrent(context), 0);
			NCCL(ncclCommInitRank(&comms[i], RANKS, id, i));
		}
		NCCL(ncclGroupEnd());
		for (int i = 0; i < RANKS; i++)
			EQUAL(cuDevicePrimaryCtxRelease(i), 0);
	} else {
		NCCL(ncclCommInitAll(comms, RANKS, devices));
	}
	for (int i = 0; i < RANKS; i++) {
		struct ferry_nccl_comm *comm = ferry_nccl_comm_take(comms[i]);
		players[i].rank.comm = comms[i];
		/* With FERRY_SPLIT_WAIT the calls are shared from the first one on. */
		assert_true(ferry_shadow_comm_is_ready(atomic_load(&comm->shadow_comm)));
		ferry_nccl_comm_release(comm);
	}
	for (int round = 0; round < MOST && parts < 5; round++) {
		NCCL(ncclGroupStart());
		for (int i = 0; i < RANKS; i++) {
			fill(&players[i], LARGE, round);
			NCCL(ncclAllReduce(players[i].send, players[i].receive, LARGE, ncclFloat32, ncclSum, comms[i],
			                   (cudaStream_t)players[i].stream));
		}
		NCCL(ncclGroupEnd());
		for (int i = 0; i < RANKS; i++) {
			settle(&players[i]);
			check_sum(&players[i], LARGE, round);
		}
		parts = parts_of(&players[0]);
	}
	assert_true(parts >= 5);
	for (int i = 0; i < RANKS; i++)
		player_close(&players[i]);
	domains_close();
	unsetenv("FERRY_SPLIT_WAIT");
	unsetenv("FAKE_NCCL_GBPS");
}

static void one_thread_drives_several_gpus(void **state)
{
	(void)state;
	drive_several_gpus(false);
}

static void communicators_of_a_group_are_waited_for_too(void **state)
{
	(void)state;
	drive_several_gpus(true);
}

static void orphaned(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	ncclResult_t error;
	player_open(player);
	reduce_until(player, 5);
	pthread_barrier_wait(&together);
	if (!rank->rank)
		routers_kill(0);
	pthread_barrier_wait(&together);
	/* All calls had ended, and were seen to have: nothing is lost. */
	for (int round = 0; round < 20; round++) {
		fill(player, LARGE, round);
		ncclResult_t result = ncclAllReduce(player->send, player->receive, LARGE, ncclFloat32, ncclSum,
		                                    rank->comm, (cudaStream_t)player->stream);
		settle(player);
		if (!result)
			NCCL(ncclCommGetAsyncError(rank->comm, &error));
		if (!result && !error)
			check_sum(player, LARGE, round);
	}
	uint64_t parts = parts_of(player);
	for (int round = 0; round < 5; round++) {
		fill(player, LARGE, round);
		NCCL(ncclAllReduce(player->send, player->receive, LARGE, ncclFloat32, ncclSum, rank->comm,
		                   (cudaStream_t)player->stream));
		settle(player);
		check_sum(player, LARGE, round);
	}
	EQUAL(parts_of(player), parts);
	player_close(player);
}

static void nccl_goes_on_alone_when_the_router_dies(void **state)
{
	(void)state;
	pthread_barrier_init(&together, NULL, RANKS);
	setenv("FERRY_SHARES", "nccl:0.75,host:0.25", 1);
	setenv("FERRY_TAKEOVER", "off", 1); /* else calls wait for another router */
	run(orphaned);
	unsetenv("FERRY_TAKEOVER");
	unsetenv("FERRY_SHARES");
	pthread_barrier_destroy(&together);
}

/* A replay may have been under way, which nobody hears of. */
static void replayed(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	ncclResult_t error;
	CUgraph captured;
	CUgraphExec graph;
	player_open(player);
	reduce_until(player, 5);
	uint64_t parts = parts_of(player);
	EQUAL(cuStreamBeginCapture(player->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), 0);
	for (int i = 0; i < 3; i++)
		NCCL(ncclAllReduce(player->send, player->receive, LARGE, ncclFloat32, ncclSum, rank->comm,
		                   (cudaStream_t)player->stream));
	EQUAL(cuStreamEndCapture(player->stream, &captured), 0);
	EQUAL(cuGraphInstantiateWithFlags(&graph, captured, 0), 0);
	EQUAL(cuGraphDestroy(captured), 0);
	EQUAL(parts_of(player), parts); /* those are counted that run at once */
	for (int round = 0; round < 5; round++) {
		fill(player, LARGE, round);
		EQUAL(cuGraphLaunch(graph, player->stream), 0);
		settle(player);
		check_sum(player, LARGE, round);
	}
	NCCL(ncclCommGetAsyncError(rank->comm, &error));
	EQUAL(error, ncclSuccess);
	pthread_barrier_wait(&together);
	if (!rank->rank)
		routers_kill(0);
	pthread_barrier_wait(&together);
	do {
		doze(1);
		NCCL(ncclCommGetAsyncError(rank->comm, &error));
	} while (!error);
	EQUAL(error, ncclRemoteError);
	EQUAL(cuGraphExecDestroy(graph), 0);
	player_close(player);
}

static void what_graphs_have_of_a_router_that_dies_is_lost(void **state)
{
	(void)state;
	pthread_barrier_init(&together, NULL, RANKS);
	setenv("FERRY_SHARES", "nccl:0,host:1", 1); /* the double of NCCL cannot be replayed */
	setenv("FERRY_TAKEOVER", "off", 1); /* else calls wait for another router */
	run(replayed);
	unsetenv("FERRY_TAKEOVER");
	unsetenv("FERRY_SHARES");
	pthread_barrier_destroy(&together);
}

static atomic_ulong nccls_alone; /* calls of all ranks that Ferry had no part of */

/* NCCL goes over the same links to the host, so one of the two has all of a call. */
static void summed_whole(struct rank *rank)
{
	enum { CALLS = 80 };
	struct player *player = (struct player *)rank;
	player_open(player);
	for (int round = 0; round < CALLS; round++) {
		fill(player, LARGE, round);
		NCCL(ncclAllReduce(player->send, player->receive, LARGE, ncclFloat32, ncclSum, rank->comm,
		                   (cudaStream_t)player->stream));
		settle(player);
		check_sum(player, LARGE, round);
	}
	uint64_t parts = parts_of(player);
	HOLDS(parts && parts < CALLS);
	atomic_fetch_add(&nccls_alone, CALLS - parts);
	player_close(player);
}

static void sums_are_whole_where_gpus_do_not_reach_each_other(void **state)
{
	(void)state;
	unsigned long nccls = fake_nccl_count("AllReduce");
	setenv("FAKE_NCCL_GBPS", "0.05", 1);
	setenv("FERRY_SPLIT_WAIT", "60", 1);
	run(summed_whole);
	unsetenv("FERRY_SPLIT_WAIT");
	unsetenv("FAKE_NCCL_GBPS");
	assert_int_equal(fake_nccl_count("AllReduce") - nccls, atomic_load(&nccls_alone));
}

static int run_by_host(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test_teardown(sums_are_whole_where_gpus_do_not_reach_each_other, no_misuse),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test_teardown(allreduce_is_divided_and_right, no_misuse),
	        cmocka_unit_test_teardown(every_collective_goes_by_ferry_where_shares_say_so, no_misuse),
	        cmocka_unit_test_teardown(buffers_may_lie_at_any_address, no_misuse),
	        cmocka_unit_test_teardown(messages_of_a_group_go_by_ferry, no_misuse),
	        cmocka_unit_test_teardown(messages_of_a_group_are_whose_are_faster, no_misuse),
	        cmocka_unit_test_teardown(unequal_messages_of_a_group_try_nothing, no_misuse),
	        cmocka_unit_test_teardown(calls_of_a_group_are_divided, no_misuse),
	        cmocka_unit_test_teardown(shares_are_found, no_misuse),
	        cmocka_unit_test_teardown(whole_calls_are_whose_are_faster, no_misuse),
	        cmocka_unit_test_teardown(long_calls_with_blocks_are_divided_by_fixed_shares_alone, no_misuse),
	        cmocka_unit_test_teardown(one_thread_drives_several_gpus, no_misuse),
	        cmocka_unit_test_teardown(communicators_of_a_group_are_waited_for_too, no_misuse),
	        cmocka_unit_test_teardown(nccl_goes_on_alone_when_the_router_dies, no_misuse),
	        cmocka_unit_test_teardown(what_graphs_have_of_a_router_that_dies_is_lost, no_misuse),
	};
	setenv("FERRY_SPLIT_FLOOR", "256K", 1); /* short ones are shared, too */
	fake_is_the_driver();
	const char *peers = getenv("FAKE_CUDA_PEERS");
	if (peers && !strcmp(peers, "0"))
		return run_by_host();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
