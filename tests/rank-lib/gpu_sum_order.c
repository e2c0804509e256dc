/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums that GPUs make themselves (rank-lib/call/gpu_sums.h), over the double of the CUDA driver: in whichever streams,
 * graphs, groups and communicators calls are, nothing of one call meets another's memory. Pieces are of 4 to 64 KiB,
 * and short kernels carry 8 KiB at most (tests/CMakeLists.txt).
 */
#include "rank-lib/api/group.h"
#include "rank-lib/call/comm.h"
#include "rank-lib/call/launch.h"
#include "tests/fake_cuda/places.h"

#include <stdlib.h>

static const int devices[] = {0, 1, 2, 3};

static void use(const char *fabric)
{
	setenv("FERRY_KERNELS", "on", 1);
	setenv("FERRY_FABRICS", fabric, 1);
}

static void enter(const struct gang *gang, int rank)
{
	const struct place place = {.device = gang->devices[rank]};
	place_enter(&place);
}

/* How many calls the rank has given its router. */
static uint64_t submitted(ferryComm_t comm)
{
	return comm->mapped.journal->number;
}

/* How many streams of the rank's have memory for blocks. */
static uint32_t rooms_of(const struct ferryComm *comm)
{
	uint32_t rooms = 0;
	for (const struct ferry_bounce_buffer *bounce = comm->mapped.bounces.all; bounce; bounce = bounce->next)
		rooms += bounce->stream == ferry_open_call_sums(bounce->stream);
	return rooms;
}

/* ---- rounds, in streams and graphs ---- */

/* As places.h's, for either sum: of uint32. */
struct caller {
	enum ferry_collective collective;
	int rank, nranks;
	size_t count; /* as the call takes it */
	CUstream stream;
	CUdeviceptr send, receive;
	uint32_t round; /* these two: the kernels' */
	size_t wrong;
};

static size_t sent(const struct caller *caller)
{
	return caller->collective == FERRY_REDUCESCATTER ? caller->count * (size_t)caller->nranks : caller->count;
}

static uint32_t element(uint32_t rank, uint32_t round, size_t i)
{
	return (rank + 1) * 2654435761u + (round + 3) * (uint32_t)(i + 1) * 40503u;
}

UNSEEN static void make_input(const struct caller *caller, uint32_t *made)
{
	for (size_t i = 0; i < sent(caller); i++)
		made[i] = element((uint32_t)caller->rank, caller->round, i);
}

UNSEEN static void make_output(const struct caller *caller, uint32_t *made)
{
	size_t first = caller->collective == FERRY_REDUCESCATTER ? caller->count * (size_t)caller->rank : 0;
	for (size_t i = 0; i < caller->count; i++)
		for (int rank = 0; rank < caller->nranks; rank++)
			made[i] = (rank ? made[i] : 0) + element((uint32_t)rank, caller->round, first + i);
}

static void write_input(void *argument)
{
	const struct caller *caller = argument;
	uint32_t *made = malloc(sent(caller) * sizeof *made);
	make_input(caller, made);
	memcpy(fake_cuda_reach(caller->send), made, sent(caller) * sizeof *made);
	free(made);
}

static void judge_output(void *argument)
{
	struct caller *caller = argument;
	uint32_t *made = malloc(caller->count * sizeof *made);
	make_output(caller, made);
	caller->wrong += memcmp(fake_cuda_reach(caller->receive), made, caller->count * sizeof *made) != 0;
	memset(fake_cuda_reach(caller->receive), 0, caller->count * sizeof *made);
	caller->round++;
	free(made);
}

static void seats_open(struct caller *callers, const struct gang *gang, enum ferry_collective collective, size_t count)
{
	for (int rank = 0; rank < gang->nranks; rank++) {
		struct caller *caller = &callers[rank];
		*caller = (struct caller){collective, rank, gang->nranks, count, NULL, 0, 0, 0, 0};
		enter(gang, rank);
		CU(cuStreamCreate(&caller->stream, CU_STREAM_NON_BLOCKING));
		CU(cuMemAlloc(&caller->send, sent(caller) * sizeof(uint32_t)));
		CU(cuMemAlloc(&caller->receive, count * sizeof(uint32_t)));
	}
}

static void seats_close(struct caller *callers, const struct gang *gang)
{
	for (int rank = 0; rank < gang->nranks; rank++) {
		enter(gang, rank);
		CU(cuStreamDestroy(callers[rank].stream));
		CU(cuMemFree(callers[rank].send));
		CU(cuMemFree(callers[rank].receive));
	}
}

static ferryResult_t seat_try(const struct caller *caller, ferryComm_t comm)
{
	void *send = pointer_of(caller->send), *receive = pointer_of(caller->receive);
	return (caller->collective == FERRY_ALLREDUCE ? ferryAllReduce
	                                              : ferryReduceScatter)(send, receive, caller->count, ferryUint32,
	                                                                    ferrySum, comm,
	                                                                    (ferryStream_t)caller->stream);
}

