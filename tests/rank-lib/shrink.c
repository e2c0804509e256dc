/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ferryCommShrink: ranks that are left, after others have died, make a communicator by themselves and go on. Ranks and
 * routers are processes; the devices are host devices.
 */
#include "tests/crew.h"
#include "tests/fake_cuda/routers.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define COUNT (256u << 10)
#define ORDER(...) ((struct crew_order){__VA_ARGS__})

static struct crew crew, beside;

static void doze_us(long us)
{
	nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000}, NULL);
}

static void begin(struct crew *made, int ranks, int domains)
{
	char number[8];
	snprintf(number, sizeof number, "%d", domains);
	setenv("FERRY_DOMAINS", number, 1);
	if (domains)
		routers_open(domains);
	crew_start(made, ranks);
	crew_join(made);
}

static int finish(void **state)
{
	(void)state;
	crew_end(&crew);
	crew_end(&beside);
	routers_close();
	return 0;
}

static int left(void)
{
	int count = 0;
	for (int member = 0; member < crew.size; member++)
		count += crew.pids[member] != 0;
	return count;
}

/* All that are there get the same result and, if that is success, a communicator of `ranks`. */
static ferryResult_t shrink(uint64_t excluded, int flags, int ranks)
{
	struct crew_answer answers[CREW_MOST];
	int first = -1, expected = 0;
	crew_tell(&crew, ORDER(.kind = CREW_SHRINK, .excluded = excluded, .flags = flags), answers);
	for (int member = 0; member < crew.size; member++) {
		if (!crew.pids[member])
			continue;
		if (first < 0)
			first = member;
		if (answers[member].result != answers[first].result ||
		    (!answers[member].result && answers[member].nranks != ranks) ||
		    (!answers[member].result && answers[member].rank != expected++))
			fail_msg("member %d: %s \"%s\", rank %d of %d, expected %d ranks; member %d: %s", member,
			         ferryGetErrorString(answers[member].result), answers[member].message,
			         answers[member].rank, answers[member].nranks, ranks, first,
			         ferryGetErrorString(answers[first].result));
	}
	return answers[first].result;
}

/* A rank dies in the middle of calls: the others' calls end, and name it. */
static void kill_in_calls(int member)
{
	struct crew_answer said;
	char words[64];
	for (int other = 0; other < crew.size; other++)
		if (crew.pids[other])
			crew_order(&crew, other, ORDER(.kind = CREW_CALL, .count = COUNT, .calls = 100000));
	doze_us(50000);
	int rank = 0;
	for (int other = 0; other < member; other++)
		rank += crew.pids[other] != 0;
	snprintf(words, sizeof words, "rank %d of %d died", rank, left());
	crew_kill(&crew, member);
	for (int other = 0; other < crew.size; other++) {
		if (!crew.pids[other])
			continue;
		said = crew_heard(&crew, other);
		if (said.result != ferryRemoteError || !strstr(said.message, words) || said.wrong)
			fail_msg("member %d: %s \"%s\", expected \"%s\"", other,
			         ferryGetErrorString(said.result), said.message, words);
	}
}

static void survivors_go_on_round_after_round_and_another_job_notices_nothing(void **state)
{
	static const int order[] = {2, 0, 4, 1};
	(void)state;
	begin(&crew, 5, 2);
	begin(&beside, 2, 2);
	crew_sums(&crew, COUNT, 2);
	for (int i = 0; i < 4; i++) {
		for (int member = 0; member < 2; member++)
			crew_order(&beside, member, ORDER(.kind = CREW_CALL, .count = COUNT, .calls = 100));
		kill_in_calls(order[i]);
		assert_int_equal(shrink(0, FERRY_SHRINK_ABORT, 4 - i), ferrySuccess);
		crew_sums(&crew, COUNT, 3);
		crew_sums(&crew, 1, 3);
		for (int member = 0; member < 2; member++) {
			struct crew_answer said = crew_heard(&beside, member);
			assert_true(!said.result && !said.wrong && said.sum == 3);
		}
	}
	crew_sums(&beside, COUNT, 2);
}

