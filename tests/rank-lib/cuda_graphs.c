/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls captured into graphs, over the double of the CUDA driver: each replay is a new call with what the buffers hold
 * then. What captures refuse, and how they end: cuda_captures.c.
 */
#include "tests/fake_cuda/replays.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- replays ---- */

static void captured_call_is_replayed_a_thousand_times_with_changing_inputs(void **state)
{
	(void)state;
	struct gang gang;
	struct place places[MOST_PLACES];
	CUgraphExec graphs[MOST_PLACES];
	gang_open(&gang, 2, devices, 1);
	places_open(places, &gang, COUNT);
	capture_round(places, &gang, 1, CU_STREAM_CAPTURE_MODE_GLOBAL, graphs);
	for (int i = 0; i < 1000; i++)
		replay(places, &gang, graphs);
	places_settle(places, &gang, 1000);
	forget(&gang, graphs);
	gang_close(&gang);
	places_close(places, &gang);
}

/* Long enough for the thread that looks for replays to have gone to sleep. */
static void a_replay_after_a_long_rest_is_found(void **state)
{
	(void)state;
	struct gang gang;
	struct place places[MOST_PLACES];
	CUgraphExec graphs[MOST_PLACES];
	gang_open(&gang, 2, devices, 1);
	places_open(places, &gang, COUNT);
	capture_round(places, &gang, 1, CU_STREAM_CAPTURE_MODE_GLOBAL, graphs);
	for (uint32_t i = 1; i <= 3; i++) {
		doze(300);
		replay(places, &gang, graphs);
		places_settle(places, &gang, i);
	}
	forget(&gang, graphs);
	gang_close(&gang);
	places_close(places, &gang);
}

static void eager_calls_between_replays_of_several_calls(void **state)
{
	(void)state;
	struct gang gang;
	struct place places[MOST_PLACES];
	CUgraphExec graphs[MOST_PLACES];
	gang_open(&gang, 3, devices, 1);
	places_open(places, &gang, COUNT);
	for (int i = 0; i < 5; i++)
		places_round(places, &gang);
	capture_round(places, &gang, 3, CU_STREAM_CAPTURE_MODE_GLOBAL, graphs);
	for (int i = 0; i < 100; i++) {
		replay(places, &gang, graphs);
		for (int eager = 0; eager < i % 4; eager++)
			places_round(places, &gang);
	}
	places_settle(places, &gang, 5 + 100 + 150);
	forget(&gang, graphs);
	gang_close(&gang);
	places_close(places, &gang);
}

/* Streams of odd ranks are given the two in the other order. */
static void two_graphs_are_replayed_alternately_on_two_streams(void **state)
{
	(void)state;
	struct gang gang;
	struct place places[2][MOST_PLACES];
	CUgraphExec graphs[2][MOST_PLACES];
	gang_open(&gang, 3, devices, 2);
	for (int which = 0; which < 2; which++) {
		places_open(places[which], &gang, COUNT + 1000 * (size_t)which);
		capture_round(places[which], &gang, 1 + which, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, graphs[which]);
	}
	for (int i = 0; i < 200; i++)
		for (int turn = 0; turn < 2; turn++)
			for (int rank = 0; rank < 3; rank++) {
				int which = (turn + rank + i) % 2;
				place_enter(&places[which][rank]);
				CU(cuGraphLaunch(graphs[which][rank], places[which][rank].stream));
			}
	for (int which = 0; which < 2; which++) {
		places_settle(places[which], &gang, 200);
		forget(&gang, graphs[which]);
	}
	gang_close(&gang);
	for (int which = 0; which < 2; which++)
		places_close(places[which], &gang);
}

#define LONG_COUNT 120000
#define KINDS 3 /* of calls: two that go round windows that take much of the staging, and one that fits them */

/*
 * Calls that must be alone in the staging share it with those of either parity, on three streams that start them as
 * they like: first in the order in which they are made, then as rank 0's streams reach them, with eager ones between.
 */
