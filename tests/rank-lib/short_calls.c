/* SPDX-License-Identifier: Apache-2.0 */
/* Short calls: collectives that the callers run themselves, beside those that lanes and routers run. */
#include "tests/short_pair.h"

#include <stdint.h>
#include <string.h>
#include <time.h>

#define MOST 4
#define ROOM (MOST * 4096u)

static char sends[MOST][ROOM + 16], by_callers[MOST][ROOM + 16], by_lanes[MOST][ROOM + 16];

/* ---- bits ---- */

enum kind { ALLREDUCE, ALLGATHER, REDUCESCATTER, BROADCAST, REDUCE, GATHER, SCATTER, ALLTOALL, KINDS };

struct shape {
	enum kind kind;
	size_t count;
	ferryDataType_t type;
	ferryRedOp_t op;
	int root;
};

static ferryResult_t call(const struct shape *shape, const void *send, void *receive, ferryComm_t comm,
                          ferryStream_t stream)
{
	size_t count = shape->count;
	switch (shape->kind) {
	case ALLREDUCE:
		return ferryAllReduce(send, receive, count, shape->type, shape->op, comm, stream);
	case ALLGATHER:
		return ferryAllGather(send, receive, count, shape->type, comm, stream);
	case REDUCESCATTER:
		return ferryReduceScatter(send, receive, count, shape->type, shape->op, comm, stream);
	case BROADCAST:
		return ferryBroadcast(send, receive, count, shape->type, shape->root, comm, stream);
	case REDUCE:
		return ferryReduce(send, receive, count, shape->type, shape->op, shape->root, comm, stream);
	case GATHER:
		return ferryGather(send, receive, count, shape->type, shape->root, comm, stream);
	case SCATTER:
		return ferryScatter(send, receive, count, shape->type, shape->root, comm, stream);
	case ALLTOALL:
		return ferryAllToAll(send, receive, count, shape->type, comm, stream);
	case KINDS:
		break;
	}
	return ferryInvalidArgument;
}

/* Where the send buffer lies in the receive buffer of a call in place. */
static size_t in_place(const struct shape *shape, int rank, size_t block)
{
	return shape->kind == ALLGATHER || (shape->kind == GATHER && rank == shape->root) ? (size_t)rank * block : 0;
}

/* Calls on all ranks, at `offset` bytes from where elements are aligned. */
static void run(const struct ranks *ranks, const struct shape *shape, char outputs[MOST][ROOM + 16], size_t offset,
                size_t block, bool placed)
{
	bool receives_block = shape->kind == REDUCESCATTER || shape->kind == SCATTER;
	ferryStream_t streams[MOST];
	for (int rank = 0; rank < ranks->count; rank++) {
		char *output = outputs[rank] + offset, *send = sends[rank] + offset;
		memset(outputs[rank], 0x55, ROOM + 16);
		OK(ferryStreamCreate(&streams[rank], rank));
		if (placed) {
			memcpy(output, sends[rank], ROOM);
			send = output + in_place(shape, rank, block);
			output += receives_block ? (size_t)rank * block : 0;
		}
		OK(call(shape, send, output, ranks->comms[rank], streams[rank]));
	}
	for (int rank = 0; rank < ranks->count; rank++) {
		OK(ferryStreamSynchronize(streams[rank]));
		OK(ferryStreamDestroy(streams[rank]));
	}
}

