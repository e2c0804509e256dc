/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls in two steps (rank-lib/call/open_call.h), over the double of the CUDA driver: what a stream gets between the
 * two runs beside the call, what it gets behind the second comes after it.
 */
#include "tests/fake_cuda/places.h"

#include "rank-lib/api/group.h"
#include "rank-lib/call/comm.h"
#include "rank-lib/call/launch.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT 3011
#define CALLS 3
#define ROUNDS 20

static const int devices[] = {0, 1, 2, 3};

/* A kernel that lets others go on that hold until the value is 0. */
static void released(void *value)
{
	atomic_store((_Atomic int *)value, 0);
}

/* So many places of each rank, all in the stream of its first one. */
static void rows_open(struct place places[][MOST_PLACES], int rows, const struct gang *gang)
{
	for (int row = 0; row < rows; row++) {
		places_open(places[row], gang, COUNT + (size_t)row);
		for (int rank = 0; row && rank < gang->nranks; rank++) {
			place_enter(&places[row][rank]);
			CU(cuStreamDestroy(places[row][rank].stream));
			places[row][rank].stream = places[0][rank].stream;
		}
	}
}

static void rows_settle(struct place places[][MOST_PLACES], int rows, const struct gang *gang, uint32_t rounds)
{
	for (int row = 0; row < rows; row++)
		places_settle(places[row], gang, rounds);
}

static void rows_close(struct place places[][MOST_PLACES], int rows, const struct gang *gang)
{
	for (int row = 0; row < rows; row++) {
		for (int rank = 0; row && rank < gang->nranks; rank++) {
			place_enter(&places[row][rank]);
			CU(cuStreamCreate(&places[row][rank].stream, CU_STREAM_NON_BLOCKING));
		}
		places_close(places[row], gang);
	}
}

/* A call per row in one group; `between` goes into the stream while they are open. */
static void make_round(struct place places[][MOST_PLACES], int rows, const struct gang *gang, int rank,
                       _Atomic int *between)
{
	struct ferry_open_group open = {0};
	place_enter(&places[0][rank]);
	for (int row = 0; row < rows; row++)
		place_write(&places[row][rank]);
	OK(ferryGroupStart());
	for (int row = 0; row < rows; row++)
		place_call(&places[row][rank], gang->comms[rank]);
	OK(ferry_group_end_open(&open));
	assert_int_equal(open.ncalls, rows);
	if (between)
		CU(fake_cuda_launch(places[0][rank].stream, released, between));
	OK(ferry_group_finish(&open));
	for (int row = 0; row < rows; row++)
		place_judge(&places[row][rank]);
}

/* Rank 1 comes to the calls when what rank 0 has put between the two steps has run: not behind the calls, then. */
static void check_beside(int rows)
{
	struct gang gang;
	struct place places[CALLS][MOST_PLACES];
	static _Atomic int held[ROUNDS];
	gang_open(&gang, 2, devices, 1);
	rows_open(places, rows, &gang);
	for (int round = 0; round < ROUNDS; round++) {
		atomic_store(&held[round], 1);
		place_enter(&places[0][1]);
		CU(fake_cuda_launch(places[0][1].stream, hold, &held[round]));
		make_round(places, rows, &gang, 0, &held[round]);
		make_round(places, rows, &gang, 1, NULL);
	}
	rows_settle(places, rows, &gang, ROUNDS);
	rows_close(places, rows, &gang);
	gang_close(&gang);
}

static void what_comes_between_the_steps_runs_beside_the_call(void **state)
{
	(void)state;
	check_beside(1);
}

static void several_calls_are_open_in_a_stream_at_once(void **state)
{
	(void)state;
	check_beside(CALLS);
}

