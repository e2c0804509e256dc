/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of two domains, in processes of their own, whose routers move their data, over the double of the driver: what
 * goes on when the router of either domain dies, or both do, and when ranks leave or die while successors adopt the
 * job. With FERRY_TEST_PUSHES they push into memory of each other's ranks.
 */
#include "tests/fake_cuda/rank_process.h"
#include "tests/fake_cuda/routers.h"
#include "tests/kept_log.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RANKS 4
#define DOMAINS 2
/* elements: many slices */
#define LARGE (SANITIZED ? 100003 : 400009)
#define SOME (1u << 20) /* bytes: less than a buffer has */
#define PATIENCE "4"    /* seconds that a router's answer is waited for */
#define MOST_MS 60000   /* above that, and ten seconds for a router that may still copy */

static const int devices[] = {0, 1, 2, 3}; /* of each domain every other one */

#define ORDER(...) ((struct rank_ordered){__VA_ARGS__})

static void open_all_with(struct rank_process *ranks, const char *variables)
{
	domains_open(DOMAINS);
	for (int rank = 0; rank < RANKS; rank++)
		ranks[rank] = rank_start(variables);
	ranks_join(ranks, RANKS, devices, LARGE);
	ranks_round(ranks, RANKS, 2, 2);
}

static void open_all(struct rank_process *ranks)
{
	open_all_with(ranks, getenv("FERRY_TEST_PUSHES") ? "FERRY_FABRICS=peer" : "FERRY_FABRICS=host");
}

/* Ranks that wait for a router would wait for a day, and those that give up copies of one log it. */
static void open_to_leave(struct rank_process *ranks)
{
	log_keep();
	open_all_with(ranks, getenv("FERRY_TEST_PUSHES") ? "FERRY_FABRICS=peer FERRY_ATTACH_TIMEOUT=86400"
	                                                 : "FERRY_FABRICS=host FERRY_ATTACH_TIMEOUT=86400");
	log_release();
}

/* Those from this one on leave, in order. */
static void close_from(struct rank_process *ranks, int first)
{
	ranks_tell(&ranks[first], RANKS - first, ORDER(.order = RANK_DESTROY), NULL);
	for (int rank = first; rank < RANKS; rank++)
		rank_finish(&ranks[rank]);
	domains_close();
}

/* Bit d: the router of domain d. */
static void kill_routers(int which)
{
	for (int domain = 0; domain < DOMAINS; domain++)
		if (which >> domain & 1)
			routers_kill(domain);
}

/* Until the next router of each of these domains has all that it is to have from the rank. */
static void follow(const struct rank_process *rank, int which)
{
	for (int domain = 0; domain < DOMAINS; domain++)
		if (which >> domain & 1)
			rank_tell(rank, ORDER(.order = RANK_FOLLOW, .number = domain));
}

/* ---- calls ---- */

/* Rounds of a kind with deaths between and in the middle of them: all are right. */
static void survive(enum rank_order rounds)
{
	struct rank_process ranks[RANKS];
	struct rank_answer answers[RANKS];
	open_all(ranks);
	const int deaths = REPEATS(9, 3);
	for (int death = 0; death < deaths; death++) {
		rank_tell(&ranks[1], ORDER(.order = RANK_HOLD));
		ranks_tell(ranks, RANKS, ORDER(.order = rounds, .number = 8), NULL);
		if (death % 2)
			rank_tell(&ranks[1], ORDER(.order = RANK_RELEASE));
		doze(2 * death);
		kill_routers(1 + death % 3);
		if (!(death % 2))
			rank_tell(&ranks[1], ORDER(.order = RANK_RELEASE));
		routers_open(DOMAINS);
		ranks_tell(ranks, RANKS, ORDER(.order = RANK_SETTLE, .number = 30000), answers);
		for (int rank = 0; rank < RANKS; rank++) {
			if (!answers[rank].settled)
				fail_msg("death %d: rank %d has not settled: %s", death, rank, answers[rank].message);
			assert_int_equal(answers[rank].round, 2 + 8 * (death + 1));
			assert_int_equal(answers[rank].wrong, 0);
		}
	}
	ranks_round(ranks, RANKS, 2, (uint32_t)(2 + deaths * 8 + 2));
	close_from(ranks, 0);
}

static void calls_go_on_whichever_routers_die(void **state)
{
	(void)state;
	survive(RANK_ROUNDS);
}

static void messages_do(void **state)
{
	(void)state;
	survive(RANK_RING);
}

/*
 * The others' routers have mapped what a graph still names, and so have not the next ones: those do without, and calls
 * with other buffers go on.
 */
