/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Captures and their graphs, over the double of the CUDA driver: what is refused and leaves a capture valid, which of
 * graph and communicator may go first, and ranks that capture in threads of their own.
 */
#include "tests/fake_cuda/replays.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- refusals ---- */

static void capture_of_an_unsupported_case_is_refused_and_the_capture_stays_valid(void **state)
{
	(void)state;
	struct gang gang;
	struct place places[MOST_PLACES];
	CUgraphExec graphs[MOST_PLACES];
	uint32_t ordinary = 0;
	gang_open(&gang, 2, devices, 1);
	places_open(places, &gang, COUNT);
	for (int rank = 0; rank < 2; rank++) {
		ferryComm_t comm = gang.comms[rank];
		ferryStream_t stream = (ferryStream_t)places[rank].stream;
		void *output = (void *)(uintptr_t)places[rank].output;
		begin(&places[rank], CU_STREAM_CAPTURE_MODE_GLOBAL);
		place_write(&places[rank]);
		REFUSED(ferryInvalidArgument, "host memory",
		        ferryAllReduce(&ordinary, output, 1, ferryUint32, ferrySum, comm, stream));
		place_call(&places[rank], comm);
		place_judge(&places[rank]);
		graphs[rank] = end(&places[rank]);
	}
	for (int i = 0; i < 10; i++)
		replay(places, &gang, graphs);
	places_settle(places, &gang, 10);
	forget(&gang, graphs);
	gang_close(&gang);
	places_close(places, &gang);
}

