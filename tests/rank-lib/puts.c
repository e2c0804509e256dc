/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Routers push from GPU to GPU, over the double of the driver: what arrives, on how many ranks, GPUs and fabrics
 * whatsoever, and that nothing arrives before its receiver is ready. Which fabric carries what: cuda_fabrics.c. What
 * happens when somebody dies: puts_failures.c.
 */
#include "tests/fake_cuda/routers.h"
#include "tests/rounds.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REPLAYS REPEATS(12, 4)

static const int spread[] = {0, 1, 2, 3, 0, 1, 2, 3}, pairs[] = {0, 0, 1, 1, 0, 0, 1, 1};

/* ---- right ---- */

static void everything_is_right_on(int nranks, const int *devices)
{
	static const size_t sizes[] = {1, 1021, 70001, MOST_BYTES};
	struct gang gang;
	open_with(&gang, nranks, devices, "peer", NULL);
	const int least = REPEATS(0, nranks > 2), most = REPEATS(3, nranks > 2 ? 2 : 3);
	for (int size = least; size <= most; size++)
		if (nranks < 8 || size != 3)
			all_kinds(&gang, sizes[size], size % 2 ? 13 : 0, false);
	gang_close(&gang);
}

static void two_ranks_push_into_each_other(void **state)
{
	(void)state;
	everything_is_right_on(2, spread);
}

static void two_ranks_of_one_gpu_push_within_it(void **state)
{
	(void)state;
	everything_is_right_on(2, pairs);
}

static void four_ranks_push_on_four_gpus(void **state)
{
	(void)state;
	everything_is_right_on(4, spread);
}

static void four_ranks_push_on_two_gpus(void **state)
{
	(void)state;
	everything_is_right_on(4, pairs);
}

static void eight_ranks_push_on_four_gpus(void **state)
{
	(void)state;
	everything_is_right_on(8, spread);
}

static void eight_ranks_push_on_two_gpus(void **state)
{
	(void)state;
	everything_is_right_on(8, pairs);
}

static void calls_of_nothing_and_of_one_rank_are_calls_too(void **state)
{
	struct gang gang;
	(void)state;
	open_with(&gang, 3, spread, "peer", NULL);
	all_kinds(&gang, 0, 0, false);
	gang_close(&gang);
	open_with(&gang, 1, spread, "peer", NULL);
	all_kinds(&gang, 70001, 5, false);
	gang_close(&gang);
}

/* In place: the first sender must not overwrite what its receiver has not pushed yet. */
static void in_place_all_to_all_back_to_back_mixes_nothing(void **state)
{
	struct gang gang;
	(void)state;
	open_with(&gang, 4, pairs, "peer", NULL);
	for (int late = -1; late < 4; late++)
		rounds_of(&gang, (struct what){.kind = ALLTOALL, .bytes = 100003, .in_place = true}, 10, late, false);
	gang_close(&gang);
}

/* Part of each block by the host: D2H, H2D and pushes in one call. */
static void both_fabrics_carry_their_parts_of_a_call(void **state)
{
	static const char *const shares[] = {"host=0.3", "host=0.001", "peer=0.05", "host=0.5,peer=0.5"};
	(void)state;
	for (int which = 0; which < 4; which++) {
		struct gang gang;
		open_with(&gang, 4, which % 2 ? pairs : spread, "host,peer", shares[which]);
		/* 1 and 4,027 bytes, or 67 and 241,627 */
		for (size_t bytes = which < 2 ? 1 : 67; bytes < 400000; bytes = (bytes * 60 + 7) * 60 + 7)
			all_kinds(&gang, bytes, 3, false);
		gang_close(&gang);
	}
}

/* Memory of pools cannot be exported: windows take their place, at both ends. */
static void memory_that_cannot_be_exported_goes_through_windows(void **state)
{
	struct gang gang;
	(void)state;
	open_with(&gang, 4, pairs, "peer", NULL);
	all_kinds(&gang, 70001, 7, true);
	gang_close(&gang);
	open_with(&gang, 2, spread, "host,peer", "host=0.4");
	all_kinds(&gang, 70001, 7, true);
	gang_close(&gang);
}