static void buffers_that_were_freed_under_a_graph_keep_no_router_from_its_place(void **state)
{
	(void)state;
	struct rank_process ranks[RANKS];
	open_all(ranks);
	ranks_tell(ranks, RANKS, ORDER(.order = RANK_CAPTURE, .number = 1, .wanted = true), NULL);
	ranks_tell(ranks, RANKS, ORDER(.order = RANK_REPLAY, .number = 2), NULL);
	ranks_tell(ranks, RANKS, ORDER(.order = RANK_SETTLE, .number = 60000), NULL);
	ranks_tell(ranks, RANKS, ORDER(.order = RANK_MOVE), NULL);
	for (int which = 1; which < 1 << DOMAINS; which++) {
		kill_routers(which);
		routers_open(DOMAINS);
		ranks_round(ranks, RANKS, 2, (uint32_t)(2 + 2 * which));
	}
	ranks_tell(ranks, RANKS, ORDER(.order = RANK_FORGET), NULL);
	close_from(ranks, 0);
}

/* ---- ranks that leave ---- */

static size_t memory_left(void)
{
	size_t left, total;
	place_enter(&(struct place){.device = devices[0]});
	CU(cuMemGetInfo(&left, &total));
	return left;
}

static void leaves_at_once(struct rank_process *rank)
{
	struct rank_answer answer = rank_tell(rank, ORDER(.order = RANK_DESTROY));
	if (answer.result || log_has(GAVE_UP))
		fail_msg("%s: %s; %s", ferryGetErrorString(answer.result), answer.message, log_text());
}

/* The others have not been told that it is dead: they leave as they would, with the routers that come later. */
static void a_rank_leaves_where_no_router_has_taken_the_place_of_a_dead_one(void **state)
{
	(void)state;
	for (int which = 1; which < 1 << DOMAINS; which++) {
		struct rank_process ranks[RANKS];
		open_to_leave(ranks);
		kill_routers(which);
		leaves_at_once(&ranks[0]);
		rank_finish(&ranks[0]);
		routers_open(DOMAINS);
		for (int rank = 1; rank < RANKS; rank++) {
			struct rank_answer answer;
			follow(&ranks[rank], which);
			answer = rank_tell(&ranks[rank], ORDER(.order = RANK_SETTLE, .number = 1000));
			assert_int_equal(answer.error, ferrySuccess);
		}
		close_from(ranks, 1);
	}
}

/*
 * Rank 3 stands still, so the next routers wait for it. What rank 0 has registered they have mapped by then, and they
 * give it back while the others stay.
 */
static void a_rank_leaves_while_the_next_router_waits_for_others(void **state)
{
	(void)state;
	for (int which = 1; which < 1 << DOMAINS; which++) {
		struct rank_process ranks[RANKS];
		size_t before = memory_left();
		open_to_leave(ranks);
		rank_tell(&ranks[0], ORDER(.order = RANK_REGISTER));
		kill(ranks[3].pid, SIGSTOP);
		kill_routers(which);
		routers_open(DOMAINS);
		for (int rank = 0; rank < 3; rank++)
			follow(&ranks[rank], which);
		leaves_at_once(&ranks[0]);
		rank_finish(&ranks[0]);
		kill(ranks[3].pid, SIGCONT);
		follow(&ranks[3], which);
		for (int waited = 0; memory_left() + SOME < before && waited < 60000; waited++)
			doze(1);
		if (memory_left() + SOME < before)
			fail_msg("%zu bytes of a rank that has left stay mapped (%d)", before - memory_left(), which);
		close_from(ranks, 1);
	}
}

/*
 * For the others it has left, whether it was its own router that did not hear it or another: a call without it says so,
 * which is the only error that they get.
 */
static void a_rank_leaves_where_a_router_does_not_answer(void **state)
{
	(void)state;
	for (int departed_rank = DOMAINS - 1; departed_rank >= 0; departed_rank--) {
		struct rank_process ranks[RANKS];
		struct rank_answer answer;
		char flags[64];
		open_all_with(ranks, "FERRY_FABRICS=host FERRY_ATTACH_TIMEOUT=" PATIENCE);
		kill(routers_pid(0), SIGSTOP);
		answer = rank_tell(&ranks[departed_rank], ORDER(.order = RANK_DESTROY));
		assert_int_equal(answer.result, ferrySuccess);
		assert_in_range(answer.milliseconds, 0, MOST_MS);
		kill(routers_pid(0), SIGCONT);
		rank_finish(&ranks[departed_rank]);
		snprintf(flags, sizeof flags, "rank %d has left the communicator", departed_rank);
		rank_tell(&ranks[3], ORDER(.order = RANK_ROUNDS, .number = 1));
		for (int rank = 0; rank < RANKS; rank++)
			if (rank != departed_rank)
				rank_released(&ranks[rank], flags);
		for (int rank = 0; rank < RANKS; rank++) {
			if (rank == departed_rank)
				continue;
			assert_int_equal(rank_tell(&ranks[rank], ORDER(.order = RANK_ABORT)).result, ferrySuccess);
			rank_finish(&ranks[rank]);
		}
		domains_close();
	}
}

