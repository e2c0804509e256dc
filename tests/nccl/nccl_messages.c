/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of NCCL programs that kernels of Ferry's carry: begun for each pair at one message, whenever its ends come;
 * a group's by one kernel, in streams and graphs; beside what NCCL has of the group. Over both doubles; ranks are
 * threads of this process.
 */
#include "tests/nccl/messages.h"

#include <unistd.h>

/* Elements from one rank to another one: none now and then, to itself too. By host memory a kernel's have 32 KiB. */
static size_t length(int from, int to, int round)
{
	return (size_t)((from * 5 + to * 3 + round) % 4) * (size_t)(1 + 900 * (round % 3) + 7 * from);
}

/* An exchange of uneven parts: part p begins at p * LARGE / 4. */
static void exchange_on(struct player *player, ncclComm_t comm, int round, cudaStream_t second)
{
	int rank = player->rank.rank;
	NCCL(ncclGroupStart());
	for (int peer = 0; peer < RANKS; peer++) {
		size_t at = (size_t)peer * LARGE / 4;
		NCCL(ncclSend((float *)player->send + at, length(rank, peer, round), ncclFloat32, peer, comm,
		              stream_of(player)));
		NCCL(ncclRecv((float *)player->receive + at, length(peer, rank, round), ncclFloat32, peer, comm,
		              second));
	}
	NCCL(ncclGroupEnd());
}

static void check_exchange(struct player *player, int round)
{
	for (int peer = 0; peer < RANKS; peer++) {
		size_t n = length(peer, player->rank.rank, round), at = (size_t)peer * LARGE / 4;
		for (size_t i = 0; i <= n; i++)
			HOLDS(player->out[at + i] ==
			      (i < n ? value_of(peer, (size_t)player->rank.rank * LARGE / 4 + i, round) : 0));
	}
}

static void exchange(struct player *player, int round)
{
	fill(player, LARGE, round);
	exchange_on(player, player->rank.comm, round, stream_of(player));
	settle(player);
	check_exchange(player, round);
}

/* Until kernels carry the messages of all pairs. */
static void warm_up(struct player *player)
{
	bool begun = false;
	for (int round = 0; round < MANY && !all(player, begun); round++) {
		exchange(player, round);
		begun = true;
		struct ferry_shadow_comm *shadow_comm = shadow_of(player->rank.comm);
		for (int peer = 0; peer < RANKS; peer++)
			for (int sends = 0; sends < 2; sends++)
				begun &= peer == player->rank.rank ||
				         ferry_shadow_comm_messages_begun(shadow_comm, peer, sends);
		doze(1);
	}
	HOLDS(begun);
}

/* ---- where they begin ---- */

static int begins[2][RANKS]; /* [sends][rank], around a ring */

static void look(struct player *player, int message)
{
	struct ferry_shadow_comm *shadow_comm = shadow_of(player->rank.comm);
	for (int sends = 0; sends < 2; sends++)
		if (begins[sends][player->rank.rank] < 0 && shadow_comm &&
		    ferry_shadow_comm_messages_begun(shadow_comm, other(player, sends ? 1 : -1), sends))
			begins[sends][player->rank.rank] = message;
}

/* Around a ring, in groups and without. */
static void ring(struct player *player, int message)
{
	struct rank *rank = &player->rank;
	size_t n = message % 7 ? SMALL : LARGE;
	bool grouped = message % 3;
	fill(player, n, message);
	if (grouped)
		NCCL(ncclGroupStart());
	for (int turn = 0; turn < 2; turn++) { /* not all may receive first where that is no group */
		bool sends = (rank->rank == 0) == turn;
		int peer = other(player, sends ? 1 : -1);
		NCCL(sends ? ncclSend(player->send, n, ncclFloat32, peer, rank->comm, stream_of(player))
		           : ncclRecv(player->receive, n, ncclFloat32, peer, rank->comm, stream_of(player)));
	}
	if (grouped)
		NCCL(ncclGroupEnd());
	look(player, message);
	settle(player);
	HOLDS(player->out[n - 1] == value_of(other(player, -1), n - 1, message));
}