/* Of a ring, in one group: one call, open like others. */
static void messages_are_open_too(void **state)
{
	struct gang gang;
	struct place places[MOST_PLACES];
	static _Atomic int held;
	(void)state;
	gang_open(&gang, 2, devices, 1);
	places_open(places, &gang, COUNT);
	for (int round = 0; round < ROUNDS; round++) {
		atomic_store(&held, 1);
		place_enter(&places[1]);
		CU(fake_cuda_launch(places[1].stream, hold, &held));
		for (int rank = 0; rank < 2; rank++) {
			struct ferry_open_group open = {0};
			ferryStream_t stream = (ferryStream_t)places[rank].stream;
			uint32_t *out = fake_cuda_reach(places[rank].input);
			if (!round)
				out[0] = 40 + (uint32_t)rank;
			place_enter(&places[rank]);
			OK(ferryGroupStart());
			OK(ferrySend(pointer_of(places[rank].input), COUNT, ferryUint32, 1 - rank, gang.comms[rank],
			             stream));
			OK(ferryRecv(pointer_of(places[rank].output), COUNT, ferryUint32, 1 - rank, gang.comms[rank],
			             stream));
			OK(ferry_group_end_open(&open));
			assert_int_equal(open.ncalls, 1);
			if (!rank)
				CU(fake_cuda_launch(places[0].stream, released, &held));
			OK(ferry_group_finish(&open));
		}
		for (int rank = 0; rank < 2; rank++) {
			place_enter(&places[rank]);
			CU(cuStreamSynchronize(places[rank].stream));
			assert_int_equal(*(uint32_t *)fake_cuda_reach(places[rank].output), 41 - rank);
		}
	}
	places_close(places, &gang);
	gang_close(&gang);
}

/* A router may still get them, and their flags must not go to other calls. */
static void captured_calls_hold_their_flags(const struct ferry_stream_flag_table *flags)
{
	for (uint32_t i = 0; i < flags->count; i++)
		if (flags->uses[i].captured)
			assert_true(flags->uses[i].held);
}

static void open_calls_are_captured_and_replayed(void **state)
{
	struct gang gang;
	struct place places[CALLS][MOST_PLACES];
	static _Atomic int held;
	CUgraphExec graphs[2];
	(void)state;
	gang_open(&gang, 2, devices, 1);
	rows_open(places, CALLS, &gang);
	for (int rank = 0; rank < 2; rank++) {
		CUgraph captured;
		place_enter(&places[0][rank]);
		CU(cuStreamBeginCapture(places[0][rank].stream, CU_STREAM_CAPTURE_MODE_RELAXED));
		if (rank)
			CU(fake_cuda_launch(places[0][rank].stream, hold, &held));
		make_round(places, CALLS, &gang, rank, rank ? NULL : &held);
		CU(cuStreamEndCapture(places[0][rank].stream, &captured));
		CU(cuGraphInstantiateWithFlags(&graphs[rank], captured, 0));
		CU(cuGraphDestroy(captured));
		captured_calls_hold_their_flags(gang.comms[rank]->mapped.flags);
	}
	for (int replay = 0; replay < 5; replay++) {
		atomic_store(&held, 1);
		for (int rank = 1; rank >= 0; rank--) {
			place_enter(&places[0][rank]);
			CU(cuGraphLaunch(graphs[rank], places[0][rank].stream));
		}
		for (int rank = 0; rank < 2; rank++) {
			place_enter(&places[0][rank]);
			CU(cuStreamSynchronize(places[0][rank].stream));
		}
	}
	for (int rank = 0; rank < 2; rank++)
		CU(cuGraphExecDestroy(graphs[rank]));
	rows_settle(places, CALLS, &gang, 5);
	rows_close(places, CALLS, &gang);
	gang_close(&gang);
}

/* And the memory that they need stays: a communicator that is aborted meanwhile is held. */
static void a_communicator_may_be_aborted_between_the_steps(void **state)
{
	struct gang gang;
	struct place places[MOST_PLACES];
	struct ferry_open_group open = {0};
	(void)state;
	gang_open(&gang, 2, devices, 1);
	places_open(places, &gang, COUNT);
	place_enter(&places[0]);
	OK(ferryGroupStart());
	place_call(&places[0], gang.comms[0]);
	OK(ferry_group_end_open(&open));
	for (int rank = 0; rank < 2; rank++)
		OK(ferryCommAbort(gang.comms[rank]));
	gang.comms[0] = gang.comms[1] = NULL;
	place_enter(&places[0]);
	(void)ferry_group_finish(&open); /* an error, or a stream that waits for nothing */
	CU(cuStreamSynchronize(places[0].stream));
	places_close(places, &gang);
	domains_close();
}

/* ---- no stream flag is left ---- */

