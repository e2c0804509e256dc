/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is preregistered ahead of calls of NCCL's, buffers and plans: no call waits for it, and calls come to Ferry
 * once it is there. Ranks are players (players.h).
 */
#include "tests/nccl/players.h"

#include "ipc/error.h"
#include "rank-lib/api/group.h"
#include "rank-lib/call/launch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * NCCL's double, so that calls are Ferry's however busy the machine is: beside three more of this suite under
 * ThreadSanitizer an AllGather of Ferry's takes 35 to 200 ms here. With 41 ms for NCCL's it was rightly NCCL's.
 */
#define SLOW "0.001"

static pthread_barrier_t together;
static int made, had; /* calls of rank 0, and those that Ferry has had some of */

static struct ferry_shadow_comm *shadow_comm_of(struct player *player)
{
	struct ferry_nccl_comm *comm = ferry_nccl_comm_take(player->rank.comm);
	struct ferry_shadow_comm *shadow_comm = atomic_load(&comm->shadow_comm);
	ferry_nccl_comm_release(comm);
	return shadow_comm;
}

static bool is_wanted(const struct ferry_share_table *table)
{
	uint64_t wanted = 0;
	for (int rank = 0; rank < RANKS; rank++)
		for (int place = 0; place < FERRY_SHARE_KINDS; place++)
			wanted |= atomic_load(&table->ranks[rank].ready.kinds[place]) & FERRY_SHARE_WANTED;
	return wanted;
}

/* Whether the rank says that it has preregistered some kind of call. */
static bool is_preregistered(const struct player *player, const struct ferry_share_table *table)
{
	uint64_t shown = 0;
	for (int place = 0; place < FERRY_SHARE_KINDS; place++)
		shown |= atomic_load(&table->ranks[player->rank.rank].ready.kinds[place]) & FERRY_SHARE_PREREGISTERED;
	return shown;
}

/* NCCL has the first calls of a size, to compare with; what Ferry needs is preregistered meanwhile. */
static void begun_cold(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	int rounds = 3;
	player_open(player);
	EQUAL(ferry_shadow_comm_is_ready(shadow_comm_of(player)), true);
	/* all have come with the first one; in place it is NCCL's, and nothing is preregistered */
	NCCL(ncclAlltoAll(player->receive, player->receive, LARGE / RANKS, ncclFloat32, rank->comm,
	                  (cudaStream_t)player->stream));
	settle(player);
	for (int round = 0; round < 3; round++) {
		pthread_barrier_wait(&together);
		EQUAL(parts_of(player), 0);
		pthread_barrier_wait(&together);
		gather_round(player, round);
		while (!is_preregistered(player, shadow_comm_of(player)->meter.table))
			doze(1);
	}
	/* it may be NCCL's where somebody was at the communicator just then, as its router monitor now and then is */
	for (int round = 3; round < 16 && !parts_of(player); round++, rounds++) {
		pthread_barrier_wait(&together);
		gather_round(player, round);
	}
	HOLDS(parts_of(player) >= 1);
	if (!rank->rank) {
		made = 1 + rounds;
		had = (int)parts_of(player);
	}
	player_close(player);
}

static void a_call_may_be_ferrys_once_nccls_are_measured(void **state)
{
	(void)state;
	pthread_barrier_init(&together, NULL, RANKS);
	setenv("FAKE_NCCL_GBPS", SLOW, 1);
	setenv("FERRY_SPLIT_WAIT", "60", 1);
	run(begun_cold);
	unsetenv("FERRY_SPLIT_WAIT");
	unsetenv("FAKE_NCCL_GBPS");
	pthread_barrier_destroy(&together);
}

