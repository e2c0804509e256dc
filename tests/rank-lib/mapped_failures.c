/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks in processes of their own, whose routers move their data, over the double of the driver: where it works, and
 * what the ranks that are left notice when a rank or a router dies.
 */
#include "tests/fake_cuda/rank_process.h"
#include "tests/fake_cuda/routers.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT 30011
/* elements: many slices; what the kernels take before and behind their calls counts where seconds are counted */
#define LARGE (SANITIZED ? 100003 : 400009)

static const int devices[] = {0, 1, 2, 3}, others[] = {2, 3}, one_device[] = {0, 0, 0, 0};

#define ORDER(...) ((struct rank_ordered){__VA_ARGS__})

static void start_all(struct rank_process *ranks, int nranks, const char *variables)
{
	for (int rank = 0; rank < nranks; rank++)
		ranks[rank] = rank_start(variables);
}

static void finish_all(struct rank_process *ranks, int nranks)
{
	for (int rank = 0; rank < nranks; rank++)
		rank_finish(&ranks[rank]);
}

static void destroy_and_finish(struct rank_process *ranks, int nranks)
{
	ranks_tell(ranks, nranks, ORDER(.order = RANK_DESTROY), NULL);
	finish_all(ranks, nranks);
}

/* ---- where it works ---- */

/* Each process has one router monitor; all beside that is the double's. */
static void rounds_by(const char *const *variables, const int *ordinals)
{
	struct rank_process ranks[2];
	for (int rank = 0; rank < 2; rank++)
		ranks[rank] = rank_start(variables[rank]);
	ranks_join(ranks, 2, ordinals, COUNT);
	ranks_round(ranks, 2, 5, 5);
	for (int rank = 0; rank < 2; rank++)
		assert_int_equal(rank_tell(&ranks[rank], ORDER(.order = RANK_THREADS)).monitors, 1);
	destroy_and_finish(ranks, 2);
}

static void ranks_that_see_other_devices_under_the_same_number_are_mapped(void **state)
{
	(void)state;
	static const char *const variables[] = {"CUDA_VISIBLE_DEVICES=2", "CUDA_VISIBLE_DEVICES=3,1"};
	domains_open(1);
	rounds_by(variables, one_device);
	domains_close();
}

static void ranks_of_two_processes_may_share_a_device(void **state)
{
	(void)state;
	static const char *const variables[] = {NULL, NULL};
	domains_open(1);
	rounds_by(variables, one_device);
	domains_close();
}

/* ---- ranks die ---- */

static void survivors_of_a_rank(const char *where, size_t count, int kill_after_ms)
{
	struct rank_process ranks[3];
	static struct gang bystanders;
	static struct place places[MOST_PLACES]; /* kernels use them, also after a failure */
	gang_open(&bystanders, 2, others, 1);
	places_open(places, &bystanders, COUNT);
	places_round(places, &bystanders);
	start_all(ranks, 3, NULL);
	ranks_join(ranks, 3, devices, count);
	ranks_round(ranks, 3, 1, 1);
	place_round(&places[0], bystanders.comms[0]); /* is in the middle of a call, too */
	int callers = kill_after_ms < 0 ? 2 : 3;
	ranks_tell(ranks, callers, ORDER(.order = RANK_ROUNDS, .number = callers == 3 ? 6 : 1), NULL);
	doze(kill_after_ms < 0 ? 20 : kill_after_ms);
	rank_kill(&ranks[2]);
	for (int rank = 0; rank < 2; rank++)
		rank_released(&ranks[rank], where);
	place_round(&places[1], bystanders.comms[1]);
	for (int i = 0; i < 20; i++)
		places_round(places, &bystanders);
	places_settle(places, &bystanders, 22);
	ranks_tell(ranks, 2, ORDER(.order = RANK_ABORT), NULL);
	ranks_join(ranks, 2, devices, COUNT);
	ranks_round(ranks, 2, 3, 3);
	destroy_and_finish(ranks, 2);
	gang_close(&bystanders);
	places_close(places, &bystanders);
}

static void others_go_on_within_a_second_when_a_rank_dies_that_they_wait_for(void **state)
{
	(void)state;
	survivors_of_a_rank("rank 2", COUNT, -1);
}

/* Copies from and to its memory are under way. */
static void others_go_on_within_a_second_when_a_rank_dies_in_the_middle_of_calls(void **state)
{
	(void)state;
	for (int after = 0; after < 4; after++)
		survivors_of_a_rank("rank 2", LARGE, 2 * after);
}