static void seat_round(struct caller *caller, const struct gang *gang)
{
	enter(gang, caller->rank);
	CU(fake_cuda_launch(caller->stream, write_input, caller));
	OK(seat_try(caller, gang->comms[caller->rank]));
	CU(fake_cuda_launch(caller->stream, judge_output, caller));
}

static void seats_settle(struct caller *callers, const struct gang *gang, uint32_t rounds)
{
	for (int rank = 0; rank < gang->nranks; rank++) {
		enter(gang, rank);
		CU(cuStreamSynchronize(callers[rank].stream));
		if (callers[rank].wrong || callers[rank].round != rounds)
			fail_msg("rank %d: %zu of %u rounds wrong, %u expected", rank, callers[rank].wrong,
			         callers[rank].round, rounds);
	}
}

#define REPLAYS REPEATS(40, 6)

/* A captured sum is the routers', in a graph with its own memory. */
static void replays_are_right_between_plain_calls(void **state)
{
	(void)state;
	for (int which = SANITIZED; which < 3; which++) {
		struct gang gang;
		struct caller callers[MOST_PLACES];
		CUgraphExec graphs[MOST_PLACES];
		const enum ferry_collective collective = which < 2 ? FERRY_REDUCESCATTER : FERRY_ALLREDUCE;
		use(which ? "peer" : "host");
		gang_open(&gang, 3, devices, 1);
		seats_open(callers, &gang, collective, which < 2 ? 1801 : 20007);
		for (int rank = 0; rank < 3; rank++) {
			CUgraph captured;
			enter(&gang, rank);
			CU(cuStreamBeginCapture(callers[rank].stream, CU_STREAM_CAPTURE_MODE_RELAXED));
			seat_round(&callers[rank], &gang);
			CU(cuStreamEndCapture(callers[rank].stream, &captured));
			CU(cuGraphInstantiateWithFlags(&graphs[rank], captured, 0));
			CU(cuGraphDestroy(captured));
		}
		assert_int_equal(submitted(gang.comms[0]), 1);
		assert_int_equal(rooms_of(gang.comms[0]), 0);
		for (int i = 0; i < REPLAYS; i++)
			for (int rank = 0; rank < 3; rank++) {
				enter(&gang, rank);
				CU(cuGraphLaunch(graphs[rank], callers[rank].stream));
				if (i % 2)
					seat_round(&callers[rank], &gang);
			}
		seats_settle(callers, &gang, REPLAYS + REPLAYS / 2);
		assert_int_equal(rooms_of(gang.comms[0]), 1);
		for (int rank = 0; rank < 3; rank++)
			CU(cuGraphExecDestroy(graphs[rank]));
		gang_close(&gang);
		seats_close(callers, &gang);
	}
}

/* ---- together ---- */

#define ROWS 4

/* Each has a stream; lengths of their own, so that memory is made anew for some. */
static void rows_open(struct caller callers[][MOST_PLACES], const struct gang *gang)
{
	for (int row = 0; row < ROWS; row++)
		seats_open(callers[row], gang, row % 2 ? FERRY_ALLREDUCE : FERRY_REDUCESCATTER,
		           row % 2 ? 9001 + 40000 * (size_t)(row / 2) : 1800 + 2500 * (size_t)(row / 2));
}

static void rows_close(struct caller callers[][MOST_PLACES], const struct gang *gang, uint32_t rounds)
{
	for (int row = 0; row < ROWS; row++)
		seats_settle(callers[row], gang, rounds);
	for (int row = 0; row < ROWS; row++)
		seats_close(callers[row], gang);
}

/* Nothing but the communicator puts calls of several streams in order. */
static void streams_of_a_communicator_take_turns(void **state)
{
	(void)state;
	for (int fabric = 0; fabric < 2; fabric++) {
		struct gang gang;
		struct caller callers[ROWS][MOST_PLACES];
		use(fabric ? "peer" : "host");
		gang_open(&gang, 3, devices, 1);
		rows_open(callers, &gang);
		for (int i = 0; i < REPEATS(20, 3); i++)
			for (int row = 0; row < ROWS; row++)
				for (int rank = 0; rank < 3; rank++)
					seat_round(&callers[row][rank], &gang);
		rows_close(callers, &gang, REPEATS(20, 3));
		gang_close(&gang);
	}
}

