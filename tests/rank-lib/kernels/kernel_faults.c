/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that kernels carry where a rank or a router dies, leaves or gives up, over the double of the CUDA driver:
 * streams are free, or go on where no router is needed.
 */
#include "tests/fake_cuda/rank_process.h"
#include "tests/fake_cuda/routers.h"

#include <stdlib.h>
#include <string.h>

#define COUNT 3011

static const int devices[] = {0, 1, 2, 3};

/* Where the mailboxes are to lie. */
static const char *const fabrics[] = {"host", "peer"};

static void use(const char *fabric)
{
	setenv("FERRY_KERNELS", "on", 1);
	setenv("FERRY_FABRICS", fabric, 1);
}

static void start(struct rank_process *ranks, int nranks, const char *variables)
{
	for (int rank = 0; rank < nranks; rank++)
		ranks[rank] = rank_start(variables);
}

static void survivors_streams_are_free_when_a_rank_dies(void **state)
{
	(void)state;
	for (int fabric = 0; fabric < 2; fabric++) {
		struct rank_process ranks[3];
		use(fabrics[fabric]);
		domains_open(1);
		start(ranks, 3, NULL);
		ranks_join(ranks, 3, devices, COUNT);
		ranks_round(ranks, 3, 2, 2);
		ranks_tell(ranks, 2, (struct rank_ordered){.order = RANK_CAPTURE, .number = 1}, NULL);
		ranks_tell(ranks, 2, (struct rank_ordered){.order = RANK_ROUNDS, .number = 3}, NULL);
		ranks_tell(ranks, 2, (struct rank_ordered){.order = RANK_REPLAY, .number = 3}, NULL);
		rank_kill(&ranks[2]);
		rank_released(&ranks[0], "rank 2");
		rank_released(&ranks[1], "rank 2");
		ranks_tell(ranks, 2, (struct rank_ordered){.order = RANK_FORGET}, NULL);
		for (int rank = 0; rank < 2; rank++) {
			rank_tell(&ranks[rank], (struct rank_ordered){.order = RANK_ABORT});
			rank_finish(&ranks[rank]);
		}
		domains_close();
	}
}

/* Nobody takes its place: until the ranks know that, and from then on, kernels go on, and other calls do not. */
static void after_a_routers_death_kernels_go_on(void **state)
{
	(void)state;
	for (int off = 0; off < 2; off++) {
		struct rank_process ranks[3];
		struct rank_answer answers[3];
		use(fabrics[off]);
		domains_open(2);
		start(ranks, 3, off ? "FERRY_TAKEOVER=off" : "FERRY_ATTACH_TIMEOUT=3");
		ranks_join(ranks, 3, devices, COUNT);
		ranks_round(ranks, 3, 2, 2);
		ranks_tell(ranks, 3, (struct rank_ordered){.order = RANK_CAPTURE, .number = 1}, NULL);
		ranks_tell(ranks, 2, (struct rank_ordered){.order = RANK_ROUNDS, .number = 3}, NULL); /* under way */
		routers_kill(off);
		ranks_tell(ranks, 2, (struct rank_ordered){.order = RANK_REPLAY, .number = 3}, NULL);
		for (int rank = 0; rank < 3; rank++) /* all know it */
			while (!rank_tell(&ranks[rank], (struct rank_ordered){.order = RANK_SETTLE}).error)
				doze(10);
		doze(500); /* time for the abort word, if it were to be raised */
		rank_tell(&ranks[2], (struct rank_ordered){.order = RANK_ROUNDS, .number = 3});
		rank_tell(&ranks[2], (struct rank_ordered){.order = RANK_REPLAY, .number = 3});
		ranks_tell(ranks, 3, (struct rank_ordered){.order = RANK_ROUNDS, .number = 2}, NULL);
		ranks_tell(ranks, 3, (struct rank_ordered){.order = RANK_SETTLE, .number = 60000}, answers);
		for (int rank = 0; rank < 3; rank++) {
			assert_true(answers[rank].settled && !answers[rank].wrong);
			assert_int_equal(answers[rank].round, 10);
			assert_non_null(strstr(answers[rank].message, "the router of domain"));
		}
		rank_order(&ranks[1], (struct rank_ordered){.order = RANK_RING, .number = 1});
		assert_int_equal(rank_heard(&ranks[1]).result, ferryRemoteError);
		ranks_tell(ranks, 3, (struct rank_ordered){.order = RANK_FORGET}, NULL);
		for (int rank = 0; rank < 3; rank++)
			rank_order(&ranks[rank], (struct rank_ordered){.order = RANK_DESTROY});
		for (int rank = 0; rank < 3; rank++) {
			assert_int_equal(rank_heard(&ranks[rank]).result, ferryRemoteError);
			rank_finish(&ranks[rank]);
		}
		domains_close();
	}
}