static void a_replay_while_a_rank_dies_ends_within_a_second(void **state)
{
	(void)state;
	struct rank_process ranks[2];
	domains_open(1);
	start_all(ranks, 2, NULL);
	ranks_join(ranks, 2, devices, COUNT);
	ranks_tell(ranks, 2, ORDER(.order = RANK_CAPTURE, .number = 3), NULL);
	ranks_tell(ranks, 2, ORDER(.order = RANK_REPLAY, .number = 4), NULL);
	ranks_tell(ranks, 2, ORDER(.order = RANK_SETTLE, .number = 60000), NULL);
	rank_tell(&ranks[0], ORDER(.order = RANK_REPLAY, .number = 2));
	rank_kill(&ranks[1]);
	rank_released(&ranks[0], "rank 1");
	rank_tell(&ranks[0], ORDER(.order = RANK_REPLAY, .number = 2)); /* it is in vain, and holds nobody up */
	rank_released(&ranks[0], "rank 1");
	rank_tell(&ranks[0], ORDER(.order = RANK_ABORT));
	rank_tell(&ranks[0], ORDER(.order = RANK_FORGET));
	rank_finish(&ranks[0]);
	domains_close();
}

/* ---- routers die ---- */

static void streams_go_on_when_their_router_dies_and_no_other_may_take_its_place(void **state)
{
	(void)state;
	struct rank_process ranks[2];
	domains_open(1);
	start_all(ranks, 2, "FERRY_TAKEOVER=off");
	ranks_join(ranks, 2, devices, COUNT);
	ranks_round(ranks, 2, 2, 2);
	ranks_tell(ranks, 2, ORDER(.order = RANK_CAPTURE, .number = 2), NULL);
	ranks_tell(ranks, 2, ORDER(.order = RANK_REPLAY, .number = 2), NULL);
	ranks_tell(ranks, 2, ORDER(.order = RANK_SETTLE, .number = 60000), NULL);
	rank_tell(&ranks[1], ORDER(.order = RANK_HOLD));
	ranks_tell(ranks, 2, ORDER(.order = RANK_ROUNDS, .number = 3), NULL);
	doze(20);
	routers_kill(0);
	rank_released(&ranks[0], "router of domain 0 died");
	rank_tell(&ranks[1], ORDER(.order = RANK_RELEASE)); /* comes to its calls only now */
	rank_released(&ranks[1], "router of domain 0 died");
	ranks_tell(ranks, 2, ORDER(.order = RANK_REPLAY, .number = 3), NULL);
	for (int rank = 0; rank < 2; rank++)
		rank_released(&ranks[rank], "router of domain 0 died");
	ranks_tell(ranks, 2, ORDER(.order = RANK_ABORT), NULL);
	ranks_tell(ranks, 2, ORDER(.order = RANK_REPLAY, .number = 1), NULL);
	for (int rank = 0; rank < 2; rank++)
		rank_tell(&ranks[rank], ORDER(.order = RANK_FORGET));
	routers_open(1);
	ranks_join(ranks, 2, devices, COUNT);
	ranks_round(ranks, 2, 3, 3);
	destroy_and_finish(ranks, 2);
	domains_close();
}

/* Rounds of a kind with deaths between and in the middle of them: all are right. `make soak` has more deaths. */
static void survive(enum rank_order rounds, int nranks)
{
	const char *wanted = getenv("FERRY_TEST_DEATHS");
	int deaths = wanted ? atoi(wanted) : 4;
	struct rank_process ranks[4];
	struct rank_answer answers[4];
	domains_open(1);
	start_all(ranks, nranks, "FERRY_FABRICS=host");
	ranks_join(ranks, nranks, devices, LARGE);
	ranks_round(ranks, nranks, 2, 2);
	if (rounds == RANK_REPLAY)
		ranks_tell(ranks, nranks, ORDER(.order = RANK_CAPTURE, .number = 1), NULL);
	for (int death = 0; death < deaths; death++) {
		rank_tell(&ranks[1], ORDER(.order = RANK_HOLD));
		ranks_tell(ranks, nranks, ORDER(.order = rounds, .number = 12), NULL);
		if (death % 2)
			rank_tell(&ranks[1], ORDER(.order = RANK_RELEASE));
		doze(2 * death);
		routers_kill(0);
		if (!(death % 2))
			rank_tell(&ranks[1], ORDER(.order = RANK_RELEASE));
		routers_open(1);
		ranks_tell(ranks, nranks, ORDER(.order = RANK_SETTLE, .number = 30000), answers);
		for (int rank = 0; rank < nranks; rank++) {
			if (!answers[rank].settled)
				fail_msg("death %d: rank %d has not settled: %s", death, rank, answers[rank].message);
			assert_int_equal(answers[rank].round, 2 + 12 * (death + 1));
			assert_int_equal(answers[rank].wrong, 0);
		}
	}
	ranks_round(ranks, nranks, 2, (uint32_t)(4 + 12 * deaths));
	if (rounds == RANK_REPLAY)
		ranks_tell(ranks, nranks, ORDER(.order = RANK_FORGET), NULL);
	destroy_and_finish(ranks, nranks);
	domains_close();
}

