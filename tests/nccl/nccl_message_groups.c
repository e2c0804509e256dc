/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups of messages that kernels carry beside other calls, of one communicator or two, plain and in graphs: what ends
 * with NCCL, which has all calls of a group in one kernel, ends here. Over both doubles; ranks are threads of this
 * process, but for one thread that drives all.
 */
#include "tests/nccl/messages.h"
#include "tests/sanitized.h"

#include <math.h>
#include <time.h>
#include <unistd.h>

#define PART (8 << 10)   /* elements: what a kernel by host memory carries, */
#define BIG  (10 * PART) /* and what none does */

/* at: elements from the buffer's beginning, at both ends. */
static void message(const struct player *player, bool sends, int peer, size_t n, size_t at, ncclComm_t comm)
{
	NCCL(sends ? ncclSend((float *)player->send + at, n, ncclFloat32, peer, comm, stream_of(player))
	           : ncclRecv((float *)player->receive + at, n, ncclFloat32, peer, comm, stream_of(player)));
}

static void sum(const struct player *player, ncclComm_t comm)
{
	NCCL(ncclAllReduce(player->send, (float *)player->receive + LARGE, SMALL, ncclFloat32, ncclSum, comm,
	                   stream_of(player)));
}

static void check_sum_of(const struct player *player, int round)
{
	float total = 0;
	for (int from = 0; from < RANKS; from++)
		total += value_of(from, 1, round);
	HOLDS(player->out[LARGE + 1] == total);
}

static void check_message(const struct player *player, int from, size_t n, size_t at, int round)
{
	HOLDS(player->out[at] == value_of(from, at, round));
	HOLDS(player->out[at + n - 1] == value_of(from, at + n - 1, round));
}

/* Until kernels carry sums and messages of all pairs. Ranks count rounds alike: sums keep them together. */
static void warm_up(struct player *player, ncclComm_t comm)
{
	static bool said[RANKS];
	int self = player->rank.rank;
	bool begun = false;
	for (int round = 0; round < MANY && !begun; round++) {
		NCCL(ncclGroupStart());
		sum(player, comm);
		for (int way = 0; way < 2 * RANKS; way++)
			if (way / 2 != self)
				message(player, way % 2, way / 2, SMALL, (size_t)(way % 2 ? self : way / 2) * SMALL,
				        comm);
		NCCL(ncclGroupEnd());
		settle(player);
		struct ferry_shadow_comm *shadow_comm = shadow_of(comm);
		said[self] = kernels_in(comm) && ferry_shadow_comm_kernels_begun(shadow_comm);
		for (int way = 0; way < 2 * RANKS && said[self]; way++)
			said[self] &= way / 2 == self ||
			              ferry_shadow_comm_messages_begun(shadow_comm, way / 2, way % 2);
		pthread_barrier_wait(&together);
		begun = said[0] && said[1] && said[2];
		pthread_barrier_wait(&together);
		doze(1);
	}
	HOLDS(begun);
}

/* Captures what `calls` makes and launches it, or makes it plain. */
static void make(struct player *player, void (*calls)(struct player *player, ncclComm_t other), ncclComm_t other,
                 bool captures)
{
	CUgraph captured;
	CUgraphExec graph;
	if (!captures) {
		calls(player, other);
		settle(player);
		return;
	}
	EQUAL(cuStreamBeginCapture(player->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), 0);
	calls(player, other);
	EQUAL(cuStreamEndCapture(player->stream, &captured), 0);
	EQUAL(cuGraphInstantiateWithFlags(&graph, captured, 0), 0);
	EQUAL(cuGraphDestroy(captured), 0);
	EQUAL(cuGraphLaunch(graph, player->stream), 0);
	settle(player);
	EQUAL(cuGraphExecDestroy(graph), 0);
}

/* ---- and a sum ---- */

static int turn;

/* Rank 1 sends more than slots hold, then comes to the sum; or the sum is its first call. */
static void messages_and_sum(struct player *player, ncclComm_t other)
{
	ncclComm_t comm = player->rank.comm;
	(void)other;
	if (!player->rank.rank) {
		NCCL(ncclGroupStart());
		for (size_t i = 0; i < 30; i++)
			message(player, false, 1, PART, PART * i, comm);
		sum(player, comm);
		NCCL(ncclGroupEnd());
		return;
	}
	if (turn % 2)
		sum(player, comm);
	for (size_t i = 0; i < 30 && player->rank.rank == 1; i++)
		message(player, true, 0, PART, PART * i, comm);
	if (!(turn % 2))
		sum(player, comm);
}

