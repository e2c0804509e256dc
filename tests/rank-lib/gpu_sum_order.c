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

#define ROOT 1 /* of a Reduce: the others have no result */

/* As places.h's, for each sum: of uint32. */
struct member {
	enum ferry_collective collective;
	int rank, nranks;
	size_t count; /* as the call takes it */
	CUstream stream;
	CUdeviceptr send, receive;
	uint32_t round; /* these two: the kernels' */
	size_t wrong;
};

static size_t sent(const struct member *member)
{
	return member->collective == FERRY_REDUCESCATTER ? member->count * (size_t)member->nranks : member->count;
}

static uint32_t element(uint32_t rank, uint32_t round, size_t i)
{
	return (rank + 1) * 2654435761u + (round + 3) * (uint32_t)(i + 1) * 40503u;
}

UNSEEN static void make_input(const struct member *member, uint32_t *made)
{
	for (size_t i = 0; i < sent(member); i++)
		made[i] = element((uint32_t)member->rank, member->round, i);
}

UNSEEN static void make_output(const struct member *member, uint32_t *made)
{
	size_t first = member->collective == FERRY_REDUCESCATTER ? member->count * (size_t)member->rank : 0;
	const bool none = member->collective == FERRY_REDUCE_TO_ROOT && member->rank != ROOT;
	memset(made, 0, member->count * sizeof *made);
	for (size_t i = 0; i < member->count && !none; i++)
		for (int rank = 0; rank < member->nranks; rank++)
			made[i] = (rank ? made[i] : 0) + element((uint32_t)rank, member->round, first + i);
}

static void write_input(void *argument)
{
	const struct member *member = argument;
	uint32_t *made = malloc(sent(member) * sizeof *made);
	make_input(member, made);
	memcpy(fake_cuda_reach(member->send), made, sent(member) * sizeof *made);
	free(made);
}

static void judge_output(void *argument)
{
	struct member *member = argument;
	uint32_t *made = malloc(member->count * sizeof *made);
	make_output(member, made);
	member->wrong += memcmp(fake_cuda_reach(member->receive), made, member->count * sizeof *made) != 0;
	memset(fake_cuda_reach(member->receive), 0, member->count * sizeof *made);
	member->round++;
	free(made);
}

static void members_open(struct member *members, const struct gang *gang, enum ferry_collective collective,
                         size_t count)
{
	for (int rank = 0; rank < gang->nranks; rank++) {
		struct member *member = &members[rank];
		*member = (struct member){collective, rank, gang->nranks, count, NULL, 0, 0, 0, 0};
		enter(gang, rank);
		CU(cuStreamCreate(&member->stream, CU_STREAM_NON_BLOCKING));
		CU(cuMemAlloc(&member->send, sent(member) * sizeof(uint32_t)));
		CU(cuMemAlloc(&member->receive, count * sizeof(uint32_t)));
		memset(fake_cuda_reach(member->receive), 0, count * sizeof(uint32_t));
	}
}

static void members_close(struct member *members, const struct gang *gang)
{
	for (int rank = 0; rank < gang->nranks; rank++) {
		enter(gang, rank);
		CU(cuStreamDestroy(members[rank].stream));
		CU(cuMemFree(members[rank].send));
		CU(cuMemFree(members[rank].receive));
	}
}

static ferryResult_t member_try(const struct member *member, ferryComm_t comm)
{
	void *send = pointer_of(member->send), *receive = pointer_of(member->receive);
	ferryStream_t stream = (ferryStream_t)member->stream;
	if (member->collective == FERRY_REDUCE_TO_ROOT)
		return ferryReduce(send, receive, member->count, ferryUint32, ferrySum, ROOT, comm, stream);
	return (member->collective == FERRY_ALLREDUCE ? ferryAllReduce
	                                              : ferryReduceScatter)(send, receive, member->count, ferryUint32,
	                                                                    ferrySum, comm, stream);
}

static void member_round(struct member *member, const struct gang *gang)
{
	enter(gang, member->rank);
	CU(fake_cuda_launch(member->stream, write_input, member));
	OK(member_try(member, gang->comms[member->rank]));
	CU(fake_cuda_launch(member->stream, judge_output, member));
}

static void members_settle(struct member *members, const struct gang *gang, uint32_t rounds)
{
	for (int rank = 0; rank < gang->nranks; rank++) {
		enter(gang, rank);
		CU(cuStreamSynchronize(members[rank].stream));
		if (members[rank].wrong || members[rank].round != rounds)
			fail_msg("rank %d: %zu of %u rounds wrong, %u expected", rank, members[rank].wrong,
			         members[rank].round, rounds);
	}
}