/* Plain calls: those under way, those that their streams have not reached, and what comes later. */
static void ranks_whose_data_routers_move_go_on_with_the_next_one(void **state)
{
	(void)state;
	if (getenv("FERRY_TEST_DOMAINS"))
		skip();
	survive(RANK_ROUNDS, 2);
	survive(RANK_ROUNDS, 4);
}

static void their_messages_do(void **state)
{
	(void)state;
	if (getenv("FERRY_TEST_DOMAINS"))
		skip();
	survive(RANK_RING, 2);
	survive(RANK_RING, 4);
}

/* The last of them are plain calls whose numbers rank 0's router gives. */
static void their_graphs_do(void **state)
{
	(void)state;
	if (getenv("FERRY_TEST_DOMAINS"))
		skip();
	survive(RANK_REPLAY, 2);
	survive(RANK_REPLAY, 4);
}

/* Only its replay misses them: that ends the job, with the reason. */
static void a_graph_whose_buffers_were_freed_keeps_no_router_from_its_place(void **state)
{
	struct rank_process ranks[2];
	(void)state;
	/* the stream of an AllGather itself copies out of what was freed, which the driver tells the program of */
	if (getenv("FERRY_TEST_DOMAINS") || getenv("FERRY_TEST_PUSHES"))
		skip();
	domains_open(1);
	start_all(ranks, 2, "FERRY_FABRICS=host");
	ranks_join(ranks, 2, devices, COUNT);
	ranks_tell(ranks, 2, ORDER(.order = RANK_CAPTURE, .number = 1, .wanted = true), NULL);
	ranks_tell(ranks, 2, ORDER(.order = RANK_REPLAY, .number = 2), NULL);
	ranks_tell(ranks, 2, ORDER(.order = RANK_SETTLE, .number = 60000), NULL);
	ranks_tell(ranks, 2, ORDER(.order = RANK_MOVE), NULL);
	for (uint32_t death = 1; death <= 2; death++) {
		routers_kill(0);
		routers_open(1);
		ranks_round(ranks, 2, 2, 2 * death);
	}
	ranks_tell(ranks, 2, ORDER(.order = RANK_REPLAY, .number = 1), NULL);
	for (int rank = 0; rank < 2; rank++) {
		struct rank_answer answer =
		        rank_tell(&ranks[rank], ORDER(.order = RANK_SETTLE, .number = 10000, .wanted = true));
		if (!answer.settled || !answer.error || !strstr(answer.message, "buffers were freed"))
			fail_msg("settled %d, %s: %s", answer.settled, ferryGetErrorString(answer.error),
			         answer.message);
	}
	ranks_tell(ranks, 2, ORDER(.order = RANK_ABORT), NULL);
	ranks_tell(ranks, 2, ORDER(.order = RANK_FORGET), NULL);
	finish_all(ranks, 2);
	domains_close();
}

/* Two ranks and their router, of whose copies one is under way until `held` is removed. */
static void hold_copies(struct rank_process *ranks, char *held, size_t bytes)
{
	snprintf(held, bytes, "/tmp/ferry-held-%d", (int)getpid());
	unlink(held);
	setenv("FAKE_CUDA_HELD", held, 1);
	domains_open(1);
	unsetenv("FAKE_CUDA_HELD");
	start_all(ranks, 2, "FERRY_TAKEOVER=off");
	ranks_join(ranks, 2, devices, COUNT);
	ranks_round(ranks, 2, 2, 2);
	int made = open(held, O_CREAT | O_WRONLY, 0600);
	assert_true(made >= 0);
	close(made);
	ranks_tell(ranks, 2, ORDER(.order = RANK_ROUNDS, .number = 3), NULL);
	doze(300);
}