static void its_end_says_what_ferry_has_had(void **state)
{
	char said[1 << 14], words[64], *line;
	double gigabytes;
	FILE *file = tmpfile();
	int before = dup(STDERR_FILENO);
	assert_true(file && before >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
	setenv("FERRY_LOG", "info", 1);
	a_call_may_be_ferrys_once_nccls_are_measured(state);
	unsetenv("FERRY_LOG");
	ferry_log_set_level(FERRY_LOG_WARN);
	dup2(before, STDERR_FILENO);
	close(before);
	rewind(file);
	said[fread(said, 1, sizeof said - 1, file)] = '\0';
	fclose(file);
	snprintf(words, sizeof words, " GB, %d of %d calls\n", had, made);
	line = strstr(said, " ends: Ferry has had ");
	if (!line || sscanf(line, " ends: Ferry has had %*f of %lf GB", &gigabytes) != 1 || !strstr(line, words) ||
	    strstr(line + 1, " ends: Ferry"))
		fail_msg("once, \"...%s\" was expected in:\n%s", words, said);
}

/* As while a router maps for one of them: that rank would wait for itself here if Ferry had its call. */
static void withheld(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	player_open(player);
	struct ferry_shadow_comm *shadow_comm = shadow_comm_of(player);
	EQUAL(ferry_shadow_comm_is_ready(shadow_comm), true);
	pthread_barrier_wait(&together);
	if (rank->rank == 1)
		EQUAL(ferry_comm_enter(shadow_comm->comm), ferrySuccess);
	pthread_barrier_wait(&together);
	for (int round = 0; round < 12; round++)
		gather_round(player, round);
	HOLDS(is_wanted(shadow_comm->meter.table));
	pthread_barrier_wait(&together);
	EQUAL(parts_of(player), 0);
	pthread_barrier_wait(&together);
	if (rank->rank == 1)
		ferry_comm_exit(shadow_comm->comm);
	int round = 0;
	for (; round < MOST && parts_of(player) < 5; round++)
		gather_round(player, round);
	HOLDS(round < MOST);
	player_close(player);
}

static void no_call_waits_for_buffers_that_are_being_shown(void **state)
{
	(void)state;
	pthread_barrier_init(&together, NULL, RANKS);
	setenv("FAKE_NCCL_GBPS", SLOW, 1);
	setenv("FERRY_SPLIT_WAIT", "60", 1);
	run(withheld);
	unsetenv("FERRY_SPLIT_WAIT");
	unsetenv("FAKE_NCCL_GBPS");
	pthread_barrier_destroy(&together);
}

/* The size that comes next has come before, to NCCL, and the routers have been given its plan since. */
static void planned(struct rank *rank)
{
	enum { SIZES = 3, ENOUGH = 5 };
	struct player *player = (struct player *)rank;
	player_open(player);
	for (size_t size = 1; size <= SIZES; size++) {
		uint64_t before = parts_of(player);
		int round = 0;
		for (; round < MOST && parts_of(player) - before < ENOUGH; round++)
			gather_blocks(player, LARGE / RANKS * size / 2 + LARGE / RANKS / 2, round);
		HOLDS(round < MOST);
	}
	struct ferryComm *comm = shadow_comm_of(player)->comm;
	EQUAL(ferry_comm_enter(comm), ferrySuccess);
	HOLDS(comm->plans.cache.nentries >= SIZES);
	EQUAL(comm->plans.late, 0);
	ferry_comm_exit(comm);
	player_close(player);
}

static void no_call_waits_for_its_plan(void **state)
{
	(void)state;
	setenv("FAKE_NCCL_GBPS", SLOW, 1);
	run(planned);
	unsetenv("FAKE_NCCL_GBPS");
}

/* Of readiness in 256 bits, as it once was: the bit of a whole call. */
static unsigned bit_of(uint64_t collective, size_t count, size_t bytes)
{
	uint64_t kind = collective << 8 | ferry_tuner_size_class(bytes);
	kind += (uint64_t)count << 32 ^ (uint64_t)ncclFloat32 << 20;
	return (unsigned)(kind * UINT64_C(0x9e3779b97f4a7c15) >> 56);
}

/* Ranks make a call one after the other, always in this order: the first sees the others at their last one. */
static void in_turn(struct player *player, void (*call)(struct player *player, size_t count), size_t count)
{
	for (int turn = 0; turn < RANKS; turn++) {
		pthread_barrier_wait(&together);
		if (turn == player->rank.rank)
			call(player, count);
	}
	settle(player);
}

static void gather(struct player *player, size_t block)
{
	NCCL(ncclAllGather(player->send, player->receive, block, ncclFloat32, player->rank.comm,
	                   (cudaStream_t)player->stream));
}

static void exchange_in_place(struct player *player, size_t block)
{
	float *memory = (float *)player->receive + LARGE;
	NCCL(ncclAlltoAll(memory, memory, block, ncclFloat32, player->rank.comm, (cudaStream_t)player->stream));
}

/* An AllGather that Ferry is to have, between AllToAlls in place, which stay NCCL's. */
static void interleaved(struct rank *rank)
{
	enum { BLOCK = LARGE / RANKS, ENOUGH = 10, ROUNDS = 60 };
	struct player *player = (struct player *)rank;
	size_t other = (256 << 10) / RANKS / sizeof(float) + 1; /* over the floor, and short */
	while (bit_of(FERRY_ALLTOALL, other, other * RANKS * sizeof(float)) !=
	       bit_of(FERRY_ALLGATHER, BLOCK, (size_t)BLOCK * RANKS * sizeof(float)))
		other++;
	player_open(player);
	uint64_t before = parts_of(player);
	int round = 0;
	for (; round < ROUNDS && parts_of(player) - before < ENOUGH; round++) {
		in_turn(player, gather, BLOCK);
		in_turn(player, exchange_in_place, other);
		in_turn(player, exchange_in_place, other);
	}
	HOLDS(round < ROUNDS);
	player_close(player);
}

static void a_call_gets_to_ferry_between_others_that_stay_nccls(void **state)
{
	(void)state;
	pthread_barrier_init(&together, NULL, RANKS);
	setenv("FAKE_NCCL_GBPS", SLOW, 1);
	setenv("FERRY_SPLIT_WAIT", "60", 1);
	run(interleaved);
	unsetenv("FERRY_SPLIT_WAIT");
	unsetenv("FAKE_NCCL_GBPS");
	pthread_barrier_destroy(&together);
}

/* A step of training: two calls, one of them with memory of a pool, which goes by a window. */
static void stepped(struct rank *rank)
{
	enum { STEPS = 16, ENOUGH = 2 };
	struct player *player = (struct player *)rank;
	CUdeviceptr pooled, own;
	player_open(player);
	own = player->memory[0];
	EQUAL(cuMemAllocAsync(&pooled, (size_t)LARGE * sizeof(float), player->stream), 0);
	settle(player);
	uint64_t parts[2] = {0, 0}; /* of which Ferry had one: with the buffer that is mapped, and the pool's */
	int step = 0;
	for (; step < STEPS && (parts[0] < ENOUGH || parts[1] < ENOUGH); step++) {
		for (int which = 0; which < 2; which++) {
			CUdeviceptr memory = which ? pooled : own;
			player->send = pointer_of(memory);
			player->in = fake_cuda_reach(memory);
			uint64_t before = parts_of(player);
			gather_blocks(player, LARGE / RANKS - (which ? 1000 : 0), step);
			parts[which] += parts_of(player) - before;
		}
		pthread_barrier_wait(&together); /* so all make as many steps */
		doze(1500);
	}
	HOLDS(parts[0] >= ENOUGH && parts[1] >= ENOUGH);
	EQUAL(cuMemFreeAsync(pooled, player->stream), 0);
	player_close(player);
}

static void calls_that_come_every_second_and_a_half_get_to_ferry(void **state)
{
	(void)state;
	pthread_barrier_init(&together, NULL, RANKS);
	setenv("FAKE_NCCL_GBPS", SLOW, 1);
	setenv("FERRY_SPLIT_WAIT", "60", 1);
	run(stepped);
	unsetenv("FERRY_SPLIT_WAIT");
	unsetenv("FAKE_NCCL_GBPS");
	pthread_barrier_destroy(&together);
}

static void gather_alone(struct player *player, struct ferry_request request, struct ferry_left_out left_out)
{
	request.stream = (ferryStream_t)player->stream;
	request.left_out = left_out;
	EQUAL(ferry_group_call(&request), ferrySuccess);
	settle(player);
}

/* Buffers go again when they idle for a second, which a thread that gets no CPU may spend between the two. */
static void preregister_all(const struct ferry_request *request)
{
	bool shown = false;
	for (int attempt = 0; attempt < 20 && !shown; attempt++) {
		EQUAL(ferry_launch_preregister(request, false, true), ferrySuccess);
		shown = ferry_launch_has_preregistered(request, false, true, true) == FERRY_PREREGISTERED;
	}
	HOLDS(shown);
}

/* As many as are kept, and one that makes room for the others. */
static void prepared(struct rank *rank)
{
	enum { KEPT = FERRY_IDLE_PLANS };
	struct player *player = (struct player *)rank;
	player_open(player);
	reduce_until(player, 1);
	struct ferryComm *comm = shadow_comm_of(player)->comm;
	struct ferry_request request = {.collective = FERRY_ALLGATHER, .send = player->send,
	                                .receive = player->receive, .count = 100, .type = ferryFloat32, .comm = comm};
	uint64_t late = comm->plans.late;
	for (int again = 0; again < 2; again++) {
		EQUAL(ferry_launch_has_preregistered(&request, false, true, true), FERRY_PREREGISTERED_NOT);
		preregister_all(&request);
		/* as where two ranks divide it */
		gather_alone(player, request, (struct ferry_left_out){.mirrored = true});
		EQUAL(comm->plans.late, late);
		for (uint64_t other = 1; other <= KEPT + 1; other++) {
			struct ferry_request next = request;
			next.count += other;
			preregister_all(&next);
		}
		HOLDS(comm->plans.cache.nentries <= KEPT + 1);
	}
	player_close(player);
}

static void plans_that_are_prepared_make_room_for_each_other(void **state)
{
	(void)state;
	setenv("FERRY_SHARES", "nccl:0,host:1", 1);
	run(prepared);
	unsetenv("FERRY_SHARES");
}

/* What is being shown may be gone before it is, or have come again at its address. */
static void replaced(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	player_open(player);
	uint64_t before = parts_of(player);
	int round = 0;
	for (; round < MOST && parts_of(player) - before < 10; round++) {
		gather_round(player, round);
		if (round % 4)
			continue;
		for (int i = 0; i < 2; i++) {
			EQUAL(cuMemFree(player->memory[i]), 0);
			EQUAL(cuMemAlloc(&player->memory[i], (size_t)LARGE * RANKS * sizeof(float)), 0);
		}
		player->in = fake_cuda_reach(player->memory[0]);
		player->out = fake_cuda_reach(player->memory[1]);
		player->send = pointer_of(player->memory[0]);
		player->receive = pointer_of(player->memory[1]);
	}
	HOLDS(round < MOST);
	player_close(player);
}

static void buffers_come_and_go_while_they_are_shown(void **state)
{
	(void)state;
	setenv("FAKE_NCCL_GBPS", SLOW, 1);
	run(replaced);
	unsetenv("FAKE_NCCL_GBPS");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test_teardown(a_call_may_be_ferrys_once_nccls_are_measured, no_misuse),
	        cmocka_unit_test_teardown(its_end_says_what_ferry_has_had, no_misuse),
	        cmocka_unit_test_teardown(no_call_waits_for_buffers_that_are_being_shown, no_misuse),
	        cmocka_unit_test_teardown(no_call_waits_for_its_plan, no_misuse),
	        cmocka_unit_test_teardown(a_call_gets_to_ferry_between_others_that_stay_nccls, no_misuse),
	        cmocka_unit_test_teardown(calls_that_come_every_second_and_a_half_get_to_ferry, no_misuse),
	        cmocka_unit_test_teardown(plans_that_are_prepared_make_room_for_each_other, no_misuse),
	        cmocka_unit_test_teardown(buffers_come_and_go_while_they_are_shown, no_misuse),
	};
	setenv("FERRY_SPLIT_FLOOR", "256K", 1); /* short ones are shared, too */
	fake_is_the_driver();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