/* In a block of messages nothing else brings the ranks together. */
static void come_late(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	bool begun = false, ends = false;
	player_open(player);
	begins[0][rank->rank] = begins[1][rank->rank] = -1;
	for (int block = 0; block < MANY && !ends; block++) {
		for (int i = 0; i < 30; i++) {
			if (block == 0 && i == 20 && rank->rank == 1)
				usleep(20000);
			ring(player, 30 * block + i);
			usleep(begun ? 0 : 1000);
		}
		ends = begun; /* and one more of kernels */
		begun = all(player, begins[0][rank->rank] >= 0 && begins[1][rank->rank] >= 0);
	}
	HOLDS(begun);
	player_close(player);
}

static void kernels_begin_at_one_message_at_both_ends(void **state)
{
	(void)state;
	setenv("FERRY_SHARES", "nccl:0,host:1", 1);
	for (int times = 0; times < REPEATS(3, 1); times++) {
		play(come_late);
		for (int rank = 0; rank < RANKS; rank++)
			assert_int_equal(begins[1][rank], begins[0][(rank + 1) % RANKS]);
	}
	unsetenv("FERRY_SHARES");
}

/* ---- what they carry ---- */

/* On two streams in turn, whatever the other ranks do. */
static void exchanges(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	cudaStream_t second;
	player_open(player);
	EQUAL(cuStreamCreate((CUstream *)&second, CU_STREAM_NON_BLOCKING), 0);
	warm_up(player);
	for (int round = 0; round < REPEATS(40, 15); round++) {
		uint32_t launches = launches_in(rank->comm);
		uint64_t before = kernels_in(rank->comm), messages = 0;
		for (int peer = 0; peer < RANKS; peer++)
			messages += !!length(rank->rank, peer, round) + !!length(peer, rank->rank, round);
		fill(player, LARGE, round);
		exchange_on(player, rank->comm, round, (round >> rank->rank) & 1 ? second : stream_of(player));
		settle(player); /* the first one's stream comes behind all */
		check_exchange(player, round);
		EQUAL(launches_in(rank->comm) - launches, !!messages);
		EQUAL(kernels_in(rank->comm) - before, messages);
	}
	EQUAL(cuStreamDestroy((CUstream)second), 0);
	player_close(player);
}

static void messages_of_a_group_are_one_kernel_whatever_their_streams(void **state)
{
	(void)state;
	play(exchanges);
}

/* Replays of a graph of two exchanges and a sum, mixed with plain messages and sums. */
static void in_graphs(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	CUgraph captured;
	CUgraphExec graph;
	float *sums;
	player_open(player);
	warm_up(player);
	warm_up_in(player, rank->comm);
	sums = (float *)player->receive + LARGE;
	pthread_barrier_wait(&together); /* the mode concerns all threads */
	EQUAL(cuStreamBeginCapture(player->stream, CU_STREAM_CAPTURE_MODE_GLOBAL), 0);
	exchange_on(player, rank->comm, 2, stream_of(player));
	NCCL(ncclAllReduce(player->send, sums, SMALL, ncclFloat32, ncclSum, rank->comm, stream_of(player)));
	exchange_on(player, rank->comm, 5, stream_of(player));
	EQUAL(cuStreamEndCapture(player->stream, &captured), 0);
	pthread_barrier_wait(&together);
	EQUAL(cuGraphInstantiateWithFlags(&graph, captured, 0), 0);
	EQUAL(cuGraphDestroy(captured), 0);
	for (int round = 0; round < REPEATS(30, 12); round++) {
		fill(player, LARGE, 5);
		EQUAL(cuGraphLaunch(graph, player->stream), 0);
		if (round % 3 == 0)
			exchange_on(player, rank->comm, 8, stream_of(player));
		settle(player);
		float sum = 0;
		for (int from = 0; from < RANKS; from++)
			sum += value_of(from, 1, 5);
		HOLDS(player->out[LARGE + 1] == sum);
		for (int peer = 0; peer < RANKS; peer++)
			for (size_t i = 0, at = (size_t)peer * LARGE / 4; i < length(peer, rank->rank, 5); i++)
				HOLDS(player->out[at + i] ==
				      value_of(peer, (size_t)rank->rank * LARGE / 4 + i, 5));
		if (round % 4 == 0)
			exchange(player, round);
	}
	EQUAL(cuGraphExecDestroy(graph), 0);
	player_close(player);
}