/* Two ranks with a copy under way, whose router's connections have closed. */
static void hang_up(struct rank_process *ranks)
{
	char held[64];
	hold_copies(ranks, held, sizeof held);
	routers_hang_up(0);
	unlink(held);
}

static void abort_and_end(struct rank_process *ranks)
{
	ranks_tell(ranks, 2, ORDER(.order = RANK_ABORT), NULL);
	finish_all(ranks, 2);
	domains_close();
}

/* The connection closes before the process that copies has ended. */
static void streams_wait_until_the_process_of_a_router_that_dies_has_ended(void **state)
{
	(void)state;
	struct rank_process ranks[2];
	hang_up(ranks);
	struct rank_answer answer = rank_tell(&ranks[0], ORDER(.order = RANK_SETTLE, .number = 500));
	assert_false(answer.settled);
	routers_kill(0);
	rank_released(&ranks[0], "router of domain 0 died");
	abort_and_end(ranks);
}

static void streams_wait_no_longer_than_ten_seconds_for_a_process_that_does_not_end(void **state)
{
	(void)state;
	struct rank_process ranks[2];
	hang_up(ranks);
	struct rank_answer answer = rank_tell(&ranks[0], ORDER(.order = RANK_SETTLE, .number = 60000, .wanted = true));
	assert_true(answer.settled);
	assert_true(answer.milliseconds >= 9000);
	assert_int_equal(answer.error, ferryRemoteError);
	/* to rank 1, of another domain, it is dead as soon as its connection closes */
	if (!strstr(answer.message, "has not ended for 10 s") &&
	    !(domains_asked_for() == 2 && strstr(answer.message, "rank 1: the router of domain 0 died")))
		fail_msg("\"%s\"", answer.message);
	routers_kill(0);
	abort_and_end(ranks);
}

static void a_router_of_another_domain_that_dies_ends_the_communicator(void **state)
{
	(void)state;
	struct rank_process ranks[4];
	domains_open(2);
	start_all(ranks, 4, "FERRY_TAKEOVER=off");
	ranks_join(ranks, 4, devices, COUNT);
	ranks_round(ranks, 4, 2, 2);
	ranks_tell(ranks, 3, ORDER(.order = RANK_ROUNDS, .number = 1), NULL);
	doze(20);
	routers_kill(1);
	for (int rank = 0; rank < 3; rank++)
		rank_released(&ranks[rank], "router of domain 1");
	ranks_tell(ranks, 4, ORDER(.order = RANK_ABORT), NULL);
	routers_open(2);
	ranks_join(ranks, 4, devices, COUNT);
	ranks_round(ranks, 4, 2, 2);
	destroy_and_finish(ranks, 4);
	domains_close();
}

/* ---- ends ---- */

/* The driver takes minutes to forget its arena. */
static void a_job_that_takes_long_to_end_keeps_no_other_waiting(void **state)
{
	(void)state;
	struct rank_process ranks[2];
	setenv("FAKE_CUDA_UNREGISTER_MS", "600000", 1);
	domains_open(1);
	unsetenv("FAKE_CUDA_UNREGISTER_MS");
	start_all(ranks, 2, "FERRY_TAKEOVER=off");
	ranks_join(ranks, 2, devices, COUNT);
	ranks_round(ranks, 2, 2, 2);
	ranks_tell(ranks, 2, ORDER(.order = RANK_DESTROY), NULL);
	ranks_join(ranks, 2, devices, COUNT);
	ranks_round(ranks, 2, 2, 2);
	routers_kill_all(); /* they, and the destruction of this communicator, would end with the driver */
	abort_and_end(ranks);
}

static void a_stream_that_comes_to_an_aborted_call_goes_on(void **state)
{
	(void)state;
	struct rank_process ranks[2];
	domains_open(1);
	start_all(ranks, 2, NULL);
	ranks_join(ranks, 2, devices, COUNT);
	ranks_round(ranks, 2, 1, 1);
	ranks_tell(ranks, 2, ORDER(.order = RANK_HOLD), NULL);
	ranks_tell(ranks, 2, ORDER(.order = RANK_ROUNDS, .number = 10), NULL);
	rank_tell(&ranks[0], ORDER(.order = RANK_ABORT));
	rank_tell(&ranks[1], ORDER(.order = RANK_RELEASE));
	rank_released(&ranks[1], "rank 0 aborted");
	rank_tell(&ranks[1], ORDER(.order = RANK_ABORT));
	ranks_join(&ranks[1], 1, devices, COUNT); /* words are used again meanwhile */
	ranks_round(&ranks[1], 1, 3, 3);
	rank_tell(&ranks[0], ORDER(.order = RANK_RELEASE));
	rank_tell(&ranks[1], ORDER(.order = RANK_DESTROY));
	ranks_join(ranks, 2, devices, COUNT); /* its place is closed by that: the stream has come to its end */
	ranks_round(ranks, 2, 3, 3);
	destroy_and_finish(ranks, 2);
	domains_close();
}