/* Registered before the first call, as memory that nobody puts into: the first push has it exported for others too. */
static void registered_buffers_are_pushed_into(void **state)
{
	struct gang gang;
	struct rank ranks[MOST_PLACES];
	void *handles[MOST_PLACES];
	struct what what = {.kind = ALLGATHER, .bytes = 70001, .nranks = 2};
	(void)state;
	open_with(&gang, 2, spread, "peer", NULL);
	ranks_open(ranks, &what, &gang, false);
	for (int rank = 0; rank < 2; rank++) {
		place_enter(&(struct place){.device = spread[rank]});
		OK(ferryCommRegister(gang.comms[rank], ranks[rank].receive, 2 * what.bytes, &handles[rank]));
	}
	for (int round = 0; round < 20; round++)
		round_of(ranks, &gang);
	settle(ranks, &gang, 20);
	for (int rank = 0; rank < 2; rank++) {
		place_enter(&(struct place){.device = spread[rank]});
		OK(ferryCommDeregister(gang.comms[rank], handles[rank]));
	}
	ranks_close(ranks, &gang);
	gang_close(&gang);
}

/* ---- graphs ---- */

static CUgraphExec capture(struct rank *mine, ferryComm_t comm)
{
	CUgraph captured;
	CUgraphExec graph;
	place_enter(&(struct place){.device = mine->device});
	CU(cuStreamBeginCapture(mine->stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	for (int i = 0; i < 3; i++) {
		CU(fake_cuda_launch(mine->stream, fill, mine));
		call(mine, comm);
		CU(fake_cuda_launch(mine->stream, judge, mine));
	}
	CU(cuStreamEndCapture(mine->stream, &captured));
	CU(cuGraphInstantiateWithFlags(&graph, captured, 0));
	CU(cuGraphDestroy(captured));
	return graph;
}

static void replays_of(const struct gang *gang, struct what what, bool pooled)
{
	struct rank ranks[MOST_PLACES];
	CUgraphExec graphs[MOST_PLACES];
	what.nranks = gang->nranks;
	ranks_open(ranks, &what, gang, pooled);
	for (int rank = 0; rank < gang->nranks; rank++)
		graphs[rank] = capture(&ranks[rank], gang->comms[rank]);
	ranks[0].late_ms = 1;
	for (int replay = 0; replay < REPLAYS; replay++)
		for (int rank = 0; rank < gang->nranks; rank++) {
			place_enter(&(struct place){.device = ranks[rank].device});
			CU(cuGraphLaunch(graphs[rank], ranks[rank].stream));
		}
	settle(ranks, gang, 3 * REPLAYS);
	for (int rank = 0; rank < gang->nranks; rank++)
		CU(cuGraphExecDestroy(graphs[rank]));
	ranks_close(ranks, gang);
}

static void captured_calls_push_in_each_replay(void **state)
{
	(void)state;
	for (int which = 0; which < 3; which++) {
		struct gang gang;
		open_with(&gang, 3, which == 1 ? pairs : spread, which == 2 ? "host,peer" : "peer",
		          which == 2 ? "host=0.3" : NULL);
		for (int kind = 0; kind < KINDS; kind++)
			replays_of(&gang, (struct what){.kind = (enum kind)kind, .bytes = 70001, .in_place = kind == 1},
			           which == 1);
		gang_close(&gang);
	}
}

/* ---- messages ---- */

/* The sender would push, the receiver expects too little for that: both are told, and nobody waits for ever. */
static void ends_that_disagree_on_whether_a_message_is_pushed_find_out(void **state)
{
	static const size_t lengths[][2] = {{200000, 100},
	                                    {100, 200000},
	                                    {200000, 200001},
	                                    {65537, 65536},
	                                    {200000, 0}};
	(void)state;
	for (size_t which = 0; which < sizeof lengths / sizeof *lengths; which++) {
		struct gang gang;
		struct rank ranks[MOST_PLACES];
		struct what what = {.kind = RING, .bytes = MOST_BYTES, .nranks = 2};
		ferryResult_t error = ferrySuccess;
		char said[64];
		gang_open(&gang, 2, spread, 1);
		ranks_open(ranks, &what, &gang, false);
		place_enter(&(struct place){.device = 0});
		OK(ferrySend(ranks[0].send, lengths[which][0], ferryUint8, 1, gang.comms[0],
		             (ferryStream_t)ranks[0].stream));
		place_enter(&(struct place){.device = 1});
		OK(ferryRecv(ranks[1].receive, lengths[which][1], ferryUint8, 0, gang.comms[1],
		             (ferryStream_t)ranks[1].stream));
		for (int waited = 0; !error && waited < 60000; waited++) {
			ferryCommGetAsyncError(gang.comms[0], &error);
			doze(1);
		}
		snprintf(said, sizeof said, "sent %zu bytes", lengths[which][0]);
		if (error != ferryInvalidUsage || !strstr(ferryGetLastError(gang.comms[0]), said))
			fail_msg("%zu bytes sent, %zu expected: %s, \"%s\"", lengths[which][0], lengths[which][1],
			         ferryGetErrorString(error), error ? ferryGetLastError(gang.comms[0]) : "");
		for (int rank = 0; rank < 2; rank++)
			OK(ferryCommAbort(gang.comms[rank]));
		domains_close();
		ranks_close(ranks, &gang);
	}
}

/*
 * Rank 0 sends to 1 and 2 in one group; rank 2 comes late, and rank 1 leaves meanwhile. It has its message: its leaving
 * waits for nobody, and keeps no other communicator of the router from leaving either.
 */
static void who_has_its_message_leaves_though_the_sender_waits_for_another(void **state)
{
	static _Atomic int held;
	struct gang gang, other;
	struct rank ranks[MOST_PLACES];
	struct what what = {.kind = RING, .bytes = MOST_BYTES, .nranks = 3};
	(void)state;
	gang_open(&gang, 3, spread, 1);
	gang_open(&other, 2, spread, 1);
	ranks_open(ranks, &what, &gang, false);
	atomic_store(&held, 1);
	place_enter(&(struct place){.device = 2});
	CU(fake_cuda_launch(ranks[2].stream, hold, &held));
	OK(ferryRecv(ranks[2].receive, what.bytes, ferryUint8, 0, gang.comms[2], (ferryStream_t)ranks[2].stream));
	place_enter(&(struct place){.device = 0});
	fill(&ranks[0]);
	OK(ferryGroupStart());
	for (int peer = 1; peer < 3; peer++)
		OK(ferrySend(ranks[0].send, what.bytes, ferryUint8, peer, gang.comms[0],
		             (ferryStream_t)ranks[0].stream));
	OK(ferryGroupEnd());
	place_enter(&(struct place){.device = 1});
	OK(ferryRecv(ranks[1].receive, what.bytes, ferryUint8, 0, gang.comms[1], (ferryStream_t)ranks[1].stream));
	CU(cuStreamSynchronize(ranks[1].stream));
	alarm(30); /* they would wait for ever */
	OK(ferryCommDestroy(gang.comms[1]));
	gang_close(&other);
	alarm(0);
	atomic_store(&held, 0);
	place_enter(&(struct place){.device = 2});
	CU(cuStreamSynchronize(ranks[2].stream));
	for (int rank = 1; rank < 3; rank++)
		assert_memory_equal(seen(ranks[rank].receive), seen(ranks[0].send), what.bytes);
	OK(ferryCommDestroy(gang.comms[0]));
	OK(ferryCommDestroy(gang.comms[2]));
	domains_close();
	ranks_close(ranks, &gang);
}

#define TEST(name) cmocka_unit_test_teardown(name, no_misuse)

int main(void)
{
	const struct CMUnitTest tests[] = {
	        TEST(two_ranks_push_into_each_other),
	        TEST(two_ranks_of_one_gpu_push_within_it),
	        TEST(four_ranks_push_on_four_gpus),
	        TEST(four_ranks_push_on_two_gpus),
	        TEST(eight_ranks_push_on_four_gpus),
	        TEST(eight_ranks_push_on_two_gpus),
	        TEST(calls_of_nothing_and_of_one_rank_are_calls_too),
	        TEST(in_place_all_to_all_back_to_back_mixes_nothing),
	        TEST(both_fabrics_carry_their_parts_of_a_call),
	        TEST(memory_that_cannot_be_exported_goes_through_windows),
	        TEST(registered_buffers_are_pushed_into),
	        TEST(captured_calls_push_in_each_replay),
	        TEST(ends_that_disagree_on_whether_a_message_is_pushed_find_out),
	        TEST(who_has_its_message_leaves_though_the_sender_waits_for_another),
	};
	fake_is_the_driver();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