static const size_t element_bytes[ferryNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

static void compare(const struct ranks *callers, const struct ranks *lanes, const struct shape *shape)
{
	size_t block = shape->count * element_bytes[shape->type];
	for (int way = 0; way < 3; way++) { /* out of place, in place, at odd addresses */
		size_t offset = way == 2 ? 3 : 0;
		run(callers, shape, by_callers, offset, block, way == 1);
		run(lanes, shape, by_lanes, offset, block, way == 1);
		if (memcmp(by_callers, by_lanes, sizeof by_lanes))
			fail_msg("%d ranks, collective %d, %zu of type %d, op %d, root %d, way %d: other bits",
			         callers->count, shape->kind, shape->count, shape->type, shape->op, shape->root, way);
	}
}

/* Elements that are no NaN in any type, and sums of few of them neither. */
static void fill(void)
{
	uint32_t state = 12345;
	for (int rank = 0; rank < MOST; rank++)
		for (size_t i = 0; i < sizeof sends[rank]; i++)
			sends[rank][i] = (char)((state = state * 1664525 + 1013904223) >> 24 & 0x3f);
}

static void every_collective_gives_the_bits_that_lanes_and_routers_give(void **state)
{
	static const size_t counts[] = {0, 1, 37, 300};
	(void)state;
	fill();
	for (int count = 1; count <= MOST; count++) {
		struct ranks callers, lanes;
		open_with(&callers, count, 1, "1M");
		open_with(&lanes, count, 1, "0");
		for (int at = 0; at < KINDS * ferryNumTypes; at++) {
			struct shape shape = {.kind = at % KINDS,
			                      .type = at / KINDS,
			                      .count = counts[(at + at / KINDS + count) % 4],
			                      .op = (at / 3 + count) % ferryNumOps,
			                      .root = at % count};
			compare(&callers, &lanes, &shape);
		}
		close_ranks(&callers);
		close_ranks(&lanes);
	}
}

static void each_rank_has_its_factor_in_a_reduction_of_its_own(void **state)
{
	struct ranks ranks;
	float inputs[3] = {1, 10, 100}, outputs[3] = {0};
	(void)state;
	open_with(&ranks, 3, 1, "1M");
	for (int rank = 0; rank < 3; rank++) {
		float factor = (float)(rank + 1);
		ferryRedOp_t op;
		OK(ferryRedOpCreatePreMulSum(&op, &factor, ferryFloat32, ferryScalarHostImmediate, ranks.comms[rank]));
		OK(ferryAllReduce(&inputs[rank], &outputs[rank], 1, ferryFloat32, op, ranks.comms[rank], NULL));
		OK(ferryRedOpDestroy(op, ranks.comms[rank]));
	}
	OK(ferryStreamSynchronize(NULL));
	for (int rank = 0; rank < 3; rank++)
		assert_true(outputs[rank] == 321);
	close_ranks(&ranks);
}

/* ---- threads ---- */

static bool sums(struct rank *rank, int comm, size_t count)
{
	return went(rank, ferryAllReduce(rank->input, (char *)rank->output + comm * LONG, count, ferryFloat32,
	                                 ferrySum, rank->comms[comm], rank->streams[comm]));
}

static void *in_opposite_orders(void *argument)
{
	struct rank *rank = argument;
	for (int turn = 0; turn < 500; turn++) {
		int first = (rank->rank + turn) % 2;
		rank->input[0] = (float)turn;
		if (!sums(rank, 0, 1 + (size_t)turn) || !sums(rank, 1, 1000) || !waits(rank, first) ||
		    !waits(rank, !first))
			break;
		if (rank->output[0] != 2 * (float)turn || rank->output[LONG / sizeof *rank->output] != 2 * (float)turn)
			went(rank, ferryInternalError);
	}
	return NULL;
}

static void two_communicators_end_whose_streams_ranks_wait_for_in_opposite_orders(void **state)
{
	(void)state;
	pair_open("1M");
	pair_run(in_opposite_orders);
	pair_close();
}

/* Rank 1 makes calls and waits for none of them before rank 0 has all its results. */
static void *without_waiting(void *argument)
{
	struct rank *rank = argument;
	for (int turn = 0; turn < 20; turn++) {
		rank->input[0] = 1;
		for (int i = 0; i < 7 && sums(rank, 0, 100); i++)
			if (!rank->rank && !waits(rank, 0))
				break;
		if (turn % 2 && rank->rank)
			while (ferryStreamQuery(rank->streams[0]) == ferryInProgress)
				;
		pthread_barrier_wait(rank->both);
		waits(rank, 0);
		if (rank->output[0] != 2)
			went(rank, ferryInternalError);
		pthread_barrier_wait(rank->both);
	}
	return NULL;
}

static void calls_that_a_rank_does_not_wait_for_keep_no_other_waiting(void **state)
{
	(void)state;
	pair_open("1M");
	pair_run(without_waiting);
	pair_close();
}

static void wait_a_little(void *argument)
{
	(void)argument;
	nanosleep(&(struct timespec){0, 100000}, NULL);
}

/* In streams that are idle and in such that are not, on both communicators, calls that the callers run and others. */
static void *mixed(void *argument)
{
	struct rank *rank = argument;
	uint32_t random = 1;
	for (int turn = 0; turn < 60; turn++) {
		rank->input[0] = (float)turn;
		for (int i = 0; i < 6; i++) {
			random = random * 1664525 + 1013904223;
			if ((random >> 8) % 4 == (uint32_t)rank->rank)
				went(rank, ferryLaunchHostFunc(rank->streams[random >> 12 & 1], wait_a_little, NULL));
			if (!sums(rank, random >> 16 & 1, (random >> 20) % 5 ? (random >> 24) : LONG / 4))
				return NULL;
			if ((random >> 28) % 3 == 0 && !waits(rank, random >> 16 & 1))
				return NULL;
		}
		if (!sums(rank, 0, 5) || !sums(rank, 1, 5) || !waits(rank, 1) || !waits(rank, 0))
			return NULL;
		if (rank->output[0] != 2 * (float)turn || rank->output[LONG / sizeof *rank->output] != 2 * (float)turn)
			went(rank, ferryInternalError);
	}
	return NULL;
}

static void short_and_long_calls_follow_each_other_in_any_order(void **state)
{
	(void)state;
	pair_open("1M");
	pair_run(mixed);
	pair_close();
}

/* Rank 1 comes when rank 0 sleeps. */
static void *late(void *argument)
{
	struct rank *rank = argument;
	if (!rank->rank)
		pthread_getcpuclockid(pthread_self(), &pair_clock);
	pthread_barrier_wait(rank->both);
	if (rank->rank)
		other_sleeps(rank);
	if (sums(rank, 0, 10))
		waits(rank, 0);
	return NULL;
}

static void a_thread_that_waits_long_sleeps(void **state)
{
	(void)state;
	pair_open("1M");
	pair_run(late);
	pair_close();
}

/* ---- ranks that only send ---- */

#define AHEAD 4 /* two are over before the others come; of the rest the first waits for them */

static void call_ahead(const struct ranks *ranks, const struct shape *shape, int rank, ferryStream_t stream)
{
	size_t bytes = shape->count * element_bytes[shape->type];
	for (size_t i = 0; i < AHEAD; i++) {
		OK(call(shape, sends[rank] + i * 8, by_callers[rank] + i * 4 * bytes, ranks->comms[rank], stream));
		if (i < 2)
			OK(ferryStreamQuery(stream));
	}
}

/* Rank 0 is the root. Ranks that only send make all their calls before the others make their first. */
static void go_ahead(enum kind kind)
{
	const struct shape shape = {.kind = kind, .count = 2, .type = ferryFloat32, .op = ferryMax};
	const bool root_sends = kind == BROADCAST || kind == SCATTER;
	struct ranks ranks;
	ferryStream_t streams[3];
	open_with(&ranks, 3, 1, "1M");
	memset(by_callers, 0, sizeof by_callers);
	for (int rank = 0; rank < 3; rank++)
		OK(ferryStreamCreate(&streams[rank], rank));
	for (int turn = 0; turn < 3; turn++) {
		int rank = root_sends ? turn : (turn + 1) % 3; /* senders first */
		if (root_sends ? rank == 0 : rank != 0)
			call_ahead(&ranks, &shape, rank, streams[rank]);
		else
			for (size_t i = 0; i < AHEAD; i++)
				OK(call(&shape, sends[rank] + i * 8, by_callers[rank] + i * 32, ranks.comms[rank],
				        streams[rank]));
	}
	for (int rank = 0; rank < 3; rank++) {
		OK(ferryStreamSynchronize(streams[rank]));
		OK(ferryStreamDestroy(streams[rank]));
	}
	for (size_t i = 0; i < AHEAD; i++)
		for (int rank = 0; rank < 3; rank++) {
			if (kind == BROADCAST || kind == SCATTER)
				assert_memory_equal(by_callers[rank] + i * 32,
				                    sends[0] + i * 8 + (kind == SCATTER ? 8 * rank : 0), 8);
			else if (kind == GATHER)
				assert_memory_equal(by_callers[0] + i * 32 + 8 * rank, sends[rank] + i * 8, 8);
		}
	close_ranks(&ranks);
}

static void a_rank_that_only_sends_does_not_wait_for_the_others(void **state)
{
	(void)state;
	fill();
	go_ahead(BROADCAST);
	go_ahead(SCATTER);
	go_ahead(GATHER);
	go_ahead(REDUCE);
}

/* What it has sent stays for those that come later. */
static void a_rank_that_only_sends_may_leave_before_the_others_call(void **state)
{
	struct ranks ranks;
	float sent = 42, received = 0;
	(void)state;
	open_with(&ranks, 2, 1, "1M");
	OK(ferryBroadcast(&sent, &sent, 1, ferryFloat32, 0, ranks.comms[0], NULL));
	OK(ferryStreamSynchronize(NULL));
	OK(ferryCommDestroy(ranks.comms[0]));
	OK(ferryBroadcast(&received, &received, 1, ferryFloat32, 0, ranks.comms[1], NULL));
	OK(ferryStreamSynchronize(NULL));
	assert_true(received == 42);
	OK(ferryCommDestroy(ranks.comms[1]));
}

/* Both ranks make the same calls, with roots in any order, and wait now and then; rank 1 as often as it likes. */
static void *with_any_root(void *argument)
{
	struct rank *rank = argument;
	uint32_t state = 1, own = (uint32_t)rank->rank + 7;
	float *in = rank->input, *out = rank->output;
	for (int i = 0; i < 20000 && !rank->wrong[0]; i++) {
		struct shape shape = {.count = 1, .type = ferryFloat32};
		state = state * 1664525 + 1013904223;
		own = own * 22695477 + 1;
		shape.kind = (state >> 24) % KINDS;
		shape.root = state >> 20 & 1;
		in[0] = (float)(i + rank->rank);
		in[1] = in[0] + 1;
		out[0] = out[1] = -1;
		went(rank, call(&shape, in, out, rank->comms[0], rank->streams[0]));
		if (own >> 28 == 3)
			nanosleep(&(struct timespec){0, 1000}, NULL);
		if (!waits(rank, 0))
			break;
		float from = (float)(i + shape.root);
		bool is_root = rank->rank == shape.root, wrong = false;
		if (shape.kind == BROADCAST)
			wrong = out[0] != from;
		else if (shape.kind == SCATTER)
			wrong = out[0] != from + (float)rank->rank;
		else if (shape.kind == GATHER && is_root)
			wrong = out[0] != (float)i || out[1] != (float)i + 1;
		else if (shape.kind == ALLREDUCE || (shape.kind == REDUCE && is_root))
			wrong = out[0] != 2 * (float)i + 1;
		if (wrong)
			snprintf(rank->wrong, sizeof rank->wrong, "call %d, collective %d, root %d: %g, %g", i,
			         shape.kind, shape.root, (double)out[0], (double)out[1]);
	}
	return NULL;
}

static void roots_may_change_from_call_to_call(void **state)
{
	(void)state;
	pair_open("1M");
	pair_run(with_any_root);
	pair_close();
}

/* ---- errors ---- */

static void disagree(size_t count, ferryRedOp_t op, const char *theirs)
{
	struct ranks ranks;
	ferryStream_t streams[2];
	float *input = calloc(2, LONG), *output = calloc(2, LONG);
	open_with(&ranks, 2, 1, "1M");
	for (int rank = 0; rank < 2; rank++) {
		OK(ferryStreamCreate(&streams[rank], rank));
		ferryResult_t result =
		        ferryAllReduce(input, output + rank * LONG / 4, rank ? count : 10, ferryFloat32,
		                       rank ? op : ferrySum, ranks.comms[rank], streams[rank]);
		assert_true(!result || (rank && result == ferryInvalidUsage));
	}
	for (int rank = 0; rank < 2; rank++) {
		assert_int_equal(ferryStreamSynchronize(streams[rank]), ferryInvalidUsage);
		const char *said = ferryGetLastError(ranks.comms[rank]);
		if (!strstr(said, "rank 0 calls allreduce of 10 f32 (sum)") || !strstr(said, theirs))
			fail_msg("\"%s\"", said);
		OK(ferryStreamDestroy(streams[rank]));
	}
	for (int rank = 0; rank < 2; rank++)
		OK(ferryCommAbort(ranks.comms[rank]));
	free(input);
	free(output);
}

static void ranks_that_call_differently_are_told_both_calls(void **state)
{
	(void)state;
	disagree(10, ferryMax, "rank 1 calls allreduce of 10 f32 (max)");
	disagree(11, ferrySum, "rank 1 calls allreduce of 11 f32 (sum)");
	disagree(LONG / 4, ferrySum, "rank 1 calls allreduce of 1048576 f32 (sum)"); /* which is no short call */
}

/* Neither waits for the other, so they are told with the second call behind it. */
static void ranks_that_both_send_as_roots_are_told_two_calls_later(void **state)
{
	struct ranks ranks;
	ferryResult_t result[2] = {ferrySuccess, ferrySuccess};
	float value = 1;
	(void)state;
	open_with(&ranks, 2, 1, "1M");
	for (int i = 0; i < 3; i++)
		for (int rank = 0; rank < 2; rank++) {
			ferryResult_t made = ferryBroadcast(&value, &value, 1, ferryFloat32, i ? 0 : rank,
			                                   ranks.comms[rank], NULL);
			result[rank] = made ? made : ferryStreamSynchronize(NULL);
			if (i < 2)
				OK(result[rank]);
		}
	for (int rank = 0; rank < 2; rank++) {
		const char *said = ferryGetLastError(ranks.comms[rank]);
		if (!result[rank] || !strstr(said, "rank 0 calls broadcast of 1 f32 (root 0)") ||
		    !strstr(said, "rank 1 calls broadcast of 1 f32 (root 1)"))
			fail_msg("rank %d: \"%s\"", rank, said);
		OK(ferryCommAbort(ranks.comms[rank]));
	}
}

/* Of their last calls the rank that comes later hears as it ends. */
static void ranks_that_both_send_in_their_last_call_are_told_as_they_end(void **state)
{
	struct ranks ranks;
	float value = 1;
	(void)state;
	open_with(&ranks, 2, 1, "1M");
	for (int rank = 0; rank < 2; rank++)
		OK(ferryBroadcast(&value, &value, 1, ferryFloat32, rank, ranks.comms[rank], NULL));
	OK(ferryStreamSynchronize(NULL));
	for (int rank = 0; rank < 2; rank++)
		assert_int_equal(ferryCommDestroy(ranks.comms[rank]), ferryInvalidUsage);
}

static void a_call_that_others_never_make_ends_when_the_rank_aborts(void **state)
{
	struct ranks ranks;
	ferryStream_t stream;
	float value = 1;
	(void)state;
	open_with(&ranks, 2, 1, "1M");
	OK(ferryStreamCreate(&stream, 0));
	OK(ferryAllReduce(&value, &value, 1, ferryFloat32, ferrySum, ranks.comms[0], stream));
	assert_int_equal(ferryStreamQuery(stream), ferryInProgress);
	OK(ferryCommAbort(ranks.comms[0]));
	assert_int_equal(ferryStreamSynchronize(stream), ferryRemoteError);
	OK(ferryStreamDestroy(stream));
	OK(ferryCommAbort(ranks.comms[1]));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(every_collective_gives_the_bits_that_lanes_and_routers_give),
	        cmocka_unit_test(each_rank_has_its_factor_in_a_reduction_of_its_own),
	        cmocka_unit_test(two_communicators_end_whose_streams_ranks_wait_for_in_opposite_orders),
	        cmocka_unit_test(calls_that_a_rank_does_not_wait_for_keep_no_other_waiting),
	        cmocka_unit_test(short_and_long_calls_follow_each_other_in_any_order),
	        cmocka_unit_test(a_thread_that_waits_long_sleeps),
	        cmocka_unit_test(a_rank_that_only_sends_does_not_wait_for_the_others),
	        cmocka_unit_test(a_rank_that_only_sends_may_leave_before_the_others_call),
	        cmocka_unit_test(roots_may_change_from_call_to_call),
	        cmocka_unit_test(ranks_that_call_differently_are_told_both_calls),
	        cmocka_unit_test(ranks_that_both_send_as_roots_are_told_two_calls_later),
	        cmocka_unit_test(ranks_that_both_send_in_their_last_call_are_told_as_they_end),
	        cmocka_unit_test(a_call_that_others_never_make_ends_when_the_rank_aborts),
	};
	setenv("FERRY_DEVICE", "host", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
