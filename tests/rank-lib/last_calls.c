/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call whose inputs are all in completes for the others, however a rank ends: behind its last call, or in the middle
 * of it; and what comes after names the rank that died. Ranks and routers are processes, on host devices. A member that
 * is slow takes so long to receive that the others have ended, or have been killed, in the meantime.
 */
#include "tests/crew.h"
#include "tests/fake_cuda/routers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT  (16u << 10) /* one slice: all input is in before anything is received */
#define SIZE   4
#define ALL    ((1u << SIZE) - 1)
#define ROUNDS 5
#define ORDER(...) ((struct crew_order){__VA_ARGS__})

static struct crew crew;

/* slow: bit m: member m. */
static void begin(int domains, unsigned slow)
{
	struct crew_order order = {.kind = CREW_JOIN, .nranks = SIZE};
	char number[8];
	snprintf(number, sizeof number, "%d", domains);
	setenv("FERRY_DOMAINS", number, 1);
	setenv("FERRY_STAGING", "8M", 1);
	routers_open(domains);
	crew_start(&crew, SIZE);
	assert_int_equal(ferryGetUniqueId(&order.id), ferrySuccess);
	for (order.rank = 0; order.rank < SIZE; order.rank++) {
		order.slow = slow >> order.rank & 1;
		crew_order(&crew, order.rank, order);
	}
	for (int member = 0; member < SIZE; member++)
		assert_int_equal(crew_heard(&crew, member).result, ferrySuccess);
}

static int finish(void **state)
{
	(void)state;
	crew_end(&crew);
	routers_close();
	return 0;
}

static void is_well(int member, uint32_t sum)
{
	struct crew_answer said = crew_heard(&crew, member);
	if (said.result || said.wrong || said.sum != sum)
		fail_msg("member %d: %s \"%s\", sum %#x, expected %#x, %zu elements differ", member,
		         ferryGetErrorString(said.result), said.message, said.sum, sum, said.wrong);
}

/* The next call of the others ends, and names the rank. */
static void names_who_died(int member, int died)
{
	struct crew_answer said;
	char words[32];
	snprintf(words, sizeof words, "rank %d of %d died", died, SIZE);
	crew_order(&crew, member, ORDER(.kind = CREW_CALL, .count = COUNT, .calls = 1));
	said = crew_heard(&crew, member);
	if (said.result != ferryRemoteError || !strstr(said.message, words))
		fail_msg("member %d: %s \"%s\", expected \"%s\"", member, ferryGetErrorString(said.result),
		         said.message, words);
}

/* It has ended by itself. */
static void forget(int member)
{
	assert_int_equal(waitpid(crew.pids[member], NULL, 0), crew.pids[member]);
	close(crew.channels[member]);
	crew.pids[member] = 0;
}

static void all_end_behind_their_last_call(int domains)
{
	for (int round = 0; round < ROUNDS; round++) {
		begin(domains, 1u << (SIZE - 1) | 1u << round % SIZE);
		crew_sums(&crew, 1000, 2);
		for (int member = 0; member < SIZE; member++)
			crew_order(&crew, member, ORDER(.kind = CREW_CALL, .count = COUNT, .calls = 1, .last = true));
		for (int member = 0; member < SIZE; member++)
			is_well(member, ALL);
		for (int member = 0; member < SIZE; member++)
			forget(member);
		routers_close();
	}
}

static void ranks_that_end_behind_their_last_call_fail_no_other(void **state)
{
	(void)state;
	all_end_behind_their_last_call(1);
}

static void ranks_of_two_domains_that_end_behind_their_last_call_fail_no_other(void **state)
{
	(void)state;
	all_end_behind_their_last_call(2);
}

static void a_rank_is_killed_when_its_input_is_in(int domains)
{
	begin(domains, 1u << 2 | 1u << 3);
	crew_sums(&crew, 1000, 2);
	for (int member = 0; member < SIZE; member++)
		crew_order(&crew, member, ORDER(.kind = CREW_CALL, .count = COUNT, .calls = 1));
	for (int member = 0; member < 2; member++)
		is_well(member, ALL);
	crew_kill(&crew, 2); /* which still receives, as 3 does */
	is_well(3, ALL);
	for (int member = 0; member < SIZE; member++)
		if (member != 2)
			names_who_died(member, 2);
}

static void a_rank_that_is_killed_when_its_input_is_in_fails_no_call_but_its_own(void **state)
{
	(void)state;
	a_rank_is_killed_when_its_input_is_in(1);
}

static void the_same_where_its_router_is_another(void **state)
{
	(void)state;
	a_rank_is_killed_when_its_input_is_in(2);
}

static void a_message_that_was_sent_arrives_when_its_sender_has_ended(void **state)
{
	(void)state;
	begin(1, 1u << 1);
	crew_order(&crew, 1, ORDER(.kind = CREW_RECV, .count = 4 << 10, .rank = 0));
	crew_order(&crew, 0, ORDER(.kind = CREW_SEND, .count = 4 << 10, .rank = 1, .last = true));
	assert_int_equal(crew_heard(&crew, 0).result, ferrySuccess);
	forget(0);
	is_well(1, 1);
	names_who_died(1, 0);
}

static void a_rank_that_dies_between_calls_is_told_at_once(void **state)
{
	struct crew_answer said;
	(void)state;
	begin(2, 0);
	crew_sums(&crew, COUNT, 2);
	crew_kill(&crew, 1);
	crew_order(&crew, 0, ORDER(.kind = CREW_ERROR));
	said = crew_heard(&crew, 0);
	assert_int_equal(said.result, ferryRemoteError);
	assert_non_null(strstr(said.message, "rank 1 of 4 died"));
	names_who_died(2, 1);
}

#define TEST(name) cmocka_unit_test_teardown(name, finish)

int main(void)
{
	const struct CMUnitTest tests[] = {
	        TEST(ranks_that_end_behind_their_last_call_fail_no_other),
	        TEST(ranks_of_two_domains_that_end_behind_their_last_call_fail_no_other),
	        TEST(a_rank_that_is_killed_when_its_input_is_in_fails_no_call_but_its_own),
	        TEST(the_same_where_its_router_is_another),
	        TEST(a_message_that_was_sent_arrives_when_its_sender_has_ended),
	        TEST(a_rank_that_dies_between_calls_is_told_at_once),
	};
	routers_use();
	setenv("FERRY_DEVICE", "host", 1);
	setenv("FERRY_SHORT", "0", 1); /* some ranks have a link of little speed, and no others */
	setenv("FERRY_LOG", "error", 1); /* routers warn of every job that these tests end */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