static void messages_are_replayed_in_graphs(void **state)
{
	(void)state;
	play(in_graphs);
}

/* Around a ring, and to itself: over NVLink one kernel, as lines and in several blocks. By the host they are NCCL's. */
static void long_ones(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	const size_t n = 60000, half = LARGE / 2;
	const char *peers = getenv("FAKE_CUDA_PEERS");
	player_open(player);
	warm_up(player);
	for (int round = 0; round < 4; round++) {
		uint64_t before = kernels_in(rank->comm);
		fill(player, LARGE, round);
		NCCL(ncclGroupStart());
		for (int own = 0; own < 2; own++) {
			size_t at = own ? half + (size_t)round : 0;
			NCCL(ncclSend((float *)player->send + at, n, ncclFloat32, other(player, own ? 0 : 1),
			              rank->comm, stream_of(player)));
			NCCL(ncclRecv((float *)player->receive + at, n, ncclFloat32, other(player, own ? 0 : -1),
			              rank->comm, stream_of(player)));
		}
		NCCL(ncclGroupEnd());
		settle(player);
		EQUAL(kernels_in(rank->comm) - before, peers && !atoi(peers) ? 0 : 4);
		for (size_t i = 0; i < n; i++) {
			size_t own = half + (size_t)round + i;
			HOLDS(player->out[i] == value_of(other(player, -1), i, round));
			HOLDS(player->out[own] == value_of(rank->rank, own, round));
		}
		HOLDS(player->out[n] == 0 && player->out[half + (size_t)round + n] == 0);
	}
	player_close(player);
}

static void long_messages_over_nvlink_are_kernels(void **state)
{
	(void)state;
	play(long_ones);
}

/* More than the argument of a kernel holds, some to itself. */
static void many(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	int next = other(player, 1), last = other(player, -1), self = rank->rank;
	player_open(player);
	warm_up(player);
	fill(player, LARGE, 1);
	NCCL(ncclGroupStart());
	for (size_t i = 0; i < 300; i++) {
		int to = !(i % 7) ? self : i % 5 ? next : last, from = !(i % 7) ? self : i % 5 ? last : next;
		NCCL(ncclSend((float *)player->send + 10 * i, i % 10, ncclFloat32, to, rank->comm, stream_of(player)));
		NCCL(ncclRecv((float *)player->receive + 10 * i, i % 10, ncclFloat32, from, rank->comm,
		              stream_of(player)));
	}
	NCCL(ncclGroupEnd());
	settle(player);
	for (size_t i = 0; i < 3000; i++) {
		int from = !(i / 10 % 7) ? self : i / 10 % 5 ? last : next;
		HOLDS(player->out[i] == (i % 10 < i / 10 % 10 ? value_of(from, i, 1) : 0));
	}
	player_close(player);
}

static void a_group_may_have_more_messages_than_a_kernel(void **state)
{
	(void)state;
	play(many);
}

/* ---- beside other calls ---- */

static void large(struct player *player, bool sends, int peer)
{
	NCCL(sends ? ncclSend(player->send, LARGE, ncclFloat32, peer, player->rank.comm, stream_of(player))
	           : ncclRecv(player->receive, LARGE, ncclFloat32, peer, player->rank.comm, stream_of(player)));
}

static void small(struct player *player, bool sends, int peer)
{
	NCCL(sends ? ncclSend((float *)player->send + LARGE, SMALL, ncclFloat32, peer, player->rank.comm,
	                      stream_of(player))
	           : ncclRecv((float *)player->receive + LARGE, SMALL, ncclFloat32, peer, player->rank.comm,
	                      stream_of(player)));
}

