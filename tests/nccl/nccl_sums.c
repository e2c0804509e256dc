/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums of NCCL's that GPUs make by Ferry over their links (rank-lib/call/gpu_sums.h): ranks are threads of this process
 * on the double of the CUDA driver, beside the double of NCCL.
 */
#include "tests/nccl/players.h"

#define BLOCK (LARGE / RANKS)
#define LONG  (1100 << 10) /* of 4 bytes: more than a short kernel carries */

static atomic_ulong captured_by_nccl;

/* Memory that blocks of other ranks have come into. */
static bool has_memory(const struct rank *rank)
{
	return shadow_of(rank->comm)->comm->mapped.bounces.all;
}

static void scatter_round(struct player *player, int round)
{
	fill(player, LARGE, round);
	NCCL(ncclReduceScatter(player->send, player->receive, BLOCK, ncclFloat32, ncclSum, player->rank.comm,
	                       (cudaStream_t)player->stream));
	settle(player);
	for (size_t i = 0; i < BLOCK; i++) {
		float sum = 0;
		for (int from = 0; from < RANKS; from++)
			sum += value_of(from, (size_t)player->rank.rank * BLOCK + i, round);
		HOLDS(player->out[i] == sum);
	}
}

static void reduce_round(struct player *player, size_t count, int round)
{
	fill(player, count, round);
	NCCL(ncclAllReduce(player->send, player->receive, count, ncclFloat32, ncclSum, player->rank.comm,
	                   (cudaStream_t)player->stream));
	settle(player);
	check_sum(player, count, round);
}

/* Roots take turns; the others have no receive buffer. */
static void root_round(struct player *player, int round)
{
	const int root = round % RANKS;
	const bool here = player->rank.rank == root;
	fill(player, LARGE, round);
	NCCL(ncclReduce(player->send, here ? player->receive : NULL, LARGE, ncclFloat32, ncclSum, root,
	                player->rank.comm, (cudaStream_t)player->stream));
	settle(player);
	if (here)
		check_sum(player, LARGE, round);
}

static CUgraphExec capture(struct player *player, size_t count)
{
	CUgraph captured;
	CUgraphExec graph;
	EQUAL(cuStreamBeginCapture(player->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), 0);
	NCCL(ncclAllReduce(player->send, player->receive, count, ncclFloat32, ncclSum, player->rank.comm,
	                   (cudaStream_t)player->stream));
	EQUAL(cuStreamEndCapture(player->stream, &captured), 0);
	EQUAL(cuGraphInstantiateWithFlags(&graph, captured, 0), 0);
	EQUAL(cuGraphDestroy(captured), 0);
	return graph;
}

/* From the first call on all of them are Ferry's; a graph has one of the routers'. */
static void all_are_ferrys(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	player_open(player);
	reduce_until(player, 10);
	HOLDS(has_memory(rank));
	uint64_t parts = parts_of(player);
	for (int round = 0; round < 10; round++)
		scatter_round(player, round);
	EQUAL(parts_of(player) - parts, 10);
	EQUAL(ferry_meter_fabric(&shadow_of(rank->comm)->meter, FERRY_REDUCE_TO_ROOT, false), FERRY_FABRIC_PEER);
	parts = parts_of(player);
	for (int round = 0; round < 10; round++)
		root_round(player, round);
	EQUAL(parts_of(player) - parts, 10 * (RANKS > 2 ? 2 : 1));
	CUgraphExec graph = capture(player, LARGE);
	for (int round = 0; round < 4; round++) {
		fill(player, LARGE, round);
		EQUAL(cuGraphLaunch(graph, player->stream), 0);
		settle(player);
		check_sum(player, LARGE, round);
		scatter_round(player, round);
	}
	EQUAL(cuGraphExecDestroy(graph), 0);
	player_close(player);
}

static unsigned long sums_of_nccl(void)
{
	return fake_nccl_count("AllReduce") + fake_nccl_count("ReduceScatter") + fake_nccl_count("Reduce");
}

static void sums_over_links_are_ferrys_where_shares_say_so(void **state)
{
	(void)state;
	setenv("FERRY_SHARES", "nccl:0,peer:1", 1);
	run(all_are_ferrys);
	setenv("FERRY_SPLIT_WAIT", "60", 1); /* and the first one, too */
	unsigned long nccls = sums_of_nccl();
	run(all_are_ferrys);
	assert_int_equal(sums_of_nccl(), nccls);
	unsetenv("FERRY_SPLIT_WAIT");
	unsetenv("FERRY_SHARES");
}

/* Tried, and then had by Ferry, as what both take is known; but for a captured one, which the host would add up. */
static void learned(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	player_open(player);
	uint64_t before = parts_of(player);
	int round = 0;
	for (; round < MOST && parts_of(player) - before < 40; round++)
		reduce_round(player, LONG, round);
	HOLDS(round < MOST);
	HOLDS(has_memory(rank));
	before = parts_of(player);
	unsigned long nccls = fake_nccl_count("AllReduce");
	CUgraphExec graph = capture(player, LONG);
	HOLDS(fake_nccl_count("AllReduce") > nccls);
	EQUAL(parts_of(player), before);
	atomic_fetch_add(&captured_by_nccl, 1);
	EQUAL(cuGraphExecDestroy(graph), 0);
	player_close(player);
}

static void sums_over_links_are_whose_are_faster_and_captured_ones_nccls(void **state)
{
	(void)state;
	setenv("FAKE_NCCL_GBPS", "0.002", 1);
	run(learned);
	unsetenv("FAKE_NCCL_GBPS");
	assert_int_equal(atomic_load(&captured_by_nccl), RANKS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test_teardown(sums_over_links_are_ferrys_where_shares_say_so, no_misuse),
	        cmocka_unit_test_teardown(sums_over_links_are_whose_are_faster_and_captured_ones_nccls, no_misuse),
	};
	setenv("FERRY_KERNELS", "on", 1); /* sums need them */
	fake_is_the_driver();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