static void long_calls_share_the_staging_with_others_by_turns(void **state)
{
	(void)state;
	struct gang gang;
	struct place places[KINDS][MOST_PLACES];
	CUgraphExec graphs[KINDS][MOST_PLACES];
	uint32_t rounds[KINDS] = {0}, random = 1;
	setenv("FERRY_STAGING", "1M", 1);
	gang_open(&gang, 3, devices, 1);
	for (int kind = 0; kind < KINDS; kind++)
		places_open(places[kind], &gang, kind < 2 ? LONG_COUNT + 5000 * (size_t)kind : COUNT);
	for (int i = 0; i < REPEATS(120, 20); i++) {
		int kind = (int)((random = random * 1103515245u + 12345u) >> 16) % KINDS;
		places_round(places[kind], &gang);
		rounds[kind]++;
	}
	places_round(places[0],
	             &gang); /* under way in parity 1 when the first replay, a short one, comes to parity 0 */
	rounds[0]++;
	for (int kind = KINDS - 1; kind >= 0; kind--) {
		capture_round(places[kind], &gang, 1, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, graphs[kind]);
		replay(places[kind], &gang, graphs[kind]);
		rounds[kind]++;
	}
	const uint32_t replays = REPEATS(60, 10);
	for (uint32_t i = 0; i < replays; i++) {
		for (int turn = 0; turn < KINDS; turn++)
			for (int rank = 0; rank < 3; rank++) {
				int kind = (turn + rank + (int)i) % KINDS;
				place_enter(&places[kind][rank]);
				CU(cuGraphLaunch(graphs[kind][rank], places[kind][rank].stream));
			}
		int eager = (int)((random = random * 1103515245u + 12345u) >> 16) % KINDS;
		places_round(places[eager], &gang);
		rounds[eager]++;
	}
	for (int kind = 0; kind < KINDS; kind++) {
		places_settle(places[kind], &gang, rounds[kind] + replays);
		forget(&gang, graphs[kind]);
	}
	gang_close(&gang);
	for (int kind = 0; kind < KINDS; kind++)
		places_close(places[kind], &gang);
	unsetenv("FERRY_STAGING");
}

/* Also on a stream that it was not captured from. */
static void one_graph_may_be_launched_on_several_streams(void **state)
{
	(void)state;
	struct gang gang;
	struct place places[MOST_PLACES];
	CUgraphExec graphs[MOST_PLACES];
	CUstream others[MOST_PLACES];
	gang_open(&gang, 2, devices, 1);
	places_open(places, &gang, COUNT);
	capture_round(places, &gang, 2, CU_STREAM_CAPTURE_MODE_RELAXED, graphs);
	for (int rank = 0; rank < 2; rank++) {
		place_enter(&places[rank]);
		CU(cuStreamCreate(&others[rank], CU_STREAM_NON_BLOCKING));
	}
	for (int i = 0; i < 60; i++)
		for (int rank = 0; rank < 2; rank++) {
			place_enter(&places[rank]);
			CU(cuGraphLaunch(graphs[rank], i % 3 ? others[rank] : places[rank].stream));
		}
	for (int rank = 0; rank < 2; rank++) {
		place_enter(&places[rank]);
		CU(cuStreamSynchronize(others[rank]));
		CU(cuStreamDestroy(others[rank]));
	}
	places_settle(places, &gang, 60);
	forget(&gang, graphs);
	gang_close(&gang);
	places_close(places, &gang);
}

/* Two executables of one captured graph share its calls; they are launched by turns. */
static void two_executables_of_one_graph_take_turns(void **state)
{
	(void)state;
	struct gang gang;
	struct place places[MOST_PLACES];
	CUgraphExec graphs[2][MOST_PLACES];
	gang_open(&gang, 2, devices, 2);
	places_open(places, &gang, COUNT);
	for (int rank = 0; rank < 2; rank++) {
		CUgraph captured;
		begin(&places[rank], CU_STREAM_CAPTURE_MODE_GLOBAL);
		place_write(&places[rank]);
		place_call(&places[rank], gang.comms[rank]);
		place_judge(&places[rank]);
		CU(cuStreamEndCapture(places[rank].stream, &captured));
		for (int which = 0; which < 2; which++)
			CU(cuGraphInstantiateWithFlags(&graphs[which][rank], captured, 0));
		CU(cuGraphDestroy(captured));
	}
	for (int i = 0; i < 50; i++)
		replay(places, &gang, graphs[i % 2]);
	places_settle(places, &gang, 50);
	forget(&gang, graphs[0]);
	for (int i = 0; i < 50; i++)
		replay(places, &gang, graphs[1]);
	places_settle(places, &gang, 100);
	forget(&gang, graphs[1]);
	gang_close(&gang);
	places_close(places, &gang);
}

