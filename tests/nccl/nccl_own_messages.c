/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank of an NCCL program sends to itself in a group of messages: it is no other rank's concern, is copied in
 * the stream where routers have the rest, and keeps the rest from nothing. Over both doubles; ranks are threads of
 * this process.
 */
#include "tests/nccl/messages.h"

#include <stdlib.h>

/* What a rank sends to itself needs no other rank: NCCL has it where Ferry's part has failed. */
static void to_itself(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	bool ready = false;
	player_open(player);
	for (int round = 0; round < MANY && !all(player, ready); round++) {
		fill(player, LARGE, round);
		NCCL(ncclAllReduce(player->send, player->receive, LARGE, ncclFloat32, ncclSum, rank->comm,
		                   stream_of(player)));
		settle(player);
		ready = shadow_of(rank->comm) && ferry_shadow_comm_is_ready(shadow_of(rank->comm));
	}
	ferry_shadow_comm_withdraw(shadow_of(rank->comm), "this rank is broken on purpose");
	fill(player, SMALL, 1);
	NCCL(ncclGroupStart());
	NCCL(ncclSend(player->send, SMALL, ncclFloat32, rank->rank, rank->comm, stream_of(player)));
	NCCL(ncclRecv(player->receive, SMALL, ncclFloat32, rank->rank, rank->comm, stream_of(player)));
	NCCL(ncclGroupEnd());
	settle(player);
	HOLDS(player->out[SMALL - 1] == value_of(rank->rank, SMALL - 1, 1));
	pthread_barrier_wait(&together);
	player_close(player);
}

static void a_rank_sends_to_itself_where_ferrys_part_has_failed(void **state)
{
	(void)state;
	setenv("FERRY_SHARES", "nccl:1,host:0", 1);
	setenv("FERRY_KERNELS", "on", 1);
	play(to_itself);
	setenv("FERRY_KERNELS", "off", 1);
	unsetenv("FERRY_SHARES");
}

/* ---- where routers have the rest ---- */

static size_t part(int from, int to)
{
	return (size_t)(1000 + 100 * from + 10 * to);
}

/* The rank's own first. reversed: in that communicator ranks have the reverse order; its parts lie behind others. */
static void parts_in(struct player *player, ncclComm_t comm, bool reversed)
{
	int self = player->rank.rank;
	for (int i = 0; i < RANKS; i++) {
		int peer = (self + i) % RANKS, name = reversed ? RANKS - 1 - peer : peer;
		size_t at = (size_t)peer * LARGE / 4 + (reversed ? LARGE / 8 : 0);
		NCCL(ncclSend((float *)player->send + at, part(self, peer), ncclFloat32, name, comm,
		              stream_of(player)));
		NCCL(ncclRecv((float *)player->receive + at, part(peer, self), ncclFloat32, name, comm,
		              stream_of(player)));
	}
}

static void uneven_parts(struct player *player)
{
	NCCL(ncclGroupStart());
	parts_in(player, player->rank.comm, false);
	NCCL(ncclGroupEnd());
}

static void check_parts_at(struct player *player, size_t behind, int round)
{
	size_t self = (size_t)player->rank.rank;
	for (int peer = 0; peer < RANKS; peer++) {
		size_t n = part(peer, (int)self), at = (size_t)peer * LARGE / 4 + behind;
		for (size_t i = 0; i <= n; i++)
			HOLDS(player->out[at + i] ==
			      (i < n ? value_of(peer, self * LARGE / 4 + behind + i, round) : 0));
	}
}

static void check_parts(struct player *player, int round)
{
	settle(player);
	check_parts_at(player, 0, round);
}

/* NCCL makes none of a group's messages, the rank's own neither: in streams and in graphs. */
static void with_its_own(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	CUgraph captured;
	CUgraphExec graph;
	bool ferrys = false;
	player_open(player);
	for (int round = 0; round < MANY && !ferrys; round++) {
		fill(player, LARGE, round);
		pthread_barrier_wait(&together);
		unsigned long before = fake_nccl_count("Send");
		pthread_barrier_wait(&together);
		uneven_parts(player);
		check_parts(player, round);
		pthread_barrier_wait(&together);
		ferrys = all(player, fake_nccl_count("Send") == before);
	}
	HOLDS(ferrys);
	unsigned long before = fake_nccl_count("Send");
	EQUAL(cuStreamBeginCapture(player->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), 0);
	uneven_parts(player);
	EQUAL(cuStreamEndCapture(player->stream, &captured), 0);
	EQUAL(cuGraphInstantiateWithFlags(&graph, captured, 0), 0);
	EQUAL(cuGraphDestroy(captured), 0);
	for (int round = 0; round < 6; round++) {
		fill(player, LARGE, round);
		if (round % 3 == 2)
			uneven_parts(player);
		else
			EQUAL(cuGraphLaunch(graph, player->stream), 0);
		check_parts(player, round);
	}
	EQUAL(fake_nccl_count("Send"), before);
	EQUAL(cuGraphExecDestroy(graph), 0);
	player_close(player);
}

/*
 * Two communicators in one stream, which ranks list in different orders once NCCL has none of them: each call is begun
 * before the stream waits for one, so none waits for the other.
 */