/* ---- ranks that die ---- */

/* In the middle of calls; rank 3 stands still, so the routers that it is to come to wait. */
static void die(int which, int victim, const char *flags)
{
	struct rank_process ranks[RANKS];
	open_all(ranks);
	ranks_tell(ranks, 3, ORDER(.order = RANK_ROUNDS, .number = 3), NULL);
	kill(ranks[3].pid, SIGSTOP);
	kill_routers(which);
	routers_open(DOMAINS);
	for (int rank = 0; rank < 3; rank++)
		follow(&ranks[rank], which);
	rank_kill(&ranks[victim]);
	kill(ranks[3].pid, SIGCONT);
	for (int rank = 0; rank < RANKS; rank++) {
		if (rank == victim)
			continue;
		rank_released(&ranks[rank], flags);
		assert_int_equal(rank_tell(&ranks[rank], ORDER(.order = RANK_ABORT)).result, ferrySuccess);
		rank_finish(&ranks[rank]);
	}
	domains_close();
}

static void others_hear_within_a_second_of_a_rank_that_dies_when_it_has_handed_over(void **state)
{
	(void)state;
	for (int which = 1; which < 1 << DOMAINS; which++)
		die(which, 1, "rank 1");
}

static void others_hear_within_a_second_of_a_rank_that_dies_before_it_has(void **state)
{
	(void)state;
	for (int which = 1; which < 1 << DOMAINS; which++)
		die(which, 3, "rank 3");
}

static void gives_up(struct rank_process *rank)
{
	assert_int_equal(rank_tell(rank, ORDER(.order = RANK_ABORT)).result, ferrySuccess);
	rank_finish(rank);
}

/*
 * Router 0, or its successor, is stopped. Meanwhile router 1 finds rank 3 dead, and rank 1 reads that failure and ends.
 * When router 0 goes on it sees two deaths at once, or rank 1's alone. Rank 0 has left once that router has ended the
 * job. Rank 2 goes on last, and reads what router 0 has written.
 */
static void die_beside_a_router_that_stands_still(int which)
{
	struct rank_process ranks[RANKS];
	struct rank_answer answer;
	open_all(ranks);
	ranks_tell(ranks, RANKS, ORDER(.order = RANK_ROUNDS, .number = 3), NULL);
	kill(ranks[3].pid, SIGSTOP);
	kill_routers(which);
	routers_open(DOMAINS);
	for (int rank = 0; rank < 3; rank++)
		follow(&ranks[rank], which);
	kill(ranks[2].pid, SIGSTOP);
	kill(routers_pid(0), SIGSTOP);
	rank_kill(&ranks[3]);
	answer = rank_tell(&ranks[1], ORDER(.order = RANK_SETTLE, .number = 300, .wanted = true));
	assert_non_null(strstr(answer.message, "rank 3")); /* its stream may wait for router 0 */
	rank_kill(&ranks[1]);
	kill(routers_pid(0), SIGCONT);
	gives_up(&ranks[0]);
	kill(ranks[2].pid, SIGCONT);
	rank_released(&ranks[2], "rank 3");
	gives_up(&ranks[2]);
	domains_close();
}

static void a_rank_that_ends_when_it_hears_of_a_death_is_not_named_for_it(void **state)
{
	(void)state;
	for (int which = 0; which < 1 << DOMAINS; which++)
		die_beside_a_router_that_stands_still(which);
}

#define TEST(name) cmocka_unit_test_teardown(name, no_misuse)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        TEST(calls_go_on_whichever_routers_die),
	        TEST(messages_do),
	        TEST(buffers_that_were_freed_under_a_graph_keep_no_router_from_its_place),
	        TEST(a_rank_leaves_where_no_router_has_taken_the_place_of_a_dead_one),
	        TEST(a_rank_leaves_while_the_next_router_waits_for_others),
	        TEST(a_rank_leaves_where_a_router_does_not_answer),
	        TEST(others_hear_within_a_second_of_a_rank_that_dies_when_it_has_handed_over),
	        TEST(others_hear_within_a_second_of_a_rank_that_dies_before_it_has),
	        TEST(a_rank_that_ends_when_it_hears_of_a_death_is_not_named_for_it),
	};
	if (argc == 2)
		return rank_process_main(atoi(argv[1]));
	setenv("FAKE_CUDA_CONTEXT_MEMORY", "0", 1);
	fake_is_the_driver();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