/* The blocking stream's capture would have to wait for the default stream and the other way round. */
static void the_default_stream_beside_a_captured_blocking_stream_is_refused(void **state)
{
	(void)state;
	struct gang gang;
	struct place places[MOST_PLACES];
	CUstream blocking;
	CUgraph captured;
	gang_open(&gang, 2, devices, 1);
	places_open(places, &gang, COUNT);
	place_enter(&places[0]);
	CU(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
	CU(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
	REFUSED(ferryInvalidUsage, "default stream",
	        ferryAllReduce((void *)(uintptr_t)places[0].input, (void *)(uintptr_t)places[0].output, COUNT,
	                       ferryUint32, ferrySum, gang.comms[0], NULL));
	CU(cuStreamEndCapture(blocking, &captured));
	CU(cuGraphDestroy(captured));
	CU(cuStreamDestroy(blocking));
	places_round(places, &gang);
	places_settle(places, &gang, 1);
	gang_close(&gang);
	places_close(places, &gang);
}

/* ---- ends ---- */

static void graph_destroyed_while_communicator_lives(void **state)
{
	(void)state;
	struct gang gang;
	struct place places[MOST_PLACES];
	CUgraphExec graphs[MOST_PLACES];
	gang_open(&gang, 2, devices, 2);
	places_open(places, &gang, COUNT);
	for (uint32_t i = 0; i < 20; i++) {
		capture_round(places, &gang, 2, CU_STREAM_CAPTURE_MODE_GLOBAL, graphs);
		replay(places, &gang, graphs);
		replay(places, &gang, graphs);
		forget(&gang, graphs); /* the replays may still be under way */
		places_round(places, &gang);
		places_settle(places, &gang, 3 * (i + 1));
	}
	gang_close(&gang);
	places_close(places, &gang);
}

/* What this process has of GPUs' memory; the double's allocations are files. */
static int allocations(void)
{
	char line[512];
	int count = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	assert_non_null(maps);
	while (fgets(line, sizeof line, maps))
		count += strstr(line, "memfd:fake") != NULL;
	fclose(maps);
	return count;
}

#define MADE 24 /* rounds: graphs of two ranks and two calls each, which have a window each */

/* Memory of pools cannot be exported: windows take its place. A program that captures anew each step takes no more. */
static void graphs_that_are_made_again_have_the_windows_of_those_that_are_gone(void **state)
{
	(void)state;
	struct gang gang;
	struct place places[MOST_PLACES];
	CUdeviceptr pooled[2];
	CUgraphExec graphs[MOST_PLACES];
	uint32_t calm = 0; /* rounds that took no more memory */
	gang_open(&gang, 2, devices, 1);
	places_open(places, &gang, COUNT);
	for (int rank = 0; rank < 2; rank++) {
		place_enter(&places[rank]);
		CU(cuMemAllocAsync(&pooled[rank], COUNT * sizeof(uint32_t), places[rank].stream));
		CU(cuStreamSynchronize(places[rank].stream));
		places[rank].input = pooled[rank];
	}
	/* a graph goes by a thread of the driver's, which may be late: then the next round has windows of its own */
	for (uint32_t i = 0; calm < MADE; i++) {
		int had = allocations();
		assert_true(i < 40 * MADE);
		capture_round(places, &gang, 2, CU_STREAM_CAPTURE_MODE_GLOBAL, graphs);
		replay(places, &gang, graphs);
		places_settle(places, &gang, i + 1);
		forget(&gang, graphs);
		calm += allocations() <= had;
	}
	for (int rank = 0; rank < 2; rank++) {
		place_enter(&places[rank]);
		CU(cuMemFreeAsync(pooled[rank], places[rank].stream));
	}
	gang_close(&gang);
	places_close(places, &gang);
}

static void communicator_destroyed_before_the_graph(void **state)
{
	(void)state;
	struct gang gang;
	struct place places[MOST_PLACES];
	CUgraphExec graphs[MOST_PLACES];
	gang_open(&gang, 2, devices, 1);
	places_open(places, &gang, COUNT);
	capture_round(places, &gang, 2, CU_STREAM_CAPTURE_MODE_GLOBAL, graphs);
	for (int i = 0; i < 5; i++)
		replay(places, &gang, graphs);
	places_settle(places, &gang, 5);
	gang_close(&gang);
	forget(&gang, graphs);
	places_close(places, &gang);
	gang_open(&gang, 2, devices, 1);
	places_open(places, &gang, COUNT);
	places_round(places, &gang);
	places_settle(places, &gang, 1);
	gang_close(&gang);
	places_close(places, &gang);
}

/* What was captured and never launched: thrown away as a graph, or with a capture that something else ended. */
static void captures_that_are_thrown_away_leave_the_communicator_working(void **state)
{
	(void)state;
	struct gang gang;
	struct place places[MOST_PLACES];
	CUgraph captured;
	CUdeviceptr memory;
	gang_open(&gang, 2, devices, 1);
	places_open(places, &gang, COUNT);
	for (uint32_t i = 0; i < 5; i++) {
		for (int rank = 0; rank < 2; rank++) {
			begin(&places[rank], CU_STREAM_CAPTURE_MODE_GLOBAL);
			place_call(&places[rank], gang.comms[rank]);
			CU(cuStreamEndCapture(places[rank].stream, &captured));
			CU(cuGraphDestroy(captured));
			begin(&places[rank], CU_STREAM_CAPTURE_MODE_GLOBAL);
			place_call(&places[rank], gang.comms[rank]);
			assert_int_equal(cuMemAlloc(&memory, 8), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
			REFUSED(ferryInvalidUsage, "invalidated",
			        ferryAllReduce((void *)(uintptr_t)places[rank].input,
			                       (void *)(uintptr_t)places[rank].output, COUNT, ferryUint32, ferrySum,
			                       gang.comms[rank], (ferryStream_t)places[rank].stream));
			assert_int_equal(cuStreamEndCapture(places[rank].stream, &captured),
			                 CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
		}
		places_round(places, &gang);
		places_settle(places, &gang, i + 1);
	}
	gang_close(&gang);
	places_close(places, &gang);
}

/* ---- threads ---- */

struct caller {
	const struct gang *gang;
	struct place *place;
	pthread_t thread;
};

static void *capture_and_replay(void *argument)
{
	struct caller *caller = argument;
	struct place *place = caller->place;
	ferryComm_t comm = caller->gang->comms[place->rank];
	for (int graph = 0; graph < 5; graph++) {
		begin(place, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
		place_write(place);
		place_call(place, comm);
		place_judge(place);
		CUgraphExec executable = end(place);
		for (int i = 0; i < 20; i++) {
			CU(cuGraphLaunch(executable, place->stream));
			if (i % 5 == 0)
				place_round(place, comm);
		}
		CU(cuGraphExecDestroy(executable));
	}
	return NULL;
}

static void each_rank_captures_in_a_thread_of_its_own(void **state)
{
	(void)state;
	struct gang gang;
	struct place places[MOST_PLACES];
	struct caller callers[4];
	gang_open(&gang, 4, devices, 2);
	places_open(places, &gang, COUNT);
	for (int rank = 0; rank < 4; rank++) {
		callers[rank] = (struct caller){&gang, &places[rank], 0};
		pthread_create(&callers[rank].thread, NULL, capture_and_replay, &callers[rank]);
	}
	for (int rank = 0; rank < 4; rank++)
		pthread_join(callers[rank].thread, NULL);
	places_settle(places, &gang, 5 * 24);
	gang_close(&gang);
	places_close(places, &gang);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test_teardown(capture_of_an_unsupported_case_is_refused_and_the_capture_stays_valid,
	                                  no_misuse),
	        cmocka_unit_test_teardown(the_default_stream_beside_a_captured_blocking_stream_is_refused, no_misuse),
	        cmocka_unit_test_teardown(graph_destroyed_while_communicator_lives, no_misuse),
	        cmocka_unit_test_teardown(graphs_that_are_made_again_have_the_windows_of_those_that_are_gone,
	                                  no_misuse),
	        cmocka_unit_test_teardown(communicator_destroyed_before_the_graph, no_misuse),
	        cmocka_unit_test_teardown(captures_that_are_thrown_away_leave_the_communicator_working, no_misuse),
	        cmocka_unit_test_teardown(each_rank_captures_in_a_thread_of_its_own, no_misuse),
	};
	fake_is_the_driver();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