#define REPLAYS REPEATS(40, 6)

/* A captured sum is the routers', in a graph with its own memory. */
static void replays_are_right_between_plain_calls(void **state)
{
	(void)state;
	for (int which = SANITIZED; which < 4; which++) {
		struct gang gang;
		struct member members[MOST_PLACES];
		CUgraphExec graphs[MOST_PLACES];
		const enum ferry_collective collective = which < 2    ? FERRY_REDUCESCATTER
		                                         : which == 2 ? FERRY_ALLREDUCE
		                                                      : FERRY_REDUCE_TO_ROOT;
		use(which ? "peer" : "host");
		gang_open(&gang, 3, devices, 1);
		members_open(members, &gang, collective, which < 2 ? 1801 : 20007);
		for (int rank = 0; rank < 3; rank++) {
			CUgraph captured;
			enter(&gang, rank);
			CU(cuStreamBeginCapture(members[rank].stream, CU_STREAM_CAPTURE_MODE_RELAXED));
			member_round(&members[rank], &gang);
			CU(cuStreamEndCapture(members[rank].stream, &captured));
			CU(cuGraphInstantiateWithFlags(&graphs[rank], captured, 0));
			CU(cuGraphDestroy(captured));
		}
		assert_int_equal(submitted(gang.comms[0]), 1);
		assert_int_equal(rooms_of(gang.comms[0]), 0);
		for (int i = 0; i < REPLAYS; i++)
			for (int rank = 0; rank < 3; rank++) {
				enter(&gang, rank);
				CU(cuGraphLaunch(graphs[rank], members[rank].stream));
				if (i % 2)
					member_round(&members[rank], &gang);
			}
		members_settle(members, &gang, REPLAYS + REPLAYS / 2);
		assert_int_equal(rooms_of(gang.comms[0]), 1);
		for (int rank = 0; rank < 3; rank++)
			CU(cuGraphExecDestroy(graphs[rank]));
		gang_close(&gang);
		members_close(members, &gang);
	}
}

/* ---- together ---- */

#define ROWS 5

/* Each has a stream; lengths of their own, so that memory is made anew for some. */
static void rows_open(struct member members[][MOST_PLACES], const struct gang *gang)
{
	for (int row = 0; row + 1 < ROWS; row++)
		members_open(members[row], gang, row % 2 ? FERRY_ALLREDUCE : FERRY_REDUCESCATTER,
		             row % 2 ? 9001 + 40000 * (size_t)(row / 2) : 1800 + 2500 * (size_t)(row / 2));
	members_open(members[ROWS - 1], gang, FERRY_REDUCE_TO_ROOT, 30007);
}

static void rows_close(struct member members[][MOST_PLACES], const struct gang *gang, uint32_t rounds)
{
	for (int row = 0; row < ROWS; row++)
		members_settle(members[row], gang, rounds);
	for (int row = 0; row < ROWS; row++)
		members_close(members[row], gang);
}

/* Nothing but the communicator puts calls of several streams in order. */
static void streams_of_a_communicator_take_turns(void **state)
{
	(void)state;
	for (int fabric = 0; fabric < 2; fabric++) {
		struct gang gang;
		struct member members[ROWS][MOST_PLACES];
		use(fabric ? "peer" : "host");
		gang_open(&gang, 3, devices, 1);
		rows_open(members, &gang);
		for (int i = 0; i < REPEATS(20, 3); i++)
			for (int row = 0; row < ROWS; row++)
				for (int rank = 0; rank < 3; rank++)
					member_round(&members[row][rank], &gang);
		rows_close(members, &gang, REPEATS(20, 3));
		gang_close(&gang);
	}
}

/* Each rank makes all its calls before the next one does. */
static void communicators_take_turns(void **state)
{
	struct gang gangs[2];
	struct member members[2][ROWS][MOST_PLACES];
	(void)state;
	use("peer");
	for (int which = 0; which < 2; which++) {
		gang_open(&gangs[which], 2 + which, devices, 1);
		rows_open(members[which], &gangs[which]);
	}
	for (int rank = 0; rank < 3; rank++)
		for (int i = 0; i < REPEATS(6, 2); i++)
			for (int row = 0; row < ROWS; row++)
				for (int which = rank == 2; which < 2; which++)
					member_round(&members[which][row][rank], &gangs[which]);
	for (int which = 0; which < 2; which++) {
		rows_close(members[which], &gangs[which], REPEATS(6, 2));
		gang_close(&gangs[which]);
	}
}