static void with_sum(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	player_open(player);
	warm_up(player, rank->comm);
	for (int round = 0; round < 8; round++) {
		if (!rank->rank)
			turn = round;
		pthread_barrier_wait(&together);
		uint64_t before = kernels_in(rank->comm);
		fill(player, LARGE + SMALL, round);
		make(player, messages_and_sum, NULL, round / 2 % 2);
		check_sum_of(player, round);
		EQUAL(kernels_in(rank->comm) - before, rank->rank < 2 ? 31 : 1);
		for (size_t i = 0; i < 30 && !rank->rank; i++)
			check_message(player, 1, PART, PART * i, round);
		pthread_barrier_wait(&together);
	}
	player_close(player);
}

static void messages_and_a_sum_of_a_group_wait_for_nothing_of_each_other(void **state)
{
	(void)state;
	play(with_sum);
}

/* ---- many ---- */

#define EACH_WAY 400

/* Rank 0 has both ways in a group, rank 1 one after the other. */
static void both_ways(struct player *player, ncclComm_t other)
{
	bool first = !player->rank.rank;
	(void)other;
	for (int sends = 0; sends < 2; sends++) {
		if (!first || !sends)
			NCCL(ncclGroupStart());
		for (size_t i = 0; i < EACH_WAY; i++)
			message(player, sends, first, SMALL + i % 30, 2 * SMALL * i, player->rank.comm);
		if (!first || sends)
			NCCL(ncclGroupEnd());
	}
}

static void many(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	player_open(player);
	warm_up(player, rank->comm);
	for (int round = 0; round < REPEATS(4, 2) && rank->rank < 2; round++) {
		uint64_t before = kernels_in(rank->comm);
		fill(player, LARGE, round);
		make(player, both_ways, NULL, round % 2);
		EQUAL(kernels_in(rank->comm) - before, 2 * EACH_WAY);
		for (size_t i = 0; i < EACH_WAY; i++)
			check_message(player, !rank->rank, SMALL + i % 30, 2 * SMALL * i, round);
	}
	player_close(player);
}

static void a_group_of_any_number_ends_whose_ways_another_rank_has_one_by_one(void **state)
{
	(void)state;
	play(many);
}

/* ---- of two communicators ---- */

/* Messages and sums of both, large and small, on two streams. */
static void of_both(struct player *player, ncclComm_t other)
{
	const ncclComm_t comms[2] = {player->rank.comm, other};
	const int self = player->rank.rank;
	struct player forked = *player;
	CUevent event;
	EQUAL(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), 0);
	EQUAL(cuEventRecord(event, player->stream), 0);
	EQUAL(cuStreamWaitEvent(player->second, event, 0), 0);
	if (turn & 1)
		forked.stream = player->second;
	NCCL(ncclGroupStart());
	for (size_t i = 0; i < 2; i++) {
		for (int sends = 0; sends < 2 && self < 2; sends++) {
			message(sends ? player : &forked, sends, 1 - self, SMALL, PART * i, comms[i]);
			if (turn & 2)
				message(player, sends, 1 - self, BIG, (4 + 10 * i) * PART, comms[i]);
		}
		if (turn & 8)
			NCCL(ncclAllReduce(player->send, (float *)player->receive + LARGE + i * BIG,
			                   turn & 4 ? BIG : SMALL, ncclFloat32, ncclSum, comms[i],
			                   stream_of(&forked)));
	}
	NCCL(ncclGroupEnd());
	EQUAL(cuEventRecord(event, player->second), 0);
	EQUAL(cuStreamWaitEvent(player->stream, event, 0), 0);
	EQUAL(cuEventDestroy(event), 0);
}

/* A graph's stream and another one: as NCCL does, it is refused, and nothing is lost by it. */
static void of_a_graph_and_none(struct player *player)
{
	struct player plain = *player;
	const int self = player->rank.rank;
	CUgraph captured;
	plain.stream = player->second;
	for (int sends = 0; sends < 2; sends++) {
		EQUAL(cuStreamBeginCapture(player->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), 0);
		NCCL(ncclGroupStart());
		message(sends ? &plain : player, true, (self + 1) % RANKS, SMALL, 0, player->rank.comm);
		message(sends ? player : &plain, false, (self + 2) % RANKS, SMALL, 0, player->rank.comm);
		EQUAL(ncclGroupEnd(), ncclInvalidUsage);
		EQUAL(cuStreamEndCapture(player->stream, &captured), 0);
		EQUAL(cuGraphDestroy(captured), 0);
	}
}