/* Its streams go on, and its memory is freed, once the router copies nothing for it any more. */
static void an_abort_waits_until_the_router_has_released_the_rank(void **state)
{
	(void)state;
	struct rank_process ranks[2];
	char held[64];
	hold_copies(ranks, held, sizeof held);
	assert_int_equal(kill(routers_pid(0), SIGSTOP), 0);
	assert_int_equal(waitpid(routers_pid(0), NULL, WUNTRACED), routers_pid(0));
	rank_order(&ranks[0], ORDER(.order = RANK_ABORT));
	doze(800);
	unlink(held);
	assert_int_equal(kill(routers_pid(0), SIGCONT), 0);
	assert_true(rank_heard(&ranks[0]).milliseconds >= 700);
	rank_released(&ranks[1], "rank 0 aborted");
	rank_tell(&ranks[1], ORDER(.order = RANK_ABORT));
	ranks_join(ranks, 2, devices, COUNT);
	ranks_round(ranks, 2, 3, 3);
	destroy_and_finish(ranks, 2);
	domains_close();
}

static void a_graph_outlives_its_communicator_and_holds_nobody_up(void **state)
{
	(void)state;
	struct rank_process ranks[2];
	domains_open(1);
	start_all(ranks, 2, NULL);
	for (int round = 0; round < 3; round++) {
		ranks_join(ranks, 2, devices, COUNT);
		ranks_tell(ranks, 2, ORDER(.order = RANK_CAPTURE, .number = 4), NULL);
		ranks_tell(ranks, 2, ORDER(.order = RANK_REPLAY, .number = 3), NULL);
		ranks_tell(ranks, 2, ORDER(.order = RANK_SETTLE, .number = 60000), NULL);
		ranks_tell(ranks, 2, ORDER(.order = RANK_DESTROY), NULL);
		ranks_tell(ranks, 2, ORDER(.order = RANK_REPLAY, .number = 1), NULL);
		ranks_tell(ranks, 2, ORDER(.order = RANK_FORGET), NULL);
	}
	ranks_join(ranks, 2, devices, COUNT);
	ranks_round(ranks, 2, 3, 3);
	destroy_and_finish(ranks, 2);
	domains_close();
}

#define TEST(name) cmocka_unit_test_teardown(name, no_misuse)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        TEST(ranks_that_see_other_devices_under_the_same_number_are_mapped),
	        TEST(ranks_of_two_processes_may_share_a_device),
	        TEST(others_go_on_within_a_second_when_a_rank_dies_that_they_wait_for),
	        TEST(others_go_on_within_a_second_when_a_rank_dies_in_the_middle_of_calls),
	        TEST(a_replay_while_a_rank_dies_ends_within_a_second),
	        TEST(streams_go_on_when_their_router_dies_and_no_other_may_take_its_place),
	        TEST(ranks_whose_data_routers_move_go_on_with_the_next_one),
	        TEST(their_messages_do),
	        TEST(their_graphs_do),
	        TEST(a_graph_whose_buffers_were_freed_keeps_no_router_from_its_place),
	        TEST(streams_wait_until_the_process_of_a_router_that_dies_has_ended),
	        TEST(streams_wait_no_longer_than_ten_seconds_for_a_process_that_does_not_end),
	        TEST(a_router_of_another_domain_that_dies_ends_the_communicator),
	        TEST(a_job_that_takes_long_to_end_keeps_no_other_waiting),
	        TEST(a_stream_that_comes_to_an_aborted_call_goes_on),
	        TEST(an_abort_waits_until_the_router_has_released_the_rank),
	        TEST(a_graph_outlives_its_communicator_and_holds_nobody_up),
	};
	if (argc == 2)
		return rank_process_main(atoi(argv[1]));
	fake_is_the_driver();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