/* So many ranks have all in the stream of the first row. */
static void rows_join(struct member members[][MOST_PLACES], const struct gang *gang, int nranks)
{
	for (int row = 1; row < ROWS; row++)
		for (int rank = 0; rank < nranks; rank++) {
			enter(gang, rank);
			CU(cuStreamDestroy(members[row][rank].stream));
			members[row][rank].stream = members[0][rank].stream;
		}
}

static void rows_part(struct member members[][MOST_PLACES], const struct gang *gang, int nranks)
{
	for (int row = 1; row < ROWS; row++)
		for (int rank = 0; rank < nranks; rank++) {
			enter(gang, rank);
			CU(cuStreamSynchronize(members[0][rank].stream));
			CU(cuStreamCreate(&members[row][rank].stream, CU_STREAM_NON_BLOCKING));
		}
}

static void released(void *value)
{
	atomic_store((_Atomic int *)value, 0);
}

/* between: goes into the first stream while the calls are open. */
static void make_group(struct member members[][MOST_PLACES], const struct gang *gang, int rank, bool open,
                       _Atomic int *between)
{
	struct ferry_open_group group = {0};
	enter(gang, rank);
	for (int row = 0; row < ROWS; row++)
		CU(fake_cuda_launch(members[row][rank].stream, write_input, &members[row][rank]));
	OK(ferryGroupStart());
	for (int row = 0; row < ROWS; row++)
		OK(member_try(&members[row][rank], gang->comms[rank]));
	OK(open ? ferry_group_end_open(&group) : ferryGroupEnd());
	if (between)
		CU(fake_cuda_launch(members[0][rank].stream, released, between));
	OK(ferry_group_finish(&group));
	for (int row = 0; row < ROWS; row++)
		CU(fake_cuda_launch(members[row][rank].stream, judge_output, &members[row][rank]));
}

/* Each in a stream of its own, or with two ranks all in one. */
static void calls_of_a_group_are_right(void **state)
{
	(void)state;
	for (int joined = 0; joined <= 2; joined += 2) {
		struct gang gang;
		struct member members[ROWS][MOST_PLACES];
		use("peer");
		gang_open(&gang, 3, devices, 1);
		rows_open(members, &gang);
		rows_join(members, &gang, joined);
		for (int i = 0; i < REPEATS(10, 2); i++)
			for (int rank = 0; rank < 3; rank++)
				make_group(members, &gang, rank, i % 2, NULL);
		for (int rank = 0; rank < 3; rank++)
			assert_int_equal(rooms_of(gang.comms[rank]), rank < joined ? 1 : ROWS);
		rows_part(members, &gang, joined);
		rows_close(members, &gang, REPEATS(10, 2));
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
		struct member members[ROWS][MOST_PLACES];
		use(fabric ? "peer" : "host");
		gang_open(&gang, 2, devices, 1);
		rows_open(members, &gang);
		rows_join(members, &gang, 2);
		for (int i = 0; i < ROUNDS; i++) {
			atomic_store(&held[i], 1);
			enter(&gang, 1);
			CU(fake_cuda_launch(members[0][1].stream, hold, &held[i]));
			make_group(members, &gang, 0, true, &held[i]);
			make_group(members, &gang, 1, true, NULL);
		}
		rows_part(members, &gang, 2);
		rows_close(members, &gang, ROUNDS);
		gang_close(&gang);
	}
}

/* Rank 1's input to rank 0, in place of its own. */
static ferryResult_t broadcast(const struct member *member, ferryComm_t comm)
{
	void *buffer = pointer_of(member->send);
	return ferryBroadcast(member->rank ? buffer : NULL, buffer, sent(member), ferryUint32, 1, comm,
	                      (ferryStream_t)member->stream);
}

