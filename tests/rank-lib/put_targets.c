/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks in processes of their own that push into each other's memory, over the double of the driver, whose pushes take
 * long: nobody writes into a rank's buffer any more once its stream goes on, or its communicator has ended, whichever
 * rank or router dies or leaves, whichever domain's router pushes. And what routers of other domains map stays as long
 * as it is needed, and no longer. The collective is an AllGather by pushes alone.
 */
#include "tests/fake_cuda/rank_process.h"
#include "tests/fake_cuda/routers.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define COUNT   30011
#define PUSH_MS 150           /* of rank 0; */
#define LONGEST (4 * PUSH_MS) /* of the last one */
#define RANKS   4
#define ORDER(...) ((struct rank_ordered){__VA_ARGS__})

static const int devices[] = {0, 1, 2, 3};

static void open_slow_routers(int domains)
{
	char text[16];
	snprintf(text, sizeof text, "%d", PUSH_MS);
	setenv("FAKE_CUDA_PUSH_MS", text, 1);
	domains_open(domains);
	unsetenv("FAKE_CUDA_PUSH_MS");
}

/* All have made a round that was right, and are in the middle of pushing: to each other, or (GATHER) all to rank 0. */
static void start_pushing_with(const char *variables, struct rank_process *ranks, int domains, enum rank_order order)
{
	open_slow_routers(domains);
	for (int rank = 0; rank < RANKS; rank++)
		ranks[rank] = rank_start(variables);
	ranks_join(ranks, RANKS, devices, COUNT);
	ranks_round(ranks, RANKS, 1, 1);
	ranks_tell(ranks, RANKS, ORDER(.order = order, .number = 1), NULL);
	doze(PUSH_MS / 2);
}

static void start_pushing(struct rank_process *ranks, int domains, enum rank_order order)
{
	start_pushing_with("FERRY_FABRICS=peer", ranks, domains, order);
}

static struct rank_answer settled(const struct rank_process *rank, int milliseconds)
{
	return rank_tell(rank, ORDER(.order = RANK_SETTLE, .number = milliseconds));
}

/* The stream goes on, the communicator has failed, and from then on the buffer is the application's. */
static void released(const struct rank_process *ranks, int nranks, const char *flags)
{
	for (int rank = 0; rank < nranks; rank++) { /* each by itself, as soon as it can */
		rank_order(&ranks[rank], ORDER(.order = RANK_SETTLE, .number = 60000, .wanted = true));
		rank_order(&ranks[rank], ORDER(.order = RANK_GUARD, .number = LONGEST));
	}
	for (int rank = 0; rank < nranks; rank++) {
		struct rank_answer answer = rank_heard(&ranks[rank]);
		size_t written = rank_heard(&ranks[rank]).wrong;
		if (!answer.settled || !strstr(answer.message, flags))
			fail_msg("rank %d: settled %d after %d ms, \"%s\", expected \"%s\"", rank, answer.settled,
			         answer.milliseconds, answer.message, flags);
		if (written)
			fail_msg("%zu bytes were written into a buffer of rank %d after its stream had gone on",
			         written, rank);
	}
}

static void abort_and_finish(struct rank_process *ranks, int nranks)
{
	ranks_tell(ranks, nranks, ORDER(.order = RANK_ABORT), NULL);
	for (int rank = 0; rank < nranks; rank++)
		rank_finish(&ranks[rank]);
	domains_close();
}

/* ---- ranks ---- */

/* A rank that pushes nothing itself would go on at once. */
static void nobody_writes_into_buffers_of_survivors_of_a_rank(void **state)
{
	(void)state;
	for (int which = 0; which < 4; which++) {
		struct rank_process ranks[RANKS];
		start_pushing(ranks, which / 2 + 1, which % 2 ? RANK_GATHER : RANK_ROUNDS);
		rank_kill(&ranks[RANKS - 1]);
		released(ranks, RANKS - 1, "rank 3");
		abort_and_finish(ranks, RANKS - 1);
	}
}

/* Its memory may be freed when it returns. */
static void nobody_writes_into_buffers_of_a_rank_that_has_aborted(void **state)
{
	(void)state;
	for (int which = 0; which < 4; which++) {
		struct rank_process ranks[RANKS];
		start_pushing(ranks, which / 2 + 1, which % 2 ? RANK_GATHER : RANK_ROUNDS);
		rank_tell(&ranks[0], ORDER(.order = RANK_ABORT));
		rank_order(&ranks[0], ORDER(.order = RANK_GUARD, .number = LONGEST));
		released(ranks + 1, RANKS - 1, "rank 0");
		assert_int_equal(rank_heard(&ranks[0]).wrong, 0);
		rank_finish(&ranks[0]);
		abort_and_finish(ranks + 1, RANKS - 1);
	}
}

static void who_leaves_in_order_takes_its_memory_along(void **state)
{
	struct rank_process ranks[RANKS];
	(void)state;
	start_pushing(ranks, 2, RANK_ROUNDS);
	for (int rank = 0; rank < RANKS; rank++)
		assert_true(settled(&ranks[rank], 10000).settled);
	ranks_tell(ranks, RANKS, ORDER(.order = RANK_DESTROY), NULL);
	for (int rank = 0; rank < RANKS; rank++)
		rank_finish(&ranks[rank]);
	domains_close();
}

/* ---- routers that nobody replaces ---- */

#define ALONE "FERRY_FABRICS=peer FERRY_TAKEOVER=off"

static void nobody_writes_into_buffers_of_ranks_whose_router_has_died(void **state)
{
	(void)state;
	for (int domain = 0; domain < 2; domain++) {
		struct rank_process ranks[RANKS];
		start_pushing_with(ALONE, ranks, 2, RANK_ROUNDS);
		routers_kill(domain);
		released(ranks, RANKS, domain ? "router of domain 1" : "router of domain 0");
		abort_and_finish(ranks, RANKS);
	}
}