/* Who has no router that could tell looks after the others' processes; while it may still be replaced, too. */
static void a_rank_that_dies_after_its_router_frees_all_streams(void **state)
{
	(void)state;
	for (int off = 0; off < 2; off++) {
		struct rank_process ranks[3];
		use("peer");
		domains_open(1);
		start(ranks, 3, off ? "FERRY_TAKEOVER=off" : NULL);
		ranks_join(ranks, 3, devices, COUNT);
		ranks_round(ranks, 3, 2, 2);
		ranks_tell(ranks, 2, (struct rank_ordered){.order = RANK_ROUNDS, .number = 3}, NULL);
		routers_kill(0);
		rank_kill(&ranks[2]);
		rank_released(&ranks[0], off ? "the router of domain 0 died" : "rank 2 of 3 died after a router");
		rank_released(&ranks[1], off ? "the router of domain 0 died" : "rank 2 of 3 died after a router");
		for (int rank = 0; rank < 2; rank++) {
			rank_order(&ranks[rank], (struct rank_ordered){.order = RANK_ROUNDS, .number = 1});
			assert_int_equal(rank_heard(&ranks[rank]).result, ferryRemoteError);
			rank_tell(&ranks[rank], (struct rank_ordered){.order = RANK_ABORT});
			rank_finish(&ranks[rank]);
		}
		domains_close();
	}
}

/* Whoever aborts has its peers' streams go on, though the communicator has failed before. */
static void a_rank_that_aborts_after_its_router_has_died_frees_all_streams(void **state)
{
	(void)state;
	struct rank_process ranks[2];
	use("host");
	domains_open(1);
	start(ranks, 2, "FERRY_TAKEOVER=off");
	ranks_join(ranks, 2, devices, COUNT);
	ranks_round(ranks, 2, 2, 2);
	routers_kill(0);
	for (int rank = 0; rank < 2; rank++)
		while (!rank_tell(&ranks[rank], (struct rank_ordered){.order = RANK_SETTLE}).error)
			doze(10);
	rank_tell(&ranks[0], (struct rank_ordered){.order = RANK_ROUNDS, .number = 3});
	rank_tell(&ranks[1], (struct rank_ordered){.order = RANK_ABORT});
	rank_released(&ranks[0], "the router of domain 0 died");
	rank_tell(&ranks[0], (struct rank_ordered){.order = RANK_ABORT});
	for (int rank = 0; rank < 2; rank++)
		rank_finish(&ranks[rank]);
	domains_close();
}

static void a_rank_that_aborts_frees_all_streams(void **state)
{
	(void)state;
	struct rank_process ranks[2];
	use("peer");
	domains_open(1);
	start(ranks, 2, NULL);
	ranks_join(ranks, 2, devices, COUNT);
	ranks_round(ranks, 2, 2, 2);
	rank_tell(&ranks[0], (struct rank_ordered){.order = RANK_ROUNDS, .number = 3});
	rank_tell(&ranks[0], (struct rank_ordered){.order = RANK_ABORT});
	rank_tell(&ranks[0], (struct rank_ordered){.order = RANK_MOVE}); /* to free memory waits for the device */
	rank_tell(&ranks[1], (struct rank_ordered){.order = RANK_ABORT});
	for (int rank = 0; rank < 2; rank++)
		rank_finish(&ranks[rank]);
	domains_close();
}

