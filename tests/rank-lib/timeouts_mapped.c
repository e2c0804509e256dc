/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks whose router moves their data do when they wait for a rank or a router that stands still
 * (tests/rank-lib/timeouts.c has those with lanes of their own). Over the double of the driver.
 */
#include "tests/fake_cuda/rank_process.h"
#include "tests/fake_cuda/routers.h"
#include "tests/kept_log.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define COUNT 30011
#define FAILS "FERRY_TIMEOUT=1 FERRY_ON_TIMEOUT=fail"

static const int devices[] = {0, 1};

#define ORDER(...) ((struct rank_ordered){__VA_ARGS__})

static void begin(struct rank_process *ranks, const char *variables)
{
	domains_open(1);
	for (int rank = 0; rank < 2; rank++)
		ranks[rank] = rank_start(variables);
	ranks_join(ranks, 2, devices, COUNT);
	ranks_round(ranks, 2, 2, 2);
}

/* A new communicator is made. */
static void again(struct rank_process *ranks)
{
	ranks_join(ranks, 2, devices, COUNT);
	ranks_round(ranks, 2, 2, 2);
	ranks_tell(ranks, 2, ORDER(.order = RANK_DESTROY), NULL);
	for (int rank = 0; rank < 2; rank++)
		rank_finish(&ranks[rank]);
	domains_close();
}

static void end(struct rank_process *ranks)
{
	ranks_tell(ranks, 2, ORDER(.order = RANK_ABORT), NULL);
	again(ranks);
}

static void stop_router(void)
{
	assert_int_equal(kill(routers_pid(0), SIGSTOP), 0);
	assert_int_equal(waitpid(routers_pid(0), NULL, WUNTRACED), routers_pid(0));
}

/* The stream goes on , and the communicator says why. */
static void ended(struct rank_answer answer, const char *flags)
{
	if (!answer.settled || answer.error != ferryRemoteError || !strstr(answer.message, flags))
		fail_msg("settled %d after %d ms, %s: \"%s\", expected \"%s\"", answer.settled, answer.milliseconds,
		         ferryGetErrorString(answer.error), answer.message, flags);
}

static void a_rank_that_does_not_call_ends_the_streams_that_wait_for_it(void **state)
{
	struct rank_process ranks[2];
	(void)state;
	begin(ranks, FAILS);
	rank_tell(&ranks[0], ORDER(.order = RANK_ROUNDS, .number = 3));
	ended(rank_tell(&ranks[0], ORDER(.order = RANK_SETTLE, .number = 60000, .wanted = true)),
	      "FERRY_TIMEOUT: rank 0 has waited 1 s for rank 1 to reach call 3 (all");
	ended(rank_tell(&ranks[1], ORDER(.order = RANK_SETTLE, .number = 60000, .wanted = true)),
	      "FERRY_TIMEOUT: rank 0 has waited 1 s for rank 1 to reach call 3 (all");
	end(ranks);
}

/*
 * With calls that it has not taken, though the ranks' streams have come to them. Nothing of it is under way, so nobody
 * waits for its end.
 */
static void a_router_that_is_stopped_at_rest_ends_the_streams_that_wait_for_it(void **state)
{
	struct rank_process ranks[2];
	char flags[80];
	(void)state;
	begin(ranks, FAILS);
	ranks_tell(ranks, 2, ORDER(.order = RANK_REST), NULL);
	stop_router();
	ranks_tell(ranks, 2, ORDER(.order = RANK_ROUNDS, .number = 2), NULL);
	for (int rank = 0; rank < 2; rank++)
		rank_order(&ranks[rank], ORDER(.order = RANK_SETTLE, .number = 60000, .wanted = true));
	snprintf(flags, sizeof flags, " s for the router of domain 0 (process %d) to take its calls",
	         (int)routers_pid(0));
	for (int rank = 0; rank < 2; rank++)
		ended(rank_heard(&ranks[rank]), flags);
	kill(routers_pid(0), SIGCONT);
	end(ranks);
}

/* Rank 0's stream is at a call that the router has begun; the other rank, which does not make it, is not blamed. */
static void a_router_that_is_stopped_in_a_call_is_named_with_the_call(void **state)
{
	struct rank_process ranks[2];
	char flags[120];
	(void)state;
	begin(ranks, "FERRY_TIMEOUT=2 FERRY_ON_TIMEOUT=fail");
	rank_tell(&ranks[0], ORDER(.order = RANK_ROUNDS, .number = 1));
	rank_tell(&ranks[0], ORDER(.order = RANK_REST, .wanted = true));
	stop_router();
	snprintf(flags, sizeof flags, " s for the router of domain 0 (process %d) to go on with call 3 (all",
	         (int)routers_pid(0));
	ended(rank_tell(&ranks[0], ORDER(.order = RANK_SETTLE, .number = 60000, .wanted = true)), flags);
	kill(routers_pid(0), SIGCONT);
	end(ranks);
}

static void an_abort_beside_a_router_that_is_stopped_at_rest_waits_for_nothing(void **state)
{
	struct rank_process ranks[2];
	(void)state;
	log_keep();
	begin(ranks, "FERRY_ATTACH_TIMEOUT=86400"); /* an abort that asks the router waits for a day */
	log_release();
	rank_tell(&ranks[0], ORDER(.order = RANK_ROUNDS, .number = 1));
	rank_tell(&ranks[0], ORDER(.order = RANK_REST, .wanted = true));
	rank_tell(&ranks[1], ORDER(.order = RANK_REST));
	stop_router();
	for (int rank = 0; rank < 2; rank++)
		rank_tell(&ranks[rank], ORDER(.order = RANK_ABORT));
	if (log_has(GAVE_UP)) /* after ten seconds */
		fail_msg("%s", log_text());
	kill(routers_pid(0), SIGCONT);
	again(ranks);
}

#define TEST(name) cmocka_unit_test_teardown(name, no_misuse)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        TEST(a_rank_that_does_not_call_ends_the_streams_that_wait_for_it),
	        TEST(a_router_that_is_stopped_at_rest_ends_the_streams_that_wait_for_it),
	        TEST(a_router_that_is_stopped_in_a_call_is_named_with_the_call),
	        TEST(an_abort_beside_a_router_that_is_stopped_at_rest_waits_for_nothing),
	};
	if (argc == 2)
		return rank_process_main(atoi(argv[1]));
	fake_is_the_driver();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