/* One capture of all ranks: the streams of the others join through events and come back to rank 0's. */
static void all_ranks_of_a_process_may_be_captured_into_one_graph(void **state)
{
	(void)state;
	struct gang gang;
	struct place places[MOST_PLACES];
	CUevent fork, joins[MOST_PLACES];
	CUgraphExec graph;
	gang_open(&gang, 3, devices, 1);
	places_open(places, &gang, COUNT);
	begin(&places[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
	CU(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
	CU(cuEventRecord(fork, places[0].stream));
	for (int rank = 0; rank < 3; rank++) {
		place_enter(&places[rank]);
		if (rank)
			CU(cuStreamWaitEvent(places[rank].stream, fork, 0));
		place_write(&places[rank]);
		place_call(&places[rank], gang.comms[rank]);
		place_judge(&places[rank]);
		CU(cuEventCreate(&joins[rank], CU_EVENT_DISABLE_TIMING));
		CU(cuEventRecord(joins[rank], places[rank].stream));
	}
	place_enter(&places[0]);
	for (int rank = 1; rank < 3; rank++)
		CU(cuStreamWaitEvent(places[0].stream, joins[rank], 0));
	graph = end(&places[0]);
	for (int i = 0; i < 50; i++)
		CU(cuGraphLaunch(graph, places[0].stream));
	places_settle(places, &gang, 50);
	CU(cuGraphExecDestroy(graph));
	CU(cuEventDestroy(fork));
	for (int rank = 0; rank < 3; rank++)
		CU(cuEventDestroy(joins[rank]));
	gang_close(&gang);
	places_close(places, &gang);
}

static void every_capture_mode_will_do(void **state)
{
	(void)state;
	static const CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
	                                            CU_STREAM_CAPTURE_MODE_RELAXED};
	struct gang gang;
	struct place places[MOST_PLACES];
	CUgraphExec graphs[MOST_PLACES];
	gang_open(&gang, 2, devices, 2);
	places_open(places, &gang, COUNT);
	for (uint32_t mode = 0; mode < 3; mode++) {
		capture_round(places, &gang, 1, modes[mode], graphs);
		for (int i = 0; i < 10; i++)
			replay(places, &gang, graphs);
		places_settle(places, &gang, 10 * (mode + 1));
		forget(&gang, graphs);
	}
	gang_close(&gang);
	places_close(places, &gang);
}

/* Lanes work and lines are made meanwhile: 1100 calls take more than the device allocates at once. */
static void a_global_capture_stays_valid_beside_calls_under_way(void **state)
{
	(void)state;
	struct gang gangs[2];
	struct place places[2][MOST_PLACES];
	CUgraphExec graphs[MOST_PLACES];
	for (int which = 0; which < 2; which++) {
		gang_open(&gangs[which], 2, devices, 1);
		places_open(places[which], &gangs[which], which ? 64 : COUNT);
	}
	for (int i = 0; i < 20; i++)
		places_round(places[0], &gangs[0]);
	capture_round(places[1], &gangs[1], 550, CU_STREAM_CAPTURE_MODE_GLOBAL, graphs);
	replay(places[1], &gangs[1], graphs);
	for (int i = 0; i < 20; i++)
		places_round(places[0], &gangs[0]);
	places_settle(places[0], &gangs[0], 40);
	places_settle(places[1], &gangs[1], 1);
	forget(&gangs[1], graphs);
	for (int which = 0; which < 2; which++) {
		gang_close(&gangs[which]);
		places_close(places[which], &gangs[which]);
	}
}

/* ---- other collectives ---- */

/* alltoallv with other counts per pair, and premulsum with a scalar that changes between replays. */
static void alltoallv_and_device_scalars_are_replayed(void **state)
{
	(void)state;
	struct gang gang;
	struct place places[MOST_PLACES];
	CUgraphExec graphs[MOST_PLACES];
	CUdeviceptr scalars[2];
	ferryRedOp_t ops[2];
	static const size_t counts[2][2] = {{5, 700}, {300, 1}}, displacements[2] = {0, 1000};
	gang_open(&gang, 2, devices, 1);
	places_open(places, &gang, COUNT);
	for (int rank = 0; rank < 2; rank++) {
		struct place *place = &places[rank];
		const size_t received[2] = {counts[0][rank], counts[1][rank]};
		char *input = (char *)(uintptr_t)place->input, *output = (char *)(uintptr_t)place->output;
		place_enter(place);
		CU(cuMemAlloc(&scalars[rank], 4));
		OK(ferryRedOpCreatePreMulSum(&ops[rank], (void *)(uintptr_t)scalars[rank], ferryUint32,
		                             ferryScalarDevice, gang.comms[rank]));
		begin(place, CU_STREAM_CAPTURE_MODE_GLOBAL);
		OK(ferryAllToAllv(input, counts[rank], displacements, output, received, displacements, ferryUint32,
		                  gang.comms[rank], (ferryStream_t)place->stream));
		OK(ferryAllReduce(input + 2000 * 4, output + 2000 * 4, 1000, ferryUint32, ops[rank], gang.comms[rank],
		                  (ferryStream_t)place->stream));
		graphs[rank] = end(place);
		OK(ferryRedOpDestroy(ops[rank], gang.comms[rank]));
	}
	for (uint32_t i = 1; i <= 20; i++) {
		for (uint32_t rank = 0; rank < 2; rank++) {
			uint32_t *input = fake_cuda_reach(places[rank].input);
			*(uint32_t *)fake_cuda_reach(scalars[rank]) = i + rank;
			for (uint32_t n = 0; n < COUNT; n++)
				input[n] = i * 1000000 + rank * 100000 + n;
		}
		replay(places, &gang, graphs);
		places_settle(places, &gang, 0);
		for (uint32_t rank = 0; rank < 2; rank++) {
			const uint32_t *output = fake_cuda_reach(places[rank].output);
			for (uint32_t from = 0; from < 2; from++)
				assert_int_equal(output[1000 * from + counts[from][rank] - 1],
				                 i * 1000000 + from * 100000 + 1000 * rank + counts[from][rank] - 1);
			assert_int_equal(output[2999],
			                 i * (i * 1000000 + 2999) + (i + 1) * (i * 1000000 + 100000 + 2999));
		}
	}
	forget(&gang, graphs);
	for (int rank = 0; rank < 2; rank++)
		CU(cuMemFree(scalars[rank]));
	gang_close(&gang);
	places_close(places, &gang);
}

/* To the other rank and from it, `at` elements into both buffers. */
static void exchange(const struct place *place, ferryComm_t comm, size_t at)
{
	char *input = (char *)(uintptr_t)place->input + at * sizeof(uint32_t);
	char *output = (char *)(uintptr_t)place->output + at * sizeof(uint32_t);
	ferryStream_t stream = (ferryStream_t)place->stream;
	place_enter(place);
	OK(ferryGroupStart());
	OK(ferrySend(input, 1000, ferryUint32, 1 - place->rank, comm, stream));
	OK(ferryRecv(output, 1000, ferryUint32, 1 - place->rank, comm, stream));
	OK(ferryGroupEnd());
}

static void sends_and_receives_are_replayed_between_others(void **state)
{
	(void)state;
	struct gang gang;
	struct place places[MOST_PLACES];
	CUgraphExec graphs[MOST_PLACES];
	gang_open(&gang, 2, devices, 1);
	places_open(places, &gang, COUNT);
	for (int rank = 0; rank < 2; rank++) {
		exchange(&places[rank], gang.comms[rank], 0);
		begin(&places[rank], CU_STREAM_CAPTURE_MODE_GLOBAL);
		exchange(&places[rank], gang.comms[rank], 0);
		exchange(&places[rank], gang.comms[rank], 1000);
		graphs[rank] = end(&places[rank]);
	}
	places_settle(places, &gang, 0); /* what was sent before is read no more */
	for (uint32_t i = 1; i <= 50; i++) {
		for (uint32_t rank = 0; rank < 2; rank++) {
			uint32_t *input = fake_cuda_reach(places[rank].input);
			for (uint32_t n = 0; n < 3000; n++)
				input[n] = i * 1000000 + rank * 100000 + n;
		}
		for (int rank = 0; rank < 2 && i % 3 == 0; rank++)
			exchange(&places[rank], gang.comms[rank], 2000);
		replay(places, &gang, graphs);
		for (int rank = 0; rank < 2 && i % 3 == 1; rank++)
			exchange(&places[rank], gang.comms[rank], 2000);
		places_settle(places, &gang, 0);
		for (uint32_t rank = 0; rank < 2; rank++) {
			const uint32_t *output = fake_cuda_reach(places[rank].output);
			for (uint32_t n = 0; n < (i % 3 == 2 ? 2000u : 3000u); n++)
				assert_int_equal(output[n], i * 1000000 + (1 - rank) * 100000 + n);
		}
	}
	forget(&gang, graphs);
	gang_close(&gang);
	places_close(places, &gang);
}

/* Rank 1's graph runs, rank 0's does not: rank 0, which numbers the calls, would never say so. */
static void a_replay_that_rank_0_does_not_make_is_told_of(void **state)
{
	(void)state;
	const char *expected = places_gather()
	                               ? "rank 1 has waited 1 s for rank 0 to reach a captured call (allgather)\n"
	                               : "rank 1 has waited 1 s for rank 0 to reach a captured call (allreduce)\n";
	struct gang gang;
	struct place places[MOST_PLACES];
	CUgraphExec graphs[MOST_PLACES];
	char path[] = "/tmp/ferry-graphs-XXXXXX", said[4096] = "";
	int file = mkstemp(path), before = dup(STDERR_FILENO);
	assert_true(file >= 0 && before >= 0);
	unlink(path);
	setenv("FERRY_TIMEOUT", "1", 1);
	dup2(file, STDERR_FILENO); /* also of routers that start now */
	gang_open(&gang, 2, devices, 1);
	places_open(places, &gang, COUNT);
	capture_round(places, &gang, 1, CU_STREAM_CAPTURE_MODE_GLOBAL, graphs);
	replay(places, &gang, graphs);
	places_settle(places, &gang, 1);
	place_enter(&places[1]);
	CU(cuGraphLaunch(graphs[1], places[1].stream));
	for (int tries = 0; tries < 3000 && !strstr(said, expected); tries++) {
		doze(20);
		said[pread(file, said, sizeof said - 1, 0)] = '\0';
	}
	place_enter(&places[0]);
	CU(cuGraphLaunch(graphs[0], places[0].stream));
	places_settle(places, &gang, 2);
	dup2(before, STDERR_FILENO);
	said[pread(file, said, sizeof said - 1, 0)] = '\0';
	char *line = strstr(said, expected);
	if (!line || strstr(strchr(line, '\n'), "waited"))
		fail_msg("not once, but \"%s\"", said);
	close(before);
	close(file);
	unsetenv("FERRY_TIMEOUT");
	forget(&gang, graphs);
	gang_close(&gang);
	places_close(places, &gang);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test_teardown(captured_call_is_replayed_a_thousand_times_with_changing_inputs, no_misuse),
	        cmocka_unit_test_teardown(a_replay_after_a_long_rest_is_found, no_misuse),
	        cmocka_unit_test_teardown(eager_calls_between_replays_of_several_calls, no_misuse),
	        cmocka_unit_test_teardown(two_graphs_are_replayed_alternately_on_two_streams, no_misuse),
	        cmocka_unit_test_teardown(long_calls_share_the_staging_with_others_by_turns, no_misuse),
	        cmocka_unit_test_teardown(one_graph_may_be_launched_on_several_streams, no_misuse),
	        cmocka_unit_test_teardown(two_executables_of_one_graph_take_turns, no_misuse),
	        cmocka_unit_test_teardown(all_ranks_of_a_process_may_be_captured_into_one_graph, no_misuse),
	        cmocka_unit_test_teardown(every_capture_mode_will_do, no_misuse),
	        cmocka_unit_test_teardown(a_global_capture_stays_valid_beside_calls_under_way, no_misuse),
	        cmocka_unit_test_teardown(alltoallv_and_device_scalars_are_replayed, no_misuse),
	        cmocka_unit_test_teardown(sends_and_receives_are_replayed_between_others, no_misuse),
	        cmocka_unit_test_teardown(a_replay_that_rank_0_does_not_make_is_told_of, no_misuse),
	};
	fake_is_the_driver();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