/* At any instant of it: all have the communicator, and it may fail then, or none, and they try again. */
static void a_rank_that_dies_while_it_is_shrunk_is_an_error_for_all_or_for_none(void **state)
{
	const char *times = getenv("FERRY_TEST_TIMES"); /* of `make soak` */
	int given_up = 0, made = 0, trials = 50 * (times ? atoi(times) : 1);
	(void)state;
	srand48(17);
	for (int trial = 0; trial < trials; trial++) {
		struct crew_answer answers[CREW_MOST];
		begin(&crew, 4, 1);
		crew_kill(&crew, 1);
		for (int member = 0; member < 4; member += member ? 1 : 2)
			crew_order(&crew, member, ORDER(.kind = CREW_SHRINK, .flags = FERRY_SHRINK_ABORT));
		doze_us((long)(drand48() * 4000));
		crew_kill(&crew, 3);
		for (int member = 0; member < 4; member += 2)
			answers[member] = crew_heard(&crew, member);
		assert_int_equal(answers[0].result, answers[2].result);
		if (answers[0].result) {
			given_up++;
			assert_int_equal(answers[0].result, ferryRemoteError);
		} else {
			made++;
			assert_int_equal(answers[0].nranks, answers[2].nranks);
		}
		if (answers[0].result || answers[0].nranks == 3)
			assert_int_equal(shrink(0, FERRY_SHRINK_ABORT, 2), ferrySuccess);
		crew_sums(&crew, COUNT, 1);
		crew_end(&crew);
	}
	print_message("%d made, %d given up\n", made, given_up);
}

static void a_rank_that_stands_still_is_left_out_by_name(void **state)
{
	(void)state;
	begin(&crew, 3, 1);
	crew_sums(&crew, COUNT, 1);
	crew_stop(&crew, 0);
	pid_t stopped = crew.pids[0];
	crew.pids[0] = 0; /* it gets no orders */
	assert_int_equal(shrink(1, FERRY_SHRINK_ABORT, 2), ferrySuccess);
	crew_sums(&crew, COUNT, 2);
	crew.pids[0] = stopped;
	crew_continue(&crew, 0);
	crew_order(&crew, 0, ORDER(.kind = CREW_CALL, .count = COUNT, .calls = 1));
	struct crew_answer said = crew_heard(&crew, 0);
	assert_int_equal(said.result, ferryRemoteError);
	assert_non_null(strstr(said.message, "shrinks the communicator"));
}

static void a_communicator_that_is_well_is_shrunk_without_ending(void **state)
{
	struct crew_answer said;
	(void)state;
	begin(&crew, 4, 2);
	crew_order(&crew, 1, ORDER(.kind = CREW_CALL, .count = COUNT, .calls = 1)); /* before the others shrink it */
	for (int member = 0; member < 4; member++)
		if (member != 1)
			crew_order(&crew, member, ORDER(.kind = CREW_CALL, .count = COUNT, .calls = 1));
	for (int member = 0; member < 4; member++) {
		said = crew_heard(&crew, member);
		assert_true(!said.result && !said.wrong && said.sum == 15);
	}
	for (int member = 0; member < 4; member++)
		if (member != 1)
			crew_order(&crew, member, ORDER(.kind = CREW_SHRINK, .excluded = 2));
	for (int member = 0; member < 4; member++)
		if (member != 1) {
			said = crew_heard(&crew, member);
			assert_int_equal(said.result, ferrySuccess);
			assert_int_equal(said.nranks, 3);
			crew_order(&crew, member, ORDER(.kind = CREW_CALL, .count = COUNT, .calls = 3));
		}
	for (int member = 0; member < 4; member++)
		if (member != 1) {
			said = crew_heard(&crew, member);
			assert_true(!said.result && !said.wrong && said.sum == 13);
		}
	crew_order(&crew, 1, ORDER(.kind = CREW_DESTROY));
	said = crew_heard(&crew, 1);
	assert_int_equal(said.result, ferrySuccess);
}