/* Each rank makes all its calls before the next one does. */
static void communicators_take_turns(void **state)
{
	struct gang gangs[2];
	struct caller callers[2][ROWS][MOST_PLACES];
	(void)state;
	use("peer");
	for (int which = 0; which < 2; which++) {
		gang_open(&gangs[which], 2 + which, devices, 1);
		rows_open(callers[which], &gangs[which]);
	}
	for (int rank = 0; rank < 3; rank++)
		for (int i = 0; i < REPEATS(6, 2); i++)
			for (int row = 0; row < ROWS; row++)
				for (int which = rank == 2; which < 2; which++)
					seat_round(&callers[which][row][rank], &gangs[which]);
	for (int which = 0; which < 2; which++) {
		rows_close(callers[which], &gangs[which], REPEATS(6, 2));
		gang_close(&gangs[which]);
	}
}

/* So many ranks have all in the stream of the first row. */
static void rows_join(struct caller callers[][MOST_PLACES], const struct gang *gang, int nranks)
{
	for (int row = 1; row < ROWS; row++)
		for (int rank = 0; rank < nranks; rank++) {
			enter(gang, rank);
			CU(cuStreamDestroy(callers[row][rank].stream));
			callers[row][rank].stream = callers[0][rank].stream;
		}
}

static void rows_part(struct caller callers[][MOST_PLACES], const struct gang *gang, int nranks)
{
	for (int row = 1; row < ROWS; row++)
		for (int rank = 0; rank < nranks; rank++) {
			enter(gang, rank);
			CU(cuStreamSynchronize(callers[0][rank].stream));
			CU(cuStreamCreate(&callers[row][rank].stream, CU_STREAM_NON_BLOCKING));
		}
}

static void released(void *value)
{
	atomic_store((_Atomic int *)value, 0);
}

/* between: goes into the first stream while the calls are open. */
static void make_group(struct caller callers[][MOST_PLACES], const struct gang *gang, int rank, bool open,
                       _Atomic int *between)
{
	struct ferry_open_group group = {0};
	enter(gang, rank);
	for (int row = 0; row < ROWS; row++)
		CU(fake_cuda_launch(callers[row][rank].stream, write_input, &callers[row][rank]));
	OK(ferryGroupStart());
	for (int row = 0; row < ROWS; row++)
		OK(seat_try(&callers[row][rank], gang->comms[rank]));
	OK(open ? ferry_group_end_open(&group) : ferryGroupEnd());
	if (between)
		CU(fake_cuda_launch(callers[0][rank].stream, released, between));
	OK(ferry_group_finish(&group));
	for (int row = 0; row < ROWS; row++)
		CU(fake_cuda_launch(callers[row][rank].stream, judge_output, &callers[row][rank]));
}

/* Each in a stream of its own, or with two ranks all in one. */
static void calls_of_a_group_are_right(void **state)
{
	(void)state;
	for (int joined = 0; joined <= 2; joined += 2) {
		struct gang gang;
		struct caller callers[ROWS][MOST_PLACES];
		use("peer");
		gang_open(&gang, 3, devices, 1);
		rows_open(callers, &gang);
		rows_join(callers, &gang, joined);
		for (int i = 0; i < REPEATS(10, 2); i++)
			for (int rank = 0; rank < 3; rank++)
				make_group(callers, &gang, rank, i % 2, NULL);
		for (int rank = 0; rank < 3; rank++)
			assert_int_equal(rooms_of(gang.comms[rank]), rank < joined ? 1 : ROWS);
		rows_part(callers, &gang, joined);
		rows_close(callers, &gang, REPEATS(10, 2));
		gang_close(&gang);
	}
}

/* Rank 1 comes to the calls when what rank 0 has put between the two steps has run: not behind the calls, then. */
static void work_between_the_begin_and_the_end_of_open_calls_runs_beside_them(void **state)
{
	enum { ROUNDS = REPEATS(8, 3) };
	static _Atomic int held[ROUNDS];
	(void)state;
	for (int fabric = SANITIZED; fabric < 2; fabric++) {
		struct gang gang;
		struct caller callers[ROWS][MOST_PLACES];
		use(fabric ? "peer" : "host");
		gang_open(&gang, 2, devices, 1);
		rows_open(callers, &gang);
		rows_join(callers, &gang, 2);
		for (int i = 0; i < ROUNDS; i++) {
			atomic_store(&held[i], 1);
			enter(&gang, 1);
			CU(fake_cuda_launch(callers[0][1].stream, hold, &held[i]));
			make_group(callers, &gang, 0, true, &held[i]);
			make_group(callers, &gang, 1, true, NULL);
		}
		rows_part(callers, &gang, 2);
		rows_close(callers, &gang, ROUNDS);
		gang_close(&gang);
	}
}

/* Rank 1's input to rank 0, in place of its own. */
static ferryResult_t broadcast(const struct caller *caller, ferryComm_t comm)
{
	void *buffer = pointer_of(caller->send);
	return ferryBroadcast(caller->rank ? buffer : NULL, buffer, sent(caller), ferryUint32, 1, comm,
	                      (ferryStream_t)caller->stream);
}