static void a_call_that_a_rank_has_left_without_ends(void **state)
{
	(void)state;
	struct rank_process ranks[2];
	use("host");
	domains_open(1);
	start(ranks, 2, NULL);
	ranks_join(ranks, 2, devices, COUNT);
	ranks_round(ranks, 2, 2, 2);
	rank_tell(&ranks[1], (struct rank_ordered){.order = RANK_DESTROY});
	rank_tell(&ranks[0], (struct rank_ordered){.order = RANK_ROUNDS, .number = 1});
	rank_released(&ranks[0], "rank 1 has left the communicator");
	rank_tell(&ranks[0], (struct rank_ordered){.order = RANK_ABORT});
	for (int rank = 0; rank < 2; rank++)
		rank_finish(&ranks[rank]);
	domains_close();
}

/* It has left when its own replays were over, and the other rank's first ones, too. */
static void a_replay_after_a_rank_has_left_ends_with_an_error(void **state)
{
	(void)state;
	for (int fabric = 0; fabric < 2; fabric++) {
		struct rank_process ranks[2];
		use(fabrics[fabric]);
		domains_open(1);
		start(ranks, 2, NULL);
		ranks_join(ranks, 2, devices, COUNT);
		ranks_round(ranks, 2, 2, 2);
		ranks_tell(ranks, 2, (struct rank_ordered){.order = RANK_CAPTURE, .number = 2}, NULL);
		ranks_tell(ranks, 2, (struct rank_ordered){.order = RANK_REPLAY, .number = 3}, NULL);
		rank_tell(&ranks[1], (struct rank_ordered){.order = RANK_FORGET});
		rank_tell(&ranks[1], (struct rank_ordered){.order = RANK_DESTROY});
		struct rank_answer answer =
		        rank_tell(&ranks[0], (struct rank_ordered){.order = RANK_SETTLE, .number = 60000});
		doze(600); /* time for what looks for departed ranks, if that were enough for an error */
		assert_true(answer.settled && !answer.wrong);
		assert_int_equal(rank_tell(&ranks[0], (struct rank_ordered){.order = RANK_SETTLE}).error, ferrySuccess);
		rank_tell(&ranks[0], (struct rank_ordered){.order = RANK_REPLAY, .number = 2});
		rank_released(&ranks[0], "rank 1 has left the communicator: it takes no part in call 9 of kernels");
		rank_tell(&ranks[0], (struct rank_ordered){.order = RANK_FORGET});
		rank_tell(&ranks[0], (struct rank_ordered){.order = RANK_ABORT});
		for (int rank = 0; rank < 2; rank++)
			rank_finish(&ranks[rank]);
		domains_close();
	}
}

/*
 * What is left of it is given back when the next one ends, but for that which its kernels still store into. Ranks keep
 * their buffers.
 */
static void a_graph_that_outlives_its_communicator_does_no_harm(void **state)
{
	(void)state;
	for (int fabric = 0; fabric < 2; fabric++) {
		struct rank_process ranks[2];
		struct rank_ordered join = {.order = RANK_JOIN, .nranks = 2, .wanted = true};
		use(fabrics[fabric]);
		domains_open(1);
		start(ranks, 2, NULL);
		ranks_join(ranks, 2, devices, COUNT);
		ranks_round(ranks, 2, 2, 2);
		ranks_tell(ranks, 2, (struct rank_ordered){.order = RANK_CAPTURE, .number = 2}, NULL);
		ranks_tell(ranks, 2, (struct rank_ordered){.order = RANK_REPLAY, .number = 3}, NULL);
		ranks_tell(ranks, 2, (struct rank_ordered){.order = RANK_HEARD}, NULL);
		ranks_tell(ranks, 2, (struct rank_ordered){.order = RANK_ABORT}, NULL);
		OK(ferryGetUniqueId(&join.id));
		for (; join.rank < 2; join.ordinal = ++join.rank)
			rank_order(&ranks[join.rank], join);
		for (int rank = 0; rank < 2; rank++)
			OK(rank_heard(&ranks[rank]).result);
		ranks_tell(ranks, 2, (struct rank_ordered){.order = RANK_DESTROY}, NULL);
		ranks_tell(ranks, 2, (struct rank_ordered){.order = RANK_REPLAY, .number = 3}, NULL);
		ranks_tell(ranks, 2, (struct rank_ordered){.order = RANK_HEARD}, NULL); /* their streams are whole */
		ranks_tell(ranks, 2, (struct rank_ordered){.order = RANK_FORGET}, NULL);
		for (int rank = 0; rank < 2; rank++)
			rank_finish(&ranks[rank]);
		domains_close();
	}
}