/* Rank 0 makes in a group, or a graph of one, what rank 1 makes one after another. */
static void mixed(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	CUgraph captured;
	CUgraphExec graph = NULL;
	player_open(player);
	warm_up(player);
	for (int round = 0; round < 24 && rank->rank < 2; round++) {
		bool sends = round % 2, captures = round % 4 >= 2 && !rank->rank, last = rank->rank && round / 4 % 2;
		uint64_t before = kernels_in(rank->comm);
		fill(player, LARGE + SMALL, round);
		if (captures)
			EQUAL(cuStreamBeginCapture(player->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), 0);
		if (!rank->rank)
			NCCL(ncclGroupStart());
		if (!last)
			large(player, !rank->rank == sends, !rank->rank);
		small(player, !rank->rank != sends, !rank->rank);
		if (last)
			large(player, !rank->rank == sends, !rank->rank);
		if (!rank->rank)
			NCCL(ncclGroupEnd());
		EQUAL(kernels_in(rank->comm) - before, 1);
		if (captures) {
			EQUAL(cuStreamEndCapture(player->stream, &captured), 0);
			EQUAL(cuGraphInstantiateWithFlags(&graph, captured, 0), 0);
			EQUAL(cuGraphDestroy(captured), 0);
			EQUAL(cuGraphLaunch(graph, player->stream), 0);
		}
		settle(player);
		if (captures)
			EQUAL(cuGraphExecDestroy(graph), 0);
		bool received = !rank->rank != sends; /* the large one */
		HOLDS(!received || player->out[LARGE - 1] == value_of(!rank->rank, LARGE - 1, round));
		HOLDS(received || player->out[LARGE + 1] == value_of(!rank->rank, LARGE + 1, round));
	}
	player_close(player);
}

static void a_group_ends_whose_calls_another_rank_makes_one_after_another(void **state)
{
	(void)state;
	setenv("FERRY_SHARES", "nccl:1,host:0", 1);
	play(mixed);
	setenv("FERRY_SHARES", "nccl:0,host:1", 1);
	play(mixed);
	unsetenv("FERRY_SHARES");
}

/* One rank ends the communicator in the group of its last messages, the others behind it. */
static void ends_in_group(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	player_open(player);
	warm_up(player);
	fill(player, LARGE, 1);
	NCCL(ncclGroupStart());
	NCCL(ncclSend(player->send, SMALL, ncclFloat32, other(player, 1), rank->comm, stream_of(player)));
	NCCL(ncclRecv(player->receive, SMALL, ncclFloat32, other(player, -1), rank->comm, stream_of(player)));
	if (rank->rank == 1)
		NCCL(ncclCommDestroy(rank->comm));
	NCCL(ncclGroupEnd());
	settle(player);
	HOLDS(player->out[SMALL - 1] == value_of(other(player, -1), SMALL - 1, 1));
	if (rank->rank != 1)
		NCCL(ncclCommDestroy(rank->comm));
	buffers_close(player);
}

static void a_communicator_may_end_in_the_group_of_its_last_messages(void **state)
{
	(void)state;
	play(ends_in_group);
}

/* More than 64, of which none is received before all are sent: as a group's they end. */
static void ends_with_many(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	const size_t n = 8 << 10;
	player_open(player);
	warm_up(player);
	fill(player, LARGE, 1);
	NCCL(ncclGroupStart());
	for (int sends = 1; sends >= 0; sends--)
		for (int i = 0; i < 100; i++)
			NCCL(sends ? ncclSend(player->send, n, ncclFloat32, other(player, 1), rank->comm,
			                      stream_of(player))
			           : ncclRecv(player->receive, n, ncclFloat32, other(player, -1), rank->comm,
			                      stream_of(player)));
	NCCL(ncclCommDestroy(rank->comm));
	NCCL(ncclGroupEnd());
	settle(player);
	HOLDS(player->out[n - 1] == value_of(other(player, -1), n - 1, 1));
	buffers_close(player);
}