static void try_messages(const struct place *place, ferryComm_t comm)
{
	ferryStream_t stream = (ferryStream_t)place->stream;
	OK(ferryGroupStart());
	OK(ferrySend(pointer_of(place->input), COUNT, ferryUint32, 1 - place->rank, comm, stream));
	OK(ferryRecv(pointer_of(place->output), COUNT, ferryUint32, 1 - place->rank, comm, stream));
	REFUSED(ferryInvalidUsage, "32768 streams", ferryGroupEnd());
}

/* Plain and captured ones; a captured one's plan is given back. */
static void try_collective(const struct place *place, struct ferryComm *comm)
{
	REFUSED(ferryInvalidUsage, "32768 streams", place_try(place, comm));
	assert_int_equal(comm->plans.cache.busy, 0);
}

/* An export that is pinned is not forgotten. */
static bool is_pinned(struct ferryComm *comm, CUdeviceptr memory)
{
	struct ferry_buffer_name name;
	struct ferry_exports *exports = comm->mapped.exports;
	pthread_mutex_lock(&comm->lock);
	OK(ferry_exports_name(exports, pointer_of(memory), COUNT * sizeof(uint32_t), 0, false, false, &name));
	OK(ferry_exports_forget(exports, &name));
	bool pinned = ferry_exports_have(exports, pointer_of(memory), COUNT * sizeof(uint32_t), false);
	pthread_mutex_unlock(&comm->lock);
	return pinned;
}

static void a_call_without_a_stream_flag_fails_alone(void **state)
{
	static uint32_t taken[FERRY_STREAM_FLAGS];
	struct gang gang;
	struct place places[MOST_PLACES];
	uint32_t count = 0;
	(void)state;
	setenv("FERRY_KERNELS", "off", 1); /* they take none */
	gang_open(&gang, 2, devices, 1);
	places_open(places, &gang, COUNT);
	while (!ferry_stream_flag_take(&taken[count]))
		count++;
	for (int rank = 0; rank < 2; rank++) {
		CUgraph captured;
		place_enter(&places[rank]);
		try_collective(&places[rank], gang.comms[rank]);
		CU(cuStreamBeginCapture(places[rank].stream, CU_STREAM_CAPTURE_MODE_RELAXED));
		try_collective(&places[rank], gang.comms[rank]);
		try_messages(&places[rank], gang.comms[rank]);
		CU(cuStreamEndCapture(places[rank].stream, &captured));
		CU(cuGraphDestroy(captured));
		assert_false(is_pinned(gang.comms[rank], places[rank].input));
		assert_false(is_pinned(gang.comms[rank], places[rank].output));
	}
	while (count)
		ferry_stream_flag_give_back(taken[--count]);
	places_round(places, &gang);
	places_settle(places, &gang, 1);
	places_close(places, &gang);
	gang_close(&gang);
}

static void a_group_within_another_is_not_ended_open(void **state)
{
	struct ferry_open_group open = {0};
	(void)state;
	REFUSED(ferryInvalidUsage, "depth 0", ferry_group_end_open(&open));
	OK(ferry_group_finish(&open));
	OK(ferryGroupStart());
	OK(ferryGroupStart());
	REFUSED(ferryInvalidUsage, "depth 2", ferry_group_end_open(&open));
	OK(ferry_group_finish(&open));
	OK(ferryGroupEnd());
	OK(ferry_group_end_open(&open));
	assert_int_equal(open.ncalls, 0);
	OK(ferry_group_finish(&open));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test_teardown(what_comes_between_the_steps_runs_beside_the_call, no_misuse),
	        cmocka_unit_test_teardown(several_calls_are_open_in_a_stream_at_once, no_misuse),
	        cmocka_unit_test_teardown(messages_are_open_too, no_misuse),
	        cmocka_unit_test_teardown(open_calls_are_captured_and_replayed, no_misuse),
	        cmocka_unit_test_teardown(a_communicator_may_be_aborted_between_the_steps, no_misuse),
	        cmocka_unit_test_teardown(a_call_without_a_stream_flag_fails_alone, no_misuse),
	        cmocka_unit_test_teardown(a_group_within_another_is_not_ended_open, no_misuse),
	};
	fake_is_the_driver();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