static void a_rank_that_never_comes_to_a_kernels_call_is_named(void **state)
{
	(void)state;
	for (int fabric = 0; fabric < 2; fabric++) {
		struct rank_process ranks[3];
		use(fabrics[fabric]);
		domains_open(1);
		start(ranks, 3, "FERRY_TIMEOUT=2 FERRY_ON_TIMEOUT=fail");
		ranks_join(ranks, 3, devices, COUNT);
		ranks_round(ranks, 3, 2, 2);
		doze(2600); /* without a waiting rank nothing is reported */
		ranks_round(ranks, 3, 1, 3);
		for (int rank = 0; rank < 3; rank += 2)
			rank_tell(&ranks[rank], (struct rank_ordered){.order = RANK_ROUNDS, .number = 1});
		rank_released(&ranks[0], " s in call 4 of kernels for rank 1, which has not made that call");
		rank_released(&ranks[2], " s in call 4 of kernels for rank 1, which has not made that call");
		for (int rank = 0; rank < 3; rank++) {
			rank_tell(&ranks[rank], (struct rank_ordered){.order = RANK_ABORT});
			rank_finish(&ranks[rank]);
		}
		domains_close();
	}
}

/* One has packets, the other one chunks. */
static void ranks_that_make_different_calls_by_kernels_are_told_so(void **state)
{
	struct rank_process ranks[2];
	struct rank_ordered order = {.order = RANK_JOIN, .nranks = 2};
	(void)state;
	use("host");
	domains_open(1);
	start(ranks, 2, "FERRY_TIMEOUT=5 FERRY_ON_TIMEOUT=fail"); /* both are in their calls by then */
	OK(ferryGetUniqueId(&order.id));
	for (order.rank = order.ordinal = 0; order.rank < 2; order.ordinal = ++order.rank) {
		order.count = order.rank ? 50000 : 100;
		rank_order(&ranks[order.rank], order);
	}
	for (int rank = 0; rank < 2; rank++)
		OK(rank_heard(&ranks[rank]).result);
	ranks_tell(ranks, 2, (struct rank_ordered){.order = RANK_ROUNDS, .number = 1}, NULL);
	for (int rank = 0; rank < 2; rank++)
		rank_released(&ranks[rank], "which waits for it there: they have made different calls");
	for (int rank = 0; rank < 2; rank++) {
		rank_tell(&ranks[rank], (struct rank_ordered){.order = RANK_ABORT});
		rank_finish(&ranks[rank]);
	}
	domains_close();
}

#define TEST(name) cmocka_unit_test_teardown(name, no_misuse)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        TEST(survivors_streams_are_free_when_a_rank_dies),
	        TEST(after_a_routers_death_kernels_go_on),
	        TEST(a_rank_that_dies_after_its_router_frees_all_streams),
	        TEST(a_rank_that_aborts_after_its_router_has_died_frees_all_streams),
	        TEST(a_rank_that_aborts_frees_all_streams),
	        TEST(a_call_that_a_rank_has_left_without_ends),
	        TEST(a_replay_after_a_rank_has_left_ends_with_an_error),
	        TEST(a_graph_that_outlives_its_communicator_does_no_harm),
	        TEST(a_rank_that_never_comes_to_a_kernels_call_is_named),
	        TEST(ranks_that_make_different_calls_by_kernels_are_told_so),
	};
	if (argc == 2)
		return rank_process_main(atoi(argv[1]));
	fake_is_the_driver();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
