/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Short calls where routers and ranks die, stand still or do not come. Ranks and routers are processes; the devices are
 * host devices.
 */
#include "tests/crew.h"
#include "tests/fake_cuda/routers.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT 1000u       /* of a short call */
#define LONG (4u << 20)   /* of one that is not */
#define ORDER(...) ((struct crew_order){__VA_ARGS__})

static struct crew crew;

static void begin(int ranks, const char *action)
{
	setenv("FERRY_DOMAINS", "1", 1);
	setenv("FERRY_ON_TIMEOUT", action, 1);
	routers_open(1);
	crew_start(&crew, ranks);
	crew_join(&crew);
}

static int finish(void **state)
{
	(void)state;
	crew_end(&crew);
	routers_close();
	return 0;
}

static void short_calls_go_on_where_the_router_stands_still_or_is_dead(void **state)
{
	(void)state;
	begin(3, "report");
	crew_sums(&crew, LONG, 1);
	kill(routers_pid(0), SIGSTOP);
	assert_int_equal(waitpid(routers_pid(0), NULL, WUNTRACED), routers_pid(0));
	crew_sums(&crew, COUNT, 500);
	kill(routers_pid(0), SIGCONT);
	crew_sums(&crew, LONG, 2);
	routers_kill(0);
	crew_sums(&crew, COUNT, 500);
	routers_open(1);
	crew_sums(&crew, COUNT, 3);
	crew_sums(&crew, LONG, 2);
}

static void ended(struct crew_answer said, const char *words)
{
	if (said.result != ferryRemoteError || !strstr(said.message, words))
		fail_msg("%s: \"%s\"", ferryGetErrorString(said.result), said.message);
}

static void a_rank_that_does_not_come_ends_the_call_by_name(void **state)
{
	(void)state;
	begin(3, "fail");
	crew_sums(&crew, COUNT, 1);
	for (int rank = 0; rank < 3; rank += 2)
		crew_order(&crew, rank, ORDER(.kind = CREW_CALL, .count = COUNT, .calls = 1));
	for (int rank = 0; rank < 3; rank += 2)
		ended(crew_heard(&crew, rank), " has waited 1 s for rank 1 to reach call 2 (allreduce)");
	crew_order(&crew, 1, ORDER(.kind = CREW_ERROR));
	ended(crew_heard(&crew, 1), "for rank 1 to reach call 2 (allreduce)");
}

static void a_rank_that_dies_ends_the_call_of_the_others(void **state)
{
	(void)state;
	begin(3, "report");
	crew_sums(&crew, COUNT, 5);
	for (int rank = 0; rank < 2; rank++)
		crew_order(&crew, rank, ORDER(.kind = CREW_CALL, .count = COUNT, .calls = 1));
	crew_kill(&crew, 2);
	for (int rank = 0; rank < 2; rank++)
		ended(crew_heard(&crew, rank), "rank 2 of 3 died");
}

/* The member exits without a word once it has its result, which others may still be about to take. */
static void a_call_that_a_rank_was_in_ends_well_for_the_others_when_it_dies(void **state)
{
	(void)state;
	for (int turn = 0; turn < 10; turn++) {
		begin(3, "report");
		crew_sums(&crew, COUNT, 1 + turn);
		for (int rank = 0; rank < 3; rank++)
			crew_order(&crew, rank,
			           ORDER(.kind = CREW_CALL, .count = COUNT, .calls = 1, .last = rank == 2));
		for (int rank = 0; rank < 3; rank++) {
			struct crew_answer said = crew_heard(&crew, rank);
			if (said.result || said.wrong || said.sum != 7)
				fail_msg("rank %d: \"%s\", sum %#x", rank, said.message, said.sum);
		}
		assert_int_equal(waitpid(crew.pids[2], NULL, 0), crew.pids[2]);
		close(crew.channels[2]);
		crew.pids[2] = 0;
		for (int rank = 0; rank < 2; rank++)
			crew_order(&crew, rank, ORDER(.kind = CREW_CALL, .count = COUNT, .calls = 1));
		for (int rank = 0; rank < 2; rank++)
			ended(crew_heard(&crew, rank), "rank 2 of 3 died");
		crew_end(&crew);
		routers_close();
	}
}

#define TEST(name) cmocka_unit_test_teardown(name, finish)

int main(void)
{
	const struct CMUnitTest tests[] = {
	        TEST(short_calls_go_on_where_the_router_stands_still_or_is_dead),
	        TEST(a_rank_that_does_not_come_ends_the_call_by_name),
	        TEST(a_rank_that_dies_ends_the_call_of_the_others),
	        cmocka_unit_test(a_call_that_a_rank_was_in_ends_well_for_the_others_when_it_dies),
	};
	routers_use();
	setenv("FERRY_DEVICE", "host", 1);
	setenv("FERRY_TIMEOUT", "1", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