/* One rank groups the calls, and the other one makes them singly, with others between them. */
static void ranks_group_sums_differently(void **state)
{
	struct gang gang;
	struct caller callers[ROWS][MOST_PLACES];
	(void)state;
	use("peer");
	gang_open(&gang, 2, devices, 1);
	rows_open(callers, &gang);
	rows_join(callers, &gang, 2);
	for (int rank = 0; rank < 2; rank++) {
		struct ferry_open_group group = {0};
		enter(&gang, rank);
		for (int row = 0; row < ROWS; row++)
			CU(fake_cuda_launch(callers[row][rank].stream, write_input, &callers[row][rank]));
		if (!rank)
			OK(ferryGroupStart());
		for (int row = 0; row < ROWS; row++) {
			OK(seat_try(&callers[row][rank], gang.comms[rank]));
			OK(broadcast(&callers[row][rank], gang.comms[rank]));
		}
		if (!rank)
			OK(ferry_group_end_open(&group));
		OK(ferry_group_finish(&group));
		for (int row = 0; row < ROWS; row++)
			CU(fake_cuda_launch(callers[row][rank].stream, judge_output, &callers[row][rank]));
	}
	rows_part(callers, &gang, 2);
	for (int row = 0; row < ROWS; row++)
		assert_memory_equal(fake_cuda_reach(callers[row][0].send), fake_cuda_reach(callers[row][1].send),
		                    sent(&callers[row][0]) * sizeof(uint32_t));
	rows_close(callers, &gang, 1);
	gang_close(&gang);
}

/* ---- before calls ---- */

static struct ferry_request request_of(const struct caller *caller, ferryComm_t comm, CUstream stream)
{
	return (struct ferry_request){.collective = caller->collective,
	                              .send = pointer_of(caller->send),
	                              .receive = pointer_of(caller->receive),
	                              .count = caller->count,
	                              .type = ferryUint32,
	                              .op = ferrySum,
	                              .comm = comm,
	                              .stream = (ferryStream_t)stream,
	                              .shared = true};
}

/* What a call needs is asked for, and made, and there. */
static void what_a_sum_needs_can_be_made_before_it(void **state)
{
	struct gang gang;
	struct caller callers[MOST_PLACES];
	(void)state;
	use("peer");
	gang_open(&gang, 2, devices, 1);
	seats_open(callers, &gang, FERRY_ALLREDUCE, 30000);
	for (int rank = 0; rank < 2; rank++) {
		const struct ferry_request request = request_of(&callers[rank], gang.comms[rank], callers[rank].stream);
		enter(&gang, rank);
		OK(ferry_launch_show(&request, true, true)); /* of no stream yet */
		assert_int_equal(ferry_launch_has_preregistered(&request, true, true, true), FERRY_PREREGISTERED_NOT);
		OK(ferry_launch_show(&request, true, true));
		assert_int_equal(ferry_launch_has_preregistered(&request, true, true, true), FERRY_PREREGISTERED);
	}
	seats_close(callers, &gang);
	gang_close(&gang);
}

/* Their memory stays: streams that come and go must not take all of it. */
static void few_streams_have_memory_before_their_calls(void **state)
{
	enum { STREAMS = 9 };
	struct gang gang;
	struct caller callers[MOST_PLACES];
	(void)state;
	use("peer");
	gang_open(&gang, 2, devices, 1);
	seats_open(callers, &gang, FERRY_ALLREDUCE, 30000);
	enter(&gang, 0);
	for (int i = 0; i < STREAMS; i++) {
		CUstream stream;
		CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
		const struct ferry_request request = request_of(&callers[0], gang.comms[0], stream);
		assert_int_equal(ferry_launch_has_preregistered(&request, true, true, true), FERRY_PREREGISTERED_NOT);
		if (i + 1 < STREAMS)
			OK(ferry_launch_show(&request, true, true));
		else
			REFUSED(ferryInternalError, "8 streams", ferry_launch_show(&request, true, true));
		CU(cuStreamDestroy(stream));
	}
	assert_int_equal(rooms_of(gang.comms[0]), STREAMS - 1);
	seats_close(callers, &gang);
	gang_close(&gang);
}

#define TEST(name) cmocka_unit_test_teardown(name, no_misuse)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        TEST(replays_are_right_between_plain_calls),
	        TEST(streams_of_a_communicator_take_turns),
	        TEST(communicators_take_turns),
	        TEST(calls_of_a_group_are_right),
	        TEST(work_between_the_begin_and_the_end_of_open_calls_runs_beside_them),
	        TEST(ranks_group_sums_differently),
	        TEST(what_a_sum_needs_can_be_made_before_it),
	        TEST(few_streams_have_memory_before_their_calls),
	};
	fake_is_the_driver();
	if (argc == 2)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