/* One rank groups the calls, and the other one makes them singly, with others between them. */
static void ranks_group_sums_differently(void **state)
{
	struct gang gang;
	struct member members[ROWS][MOST_PLACES];
	(void)state;
	use("peer");
	gang_open(&gang, 2, devices, 1);
	rows_open(members, &gang);
	rows_join(members, &gang, 2);
	for (int rank = 0; rank < 2; rank++) {
		struct ferry_open_group group = {0};
		enter(&gang, rank);
		for (int row = 0; row < ROWS; row++)
			CU(fake_cuda_launch(members[row][rank].stream, write_input, &members[row][rank]));
		if (!rank)
			OK(ferryGroupStart());
		for (int row = 0; row < ROWS; row++) {
			OK(member_try(&members[row][rank], gang.comms[rank]));
			OK(broadcast(&members[row][rank], gang.comms[rank]));
		}
		if (!rank)
			OK(ferry_group_end_open(&group));
		OK(ferry_group_finish(&group));
		for (int row = 0; row < ROWS; row++)
			CU(fake_cuda_launch(members[row][rank].stream, judge_output, &members[row][rank]));
	}
	rows_part(members, &gang, 2);
	for (int row = 0; row < ROWS; row++)
		assert_memory_equal(fake_cuda_reach(members[row][0].send), fake_cuda_reach(members[row][1].send),
		                    sent(&members[row][0]) * sizeof(uint32_t));
	rows_close(members, &gang, 1);
	gang_close(&gang);
}

/* ---- before calls ---- */

static struct ferry_request request_of(const struct member *member, ferryComm_t comm, CUstream stream)
{
	return (struct ferry_request){.collective = member->collective,
	                              .send = pointer_of(member->send),
	                              .receive = pointer_of(member->receive),
	                              .count = member->count,
	                              .type = ferryUint32,
	                              .op = ferrySum,
	                              .root = member->collective == FERRY_REDUCE_TO_ROOT ? ROOT : 0,
	                              .comm = comm,
	                              .stream = (ferryStream_t)stream,
	                              .shared = true};
}

/* What a call needs is asked for, and made, and there. A rank into whose memory nobody pushes needs none. */
static void what_a_sum_needs_can_be_made_before_it(void **state)
{
	static const struct {
		enum ferry_collective collective;
		int nranks;
	} calls[] = {{FERRY_ALLREDUCE, 2}, {FERRY_REDUCE_TO_ROOT, 2}, {FERRY_REDUCE_TO_ROOT, 3}};
	(void)state;
	use("peer");
	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
		struct gang gang;
		struct member members[MOST_PLACES];
		gang_open(&gang, calls[i].nranks, devices, 1);
		members_open(members, &gang, calls[i].collective, 30000);
		for (int rank = 0; rank < calls[i].nranks; rank++) {
			const bool room = calls[i].collective == FERRY_ALLREDUCE || calls[i].nranks > 2 || rank == ROOT;
			const struct ferry_request request = request_of(&members[rank], gang.comms[rank],
			                                                members[rank].stream);
			enter(&gang, rank);
			OK(ferry_launch_preregister(&request, true, true)); /* of no stream yet */
			assert_int_equal(ferry_launch_has_preregistered(&request, true, true, true),
			                 room ? FERRY_PREREGISTERED_NOT : FERRY_PREREGISTERED);
			OK(ferry_launch_preregister(&request, true, true));
			assert_int_equal(ferry_launch_has_preregistered(&request, true, true, true),
			                 FERRY_PREREGISTERED);
			assert_int_equal(rooms_of(gang.comms[rank]), room);
		}
		for (int rank = 0; rank < calls[i].nranks; rank++)
			member_round(&members[rank], &gang);
		members_settle(members, &gang, 1);
		for (int rank = 0; rank < calls[i].nranks; rank++)
			assert_true(rooms_of(gang.comms[rank]) <= 1);
		members_close(members, &gang);
		gang_close(&gang);
	}
}

/* Their memory stays: streams that come and go must not take all of it. */
static void few_streams_have_memory_before_their_calls(void **state)
{
	enum { STREAMS = 9 };
	struct gang gang;
	struct member members[MOST_PLACES];
	(void)state;
	use("peer");
	gang_open(&gang, 2, devices, 1);
	members_open(members, &gang, FERRY_ALLREDUCE, 30000);
	enter(&gang, 0);
	for (int i = 0; i < STREAMS; i++) {
		CUstream stream;
		CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
		const struct ferry_request request = request_of(&members[0], gang.comms[0], stream);
		assert_int_equal(ferry_launch_has_preregistered(&request, true, true, true), FERRY_PREREGISTERED_NOT);
		if (i + 1 < STREAMS)
			OK(ferry_launch_preregister(&request, true, true));
		else
			REFUSED(ferryInternalError, "8 streams", ferry_launch_preregister(&request, true, true));
		CU(cuStreamDestroy(stream));
	}
	assert_int_equal(rooms_of(gang.comms[0]), STREAMS - 1);
	members_close(members, &gang);
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