static void two(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	ncclComm_t other;
	player_open(player);
	NCCL(ncclCommSplit(rank->comm, 0, rank->rank, &other, NULL));
	warm_up(player, rank->comm);
	warm_up(player, other);
	EQUAL(cuStreamCreate(&player->second, CU_STREAM_NON_BLOCKING), 0);
	of_a_graph_and_none(player);
	for (int round = 0; round < REPEATS(32, 8); round++) {
		if (!rank->rank)
			turn = round / 2;
		pthread_barrier_wait(&together);
		fill(player, LARGE + 2 * BIG, round);
		make(player, of_both, other, round % 2);
		for (size_t i = 0; i < 2; i++) {
			if (rank->rank < 2)
				check_message(player, !rank->rank, SMALL, PART * i, round);
			if (rank->rank < 2 && turn & 2)
				check_message(player, !rank->rank, BIG, (4 + 10 * i) * PART, round);
		}
		if (turn & 8)
			check_sum_of(player, round);
		HOLDS(!memcmp(player->out + LARGE, player->out + LARGE + BIG, BIG * sizeof(float)));
		ncclResult_t error;
		NCCL(ncclCommGetAsyncError(rank->comm, &error));
		EQUAL(error, ncclSuccess);
		NCCL(ncclCommGetAsyncError(other, &error));
		EQUAL(error, ncclSuccess);
		pthread_barrier_wait(&together);
	}
	EQUAL(cuStreamDestroy(player->second), 0);
	NCCL(ncclCommDestroy(other));
	player_close(player);
}

static void a_group_may_have_messages_and_sums_of_two_communicators(void **state)
{
	(void)state;
	setenv("FERRY_SHARES", "nccl:1,host:0", 1);
	play(two);
	setenv("FERRY_SHARES", "nccl:0,host:1", 1);
	play(two);
	unsetenv("FERRY_SHARES");
}

/* ---- in which communicators end ---- */

/* Rank 0 ends it in the group of a large and a small message, which rank 1 makes one after another. */
static void ends(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	player_open(player);
	warm_up(player, rank->comm);
	fill(player, LARGE, 1);
	if (!rank->rank)
		NCCL(ncclGroupStart());
	if (rank->rank < 2) {
		message(player, !rank->rank, !rank->rank, BIG, 4 * PART, rank->comm);
		message(player, rank->rank, !rank->rank, SMALL, 0, rank->comm);
	}
	NCCL(ncclCommDestroy(rank->comm));
	if (!rank->rank)
		NCCL(ncclGroupEnd());
	settle(player);
	if (!rank->rank)
		check_message(player, 1, SMALL, 0, 1);
	if (rank->rank == 1)
		check_message(player, 0, BIG, 4 * PART, 1);
	buffers_close(player);
}

static void a_communicator_may_end_in_the_group_of_its_last_messages(void **state)
{
	(void)state;
	setenv("FERRY_SHARES", "nccl:1,host:0", 1);
	play(ends);
	setenv("FERRY_SHARES", "nccl:0,host:1", 1);
	play(ends);
	unsetenv("FERRY_SHARES");
}

/* One thread for all devices. */
static void communicators_of_one_thread_may_end_in_the_group_of_their_last_messages(void **state)
{
	static const int devices[RANKS] = {0, 1, 2};
	struct player *players = calloc(RANKS, sizeof *players);
	ncclComm_t comms[RANKS];
	bool begun = false;
	(void)state;
	domains_open(1);
	NCCL(ncclCommInitAll(comms, RANKS, devices));
	for (int i = 0; i < RANKS; i++) {
		players[i].rank.rank = i;
		players[i].rank.comm = comms[i];
		buffers_open(&players[i]);
	}
	for (int round = 0; round < MANY && !begun; round++) {
		NCCL(ncclGroupStart());
		for (int i = 0; i < RANKS; i++)
			for (int sends = 0; sends < 2; sends++)
				message(&players[i], sends, (i + (sends ? 1 : 2)) % RANKS, SMALL, 0, comms[i]);
		NCCL(ncclGroupEnd());
		begun = true;
		for (int i = 0; i < RANKS; i++) {
			settle(&players[i]);
			begun &= ferry_shadow_comm_messages_begun(shadow_of(comms[i]), (i + 1) % RANKS, true);
		}
		doze(1);
	}
	HOLDS(begun);
	NCCL(ncclGroupStart());
	for (int i = 0; i < RANKS; i++) {
		fill(&players[i], LARGE, 1);
		for (size_t m = 0; m < 30; m++)
			for (int sends = 0; sends < 2; sends++)
				message(&players[i], sends, (i + (sends ? 1 : 2)) % RANKS, PART, PART * m, comms[i]);
		NCCL(i ? ncclCommDestroy(comms[i]) : ncclCommFinalize(comms[i]));
	}
	NCCL(ncclGroupEnd());
	NCCL(ncclCommDestroy(comms[0]));
	for (int i = 0; i < RANKS; i++) {
		settle(&players[i]);
		for (size_t m = 0; m < 30; m++)
			check_message(&players[i], (i + 2) % RANKS, PART, PART * m, 1);
		buffers_close(&players[i]);
	}
	free(players);
	domains_close();
}