static void ranks_that_exclude_others_are_told(void **state)
{
	struct crew_answer said;
	(void)state;
	begin(&crew, 4, 1);
	crew_order(&crew, 0, ORDER(.kind = CREW_SHRINK, .excluded = 8));
	crew_order(&crew, 1, ORDER(.kind = CREW_SHRINK, .excluded = 8));
	crew_order(&crew, 2, ORDER(.kind = CREW_SHRINK));
	crew_order(&crew, 3, ORDER(.kind = CREW_SHRINK));
	int usage = 0;
	for (int member = 0; member < 4; member++) {
		said = crew_heard(&crew, member);
		usage += said.result == ferryInvalidUsage && strstr(said.message, "and rank") != NULL;
		assert_true(said.result == ferryInvalidUsage || said.result == ferryRemoteError);
	}
	assert_true(usage >= 1);
	assert_int_equal(shrink(0, FERRY_SHRINK_DEFAULT, 4), ferrySuccess);
	crew_sums(&crew, COUNT, 1);
}

static void without_a_death_and_without_abort_a_failed_communicator_is_refused(void **state)
{
	struct crew_answer said;
	(void)state;
	begin(&crew, 3, 1);
	crew_kill(&crew, 2);
	for (int member = 0; member < 2; member++) {
		crew_order(&crew, member, ORDER(.kind = CREW_ERROR));
		said = crew_heard(&crew, member);
		crew_order(&crew, member, ORDER(.kind = CREW_SHRINK));
		said = crew_heard(&crew, member);
		assert_int_equal(said.result, ferryRemoteError);
		assert_non_null(strstr(said.message, "FERRY_SHRINK_ABORT: rank 2 of 3 died"));
	}
	assert_int_equal(shrink(0, FERRY_SHRINK_ABORT, 2), ferrySuccess);
	crew_sums(&crew, COUNT, 1);
}

static void a_router_that_has_died_with_a_rank_is_replaced(void **state)
{
	(void)state;
	begin(&crew, 4, 2);
	crew_sums(&crew, COUNT, 1);
	routers_kill(1);
	crew_kill(&crew, 2);
	routers_open(2);
	assert_int_equal(shrink(0, FERRY_SHRINK_ABORT, 3), ferrySuccess);
	crew_sums(&crew, COUNT, 2);
}

/* Rank 0 comes first, and so hosts. */
static void who_hosted_the_routers_is_done_without(void **state)
{
	(void)state;
	setenv("FERRY_ROUTER", "embedded", 1);
	setenv("FERRY_DOMAINS", "2", 1);
	for (int member = 0; member < 4; member++) { /* one of them hosts the routers */
		crew_start(&crew, 4);
		crew_join(&crew);
		crew_sums(&crew, COUNT, 1);
		crew_kill(&crew, member);
		assert_int_equal(shrink(0, FERRY_SHRINK_ABORT, 3), ferrySuccess);
		crew_sums(&crew, COUNT, 2);
		crew_end(&crew);
	}
	setenv("FERRY_ROUTER", "required", 1);
}

#define TEST(name) cmocka_unit_test_teardown(name, finish)

int main(void)
{
	const struct CMUnitTest tests[] = {
	        TEST(survivors_go_on_round_after_round_and_another_job_notices_nothing),
	        TEST(a_rank_that_dies_while_it_is_shrunk_is_an_error_for_all_or_for_none),
	        TEST(a_rank_that_stands_still_is_left_out_by_name),
	        TEST(a_communicator_that_is_well_is_shrunk_without_ending),
	        TEST(ranks_that_exclude_others_are_told),
	        TEST(without_a_death_and_without_abort_a_failed_communicator_is_refused),
	        TEST(a_router_that_has_died_with_a_rank_is_replaced),
	        TEST(who_hosted_the_routers_is_done_without),
	};
	routers_use();
	setenv("FERRY_DEVICE", "host", 1);
	setenv("FERRY_LOG", "error", 1); /* routers warn of every job that these tests end */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