static void in_two_orders(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	ncclComm_t reverse;
	player_open(player);
	NCCL(ncclCommSplit(rank->comm, 0, RANKS - rank->rank, &reverse, NULL));
	bool ferrys = false;
	unsigned long before = 0;
	for (int round = 0, left = 6; round < MANY && left; round++, left -= ferrys) {
		fill(player, LARGE, round);
		pthread_barrier_wait(&together);
		before = ferrys ? before : fake_nccl_count("Send");
		pthread_barrier_wait(&together);
		NCCL(ncclGroupStart());
		for (int i = 0; i < 2; i++) {
			bool reversed = i == (ferrys && rank->rank > 0);
			parts_in(player, reversed ? reverse : rank->comm, reversed);
		}
		NCCL(ncclGroupEnd());
		check_parts(player, round);
		check_parts_at(player, LARGE / 8, round);
		pthread_barrier_wait(&together);
		ferrys = all(player, fake_nccl_count("Send") == before);
	}
	HOLDS(ferrys);
	NCCL(ncclCommDestroy(reverse));
	player_close(player);
}

/* Ferry takes no memory of the host for its own: NCCL has that pair, and routers the rest. */
static void with_its_own_in_host_memory(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	float *host;
	player_open(player);
	EQUAL(posix_memalign((void **)&host, 4096, 4096), 0);
	EQUAL(cuMemHostRegister(host, 4096, 0), 0);
	for (int round = 0; round < 30; round++) {
		fill(player, LARGE, round);
		for (int i = 0; i < SMALL; i++)
			host[i] = (float)(round + i);
		NCCL(ncclGroupStart());
		NCCL(ncclSend(host, SMALL, ncclFloat32, rank->rank, rank->comm, stream_of(player)));
		NCCL(ncclRecv(host + SMALL, SMALL, ncclFloat32, rank->rank, rank->comm, stream_of(player)));
		NCCL(ncclSend(player->send, LARGE / 2, ncclFloat32, other(player, 1), rank->comm, stream_of(player)));
		NCCL(ncclRecv(player->receive, LARGE / 2, ncclFloat32, other(player, -1), rank->comm,
		              stream_of(player)));
		NCCL(ncclGroupEnd());
		settle(player);
		HOLDS(player->out[LARGE / 2 - 1] == value_of(other(player, -1), LARGE / 2 - 1, round));
		HOLDS(host[2 * SMALL - 1] == host[SMALL - 1]);
	}
	HOLDS(ferry_shadow_comm_works(shadow_of(rank->comm)));
	EQUAL(cuMemHostUnregister(host), 0);
	free(host);
	player_close(player);
}

static void a_rank_copies_what_it_sends_to_itself_where_routers_have_the_rest(void **state)
{
	(void)state;
	setenv("FERRY_SHARES", "nccl:0,host:1", 1);
	setenv("FERRY_SPLIT_FLOOR", "1", 1);
	play(with_its_own);
	play(with_its_own_in_host_memory);
	play(in_two_orders);
	unsetenv("FERRY_SPLIT_FLOOR");
	unsetenv("FERRY_SHARES");
}

/* Alike ones to all, the rank's own first, as PyTorch's all_to_all: without a pin, until routers have had some. */
static void until_they_are_tried(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	bool tried = false;
	player_open(player);
	for (int round = 0; round < MOST && !tried; round++) {
		unsigned long before = fake_nccl_count("Send");
		fill(player, LARGE, round);
		pthread_barrier_wait(&together);
		NCCL(ncclGroupStart());
		for (int i = 0; i < RANKS; i++) {
			int peer = other(player, i);
			size_t at = (size_t)peer * LARGE / 4;
			NCCL(ncclSend((float *)player->send + at, LARGE / 4, ncclFloat32, peer, rank->comm,
			              stream_of(player)));
			NCCL(ncclRecv((float *)player->receive + at, LARGE / 4, ncclFloat32, peer, rank->comm,
			              stream_of(player)));
		}
		NCCL(ncclGroupEnd());
		settle(player);
		for (int peer = 0; peer < RANKS; peer++) {
			size_t last = (size_t)rank->rank * LARGE / 4 + LARGE / 4 - 1;
			HOLDS(player->out[(size_t)(peer + 1) * (LARGE / 4) - 1] == value_of(peer, last, round));
		}
		pthread_barrier_wait(&together);
		tried = all(player, fake_nccl_count("Send") == before);
	}
	HOLDS(tried);
	player_close(player);
}

static void a_group_that_begins_with_its_own_is_tried_by_routers(void **state)
{
	(void)state;
	setenv("FERRY_SPLIT_FLOOR", "1", 1);
	play(until_they_are_tried);
	unsetenv("FERRY_SPLIT_FLOOR");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test_teardown(a_rank_sends_to_itself_where_ferrys_part_has_failed, no_misuse),
	        cmocka_unit_test_teardown(a_rank_copies_what_it_sends_to_itself_where_routers_have_the_rest, no_misuse),
	        cmocka_unit_test_teardown(a_group_that_begins_with_its_own_is_tried_by_routers, no_misuse),
	};
	setenv("FERRY_KERNELS", "off", 1);
	fake_is_the_driver();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