/* Its connections close before its process, and what it copies, has ended: other domains' ranks wait for that, too. */
static void streams_wait_for_the_end_of_a_router_that_pushes_into_their_memory(void **state)
{
	struct rank_process ranks[RANKS];
	(void)state;
	start_pushing_with(ALONE, ranks, 2, RANK_ROUNDS);
	routers_hang_up(1);
	for (int rank = 0; rank < RANKS; rank++)
		if (settled(&ranks[rank], rank ? 1 : 2 * LONGEST).settled)
			fail_msg("rank %d's stream has gone on", rank);
	kill(routers_pid(1), SIGCONT); /* it goes on pushing, finds nobody left, and lets go of them */
	released(ranks, RANKS, "router of domain 1");
	abort_and_finish(ranks, RANKS);
}

/* Nobody can say that its copies are over: that is waited for, and then told. */
static void streams_wait_no_longer_than_ten_seconds_for_a_router_that_stands_still(void **state)
{
	struct rank_process ranks[RANKS];
	(void)state;
	start_pushing(ranks, 2, RANK_GATHER);
	kill(routers_pid(1), SIGSTOP);
	assert_int_equal(waitpid(routers_pid(1), NULL, WUNTRACED), routers_pid(1));
	rank_kill(&ranks[1]);
	struct rank_answer answer = rank_tell(&ranks[0], ORDER(.order = RANK_SETTLE, .number = 60000, .wanted = true));
	kill(routers_pid(1), SIGCONT);
	assert_true(answer.settled);
	assert_true(answer.milliseconds >= 9000);
	if (!strstr(answer.message, "rank 1"))
		fail_msg("\"%s\"", answer.message);
	for (int rank = 0; rank < RANKS; rank++)
		if (rank != 1) {
			rank_tell(&ranks[rank], ORDER(.order = RANK_ABORT));
			rank_finish(&ranks[rank]);
		}
	domains_close();
}

/* ---- memory ---- */

static size_t memory_left(void)
{
	size_t left, total;
	CU(cuMemGetInfo(&left, &total));
	return left;
}

static double seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Rank 0 comes when a router would long have forgotten what nobody names. */
static void a_buffer_stays_mapped_for_a_call_that_waits_long(void **state)
{
	struct gang gang;
	struct place places[RANKS];
	(void)state;
	setenv("FERRY_FABRICS", "peer", 1);
	gang_open(&gang, RANKS, devices, 2);
	places_open(places, &gang, COUNT);
	places_round(places, &gang);
	places_settle(places, &gang, 1);
	places[0].wait_ms = 3000;
	places_round(places, &gang);
	places_settle(places, &gang, 2);
	gang_close(&gang);
	unsetenv("FERRY_FABRICS");
	places_close(places, &gang);
}

/* Of all routers, while calls go on and on. */
static void freed_memory_that_others_have_put_into_comes_back(void **state)
{
	enum { BYTES = 32 << 20, PART = 100000 };
	struct gang gang;
	struct place places[RANKS];
	CUdeviceptr memory;
	uint32_t rounds = 0;
	(void)state;
	setenv("FERRY_FABRICS", "peer", 1);
	gang_open(&gang, RANKS, devices, 2);
	places_open(places, &gang, 1000);
	places_round(places, &gang);
	places_settle(places, &gang, ++rounds);
	place_enter(&places[0]);
	size_t before = memory_left();
	CU(cuMemAlloc(&memory, BYTES));
	for (int rank = 0; rank < RANKS; rank++) {
		place_enter(&places[rank]);
		CUdeviceptr into = rank ? places[rank].output : memory;
		OK(ferryAllGather(pointer_of(places[rank].input), pointer_of(into), 1000, ferryUint32,
		                  gang.comms[rank], (ferryStream_t)places[rank].stream));
	}
	places_settle(places, &gang, rounds);
	for (int rank = 1; rank < RANKS; rank++) /* as the kernels that judge leave it */
		memset(fake_cuda_reach(places[rank].output), 0, 4 * RANKS * 1000);
	place_enter(&places[0]);
	CU(cuMemFree(memory));
	double start = seconds();
	while (memory_left() != before && seconds() - start < 60) {
		for (int i = 0; i < 3; i++, rounds++) /* there is one under way all the time */
			places_round(places, &gang);
		doze(5);
		place_enter(&places[0]);
	}
	assert_int_equal(memory_left(), before);
	places_settle(places, &gang, rounds);
	gang_close(&gang);
	unsetenv("FERRY_FABRICS");
	places_close(places, &gang);
}

#define TEST(name) cmocka_unit_test_teardown(name, no_misuse)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        TEST(nobody_writes_into_buffers_of_survivors_of_a_rank),
	        TEST(nobody_writes_into_buffers_of_a_rank_that_has_aborted),
	        TEST(who_leaves_in_order_takes_its_memory_along),
	        TEST(nobody_writes_into_buffers_of_ranks_whose_router_has_died),
	        TEST(streams_wait_for_the_end_of_a_router_that_pushes_into_their_memory),
	        TEST(streams_wait_no_longer_than_ten_seconds_for_a_router_that_stands_still),
	        TEST(a_buffer_stays_mapped_for_a_call_that_waits_long),
	        TEST(freed_memory_that_others_have_put_into_comes_back),
	};
	setenv("FERRY_TEST_PUSHES", "1", 1);
	if (argc == 2)
		return rank_process_main(atoi(argv[1]));
	fake_is_the_driver();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