/* ---- graphs that outlive the communicator ---- */

static ncclUniqueId next;

/*
 * Around a ring; rank 1 leaves, without its graph. What is left of the communicator is given back when the next one
 * ends, but for that which its kernels still store into.
 */
static void outlive(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	int self = rank->rank;
	ncclResult_t error = ncclSuccess;
	CUgraph captured;
	CUgraphExec graph;
	player_open(player);
	warm_up(player, rank->comm);
	EQUAL(cuStreamBeginCapture(player->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), 0);
	NCCL(ncclGroupStart());
	for (int sends = 0; sends < 2; sends++)
		message(player, sends, (self + (sends ? 1 : 2)) % RANKS, SMALL, 0, rank->comm);
	NCCL(ncclGroupEnd());
	EQUAL(cuStreamEndCapture(player->stream, &captured), 0);
	EQUAL(cuGraphInstantiateWithFlags(&graph, captured, 0), 0);
	EQUAL(cuGraphDestroy(captured), 0);
	EQUAL(cuGraphLaunch(graph, player->stream), 0);
	settle(player);
	pthread_barrier_wait(&together);
	if (self == 1) {
		EQUAL(cuGraphExecDestroy(graph), 0);
		NCCL(ncclCommDestroy(rank->comm));
		NCCL(ncclGetUniqueId(&next));
	}
	pthread_barrier_wait(&together);
	if (self != 1) {
		EQUAL(cuGraphLaunch(graph, player->stream), 0);
		settle(player);
		while (!error) {
			NCCL(ncclCommGetAsyncError(rank->comm, &error));
			doze(1);
		}
		EQUAL(error, ncclRemoteError);
		NCCL(ncclCommAbort(rank->comm));
	}
	pthread_barrier_wait(&together);
	NCCL(ncclCommInitRank(&rank->comm, RANKS, next, self));
	warm_up(player, rank->comm);
	NCCL(ncclCommDestroy(rank->comm));
	pthread_barrier_wait(&together);
	if (self != 1) {
		EQUAL(cuGraphLaunch(graph, player->stream), 0);
		settle(player);
		EQUAL(cuGraphExecDestroy(graph), 0);
	}
	pthread_barrier_wait(&together);
	buffers_close(player);
}

static void replays_after_a_rank_has_left_end_with_an_error_and_later_ones_do_no_harm(void **state)
{
	(void)state;
	play(outlive);
}

/* ---- what many cost ---- */

static double cpu_us(void)
{
	struct timespec now;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

/* Returns what the end of the group takes for each message, the least of a few. */
static double us_each(struct player *player, int messages)
{
	double least = INFINITY;
	for (int round = 0; round < 5; round++) {
		NCCL(ncclGroupStart());
		for (int i = 0; i < messages; i++)
			message(player, i % 2, other(player, i % 2 ? 1 : -1), SMALL, (size_t)(i / 2) * SMALL,
			        player->rank.comm);
		double begun = cpu_us();
		NCCL(ncclGroupEnd());
		least = fmin(least, cpu_us() - begun);
		settle(player);
	}
	return least / messages;
}

static void of_many(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	player_open(player);
	warm_up(player, rank->comm);
	double few = us_each(player, 256), many = us_each(player, 4096);
	fprintf(stderr, "rank %d: %.2f us for each of 256 messages, %.2f for each of 4096\n", rank->rank, few, many);
	HOLDS(many < 6 * few); /* sixteen times as many, and a square would take ten times as long for each */
	player_close(player);
}

/* As of an exchange among 64 experts. */
static void what_a_group_costs_grows_with_its_messages_and_not_with_their_square(void **state)
{
	(void)state;
	play(of_many);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test_teardown(messages_and_a_sum_of_a_group_wait_for_nothing_of_each_other, no_misuse),
	        cmocka_unit_test_teardown(a_group_of_any_number_ends_whose_ways_another_rank_has_one_by_one, no_misuse),
	        cmocka_unit_test_teardown(a_group_may_have_messages_and_sums_of_two_communicators, no_misuse),
	        cmocka_unit_test_teardown(what_a_group_costs_grows_with_its_messages_and_not_with_their_square,
	                                  no_misuse),
	        cmocka_unit_test_teardown(a_communicator_may_end_in_the_group_of_its_last_messages, no_misuse),
	        cmocka_unit_test_teardown(communicators_of_one_thread_may_end_in_the_group_of_their_last_messages,
	                                  no_misuse),
	        cmocka_unit_test_teardown(
	                replays_after_a_rank_has_left_end_with_an_error_and_later_ones_do_no_harm, no_misuse),
	};
	if (argc == 2)
		cmocka_set_test_filter(argv[1]);
	setenv("FERRY_KERNELS", "on", 1);
	fake_is_the_driver();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