static void a_communicator_may_end_in_a_group_of_many_messages(void **state)
{
	(void)state;
	play(ends_with_many);
}

/* ---- what fails ---- */

/* Its bytes are none modulo 2^64: a kernel would have nothing to move. */
static void sends_too_much(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	player_open(player);
	warm_up(player);
	EQUAL(ncclSend(player->send, (size_t)1 << 62, ncclFloat32, other(player, 1), rank->comm, stream_of(player)),
	      ncclInvalidArgument);
	player_close(player);
}

static void a_count_that_wraps_is_nccls_to_refuse(void **state)
{
	(void)state;
	play(sends_too_much);
}

/* The others wait for what rank 0 never sends, and for room that it never makes. */
static void revokes(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	player_open(player);
	warm_up(player);
	pthread_barrier_wait(&together);
	for (int i = 0; i < 50 && rank->rank == 1; i++)
		NCCL(ncclSend(player->send, 8 << 10, ncclFloat32, 0, rank->comm, stream_of(player)));
	if (rank->rank == 2)
		NCCL(ncclRecv(player->receive, SMALL, ncclFloat32, 0, rank->comm, stream_of(player)));
	pthread_barrier_wait(&together);
	NCCL(ncclCommRevoke(rank->comm, 0));
	settle(player);
	pthread_barrier_wait(&together);
	NCCL(ncclCommAbort(rank->comm));
	buffers_close(player);
}

static void what_is_revoked_frees_streams_that_wait(void **state)
{
	(void)state;
	play(revokes);
}

/* Rank 1's part of Ferry fails: messages end with an error on all ranks. */
static void fails(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	ncclResult_t error = ncclSuccess;
	int calls = 0;
	player_open(player);
	warm_up(player);
	pthread_barrier_wait(&together);
	if (rank->rank == 1)
		ferry_shadow_comm_withdraw(shadow_of(rank->comm), "this rank is broken on purpose");
	for (; calls < MOST && !error; calls++) {
		error = rank->rank == 1 ? ncclSend(player->send, SMALL, ncclFloat32, 2, rank->comm, stream_of(player))
		                        : ncclRecv(player->receive, SMALL, ncclFloat32, 1 - rank->rank % 2, rank->comm,
		                                   stream_of(player));
		doze(10);
	}
	HOLDS(calls < MOST);
	settle(player);
	NCCL(ncclCommGetAsyncError(rank->comm, &error));
	EQUAL(error, ncclRemoteError);
	pthread_barrier_wait(&together);
	player_close(player);
}

static void where_one_fails_messages_end_with_an_error_on_all(void **state)
{
	(void)state;
	play(fails);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test_teardown(kernels_begin_at_one_message_at_both_ends, no_misuse),
	        cmocka_unit_test_teardown(messages_of_a_group_are_one_kernel_whatever_their_streams, no_misuse),
	        cmocka_unit_test_teardown(messages_are_replayed_in_graphs, no_misuse),
	        cmocka_unit_test_teardown(long_messages_over_nvlink_are_kernels, no_misuse),
	        cmocka_unit_test_teardown(a_group_may_have_more_messages_than_a_kernel, no_misuse),
	        cmocka_unit_test_teardown(a_group_ends_whose_calls_another_rank_makes_one_after_another, no_misuse),
	        cmocka_unit_test_teardown(a_communicator_may_end_in_the_group_of_its_last_messages, no_misuse),
	        cmocka_unit_test_teardown(a_communicator_may_end_in_a_group_of_many_messages, no_misuse),
	        cmocka_unit_test_teardown(a_count_that_wraps_is_nccls_to_refuse, no_misuse),
	        cmocka_unit_test_teardown(what_is_revoked_frees_streams_that_wait, no_misuse),
	        cmocka_unit_test_teardown(where_one_fails_messages_end_with_an_error_on_all, no_misuse),
	};
	setenv("FERRY_KERNELS", "on", 1);
	fake_is_the_driver();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
