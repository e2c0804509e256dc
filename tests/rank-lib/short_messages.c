/* SPDX-License-Identifier: Apache-2.0 */
/* Short messages: sends and receives that the callers run themselves, beside those of lanes. */
#include "tests/short_pair.h"

#include <stdint.h>
#include <string.h>
#include <time.h>

#define SHORT (1u << 20) /* bytes: the longest short message, longer than the slots between two ranks */

static char *input(const struct rank *rank)
{
	return (char *)rank->input;
}

static char *output(const struct rank *rank)
{
	return (char *)rank->output;
}

static bool sends(struct rank *rank, int comm, const void *from, size_t bytes)
{
	return went(rank, ferrySend(from, bytes, ferryInt8, !rank->rank, rank->comms[comm], rank->streams[comm]));
}

static bool receives(struct rank *rank, int comm, void *to, size_t bytes)
{
	return went(rank, ferryRecv(to, bytes, ferryInt8, !rank->rank, rank->comms[comm], rank->streams[comm]));
}

static void fill(char *at, size_t bytes, uint32_t seed)
{
	for (size_t i = 0; i < bytes; i++)
		at[i] = (char)(seed * 31 + i * 7 + (i >> 8));
}

static bool holds(struct rank *rank, const char *at, size_t bytes, uint32_t seed)
{
	for (size_t i = 0; i < bytes; i++)
		if (at[i] != (char)(seed * 31 + i * 7 + (i >> 8))) {
			snprintf(rank->wrong, sizeof rank->wrong, "message %u of %zu bytes: byte %zu is %d", seed,
			         bytes, i, at[i]);
			return false;
		}
	return true;
}

/* ---- what comes ---- */

static const size_t lengths[] = {8,     0,      24,    25,         1000,       4096, 1,       70000,
                                 65536, 300000, SHORT, SHORT + 1, 2 * SHORT, 63,   1 << 17, 5};
#define LENGTHS (sizeof lengths / sizeof *lengths)

/* Back and forth, and several the same way in a row; some are too long to be short. */
static void *back_and_forth(void *argument)
{
	struct rank *rank = argument;
	for (uint32_t turn = 0; turn < 6 * LENGTHS; turn++) {
		size_t bytes = lengths[turn * 5 % LENGTHS];
		bool sender = (int)(turn / 3 % 2) == rank->rank;
		fill(input(rank), sender ? bytes : 0, turn);
		memset(output(rank), 0x55, 2 * SHORT + 1);
		if (!(sender ? sends(rank, 0, input(rank), bytes) : receives(rank, 0, output(rank), bytes)))
			break;
		if (!waits(rank, 0) || (!sender && !holds(rank, output(rank), bytes, turn)))
			break;
		if (!sender && output(rank)[bytes] != 0x55)
			went(rank, ferryInternalError);
	}
	return NULL;
}

static void messages_of_all_lengths_come_whole_and_in_order(void **state)
{
	(void)state;
	pair_open("1M");
	pair_run(back_and_forth);
	pair_close();
}

static void *both_ways(void *argument)
{
	struct rank *rank = argument;
	for (uint32_t turn = 0; turn < 20; turn++) {
		uint32_t each = 1 + turn % 3; /* more than the slots hold */
		size_t bytes = lengths[turn % LENGTHS] < SHORT ? lengths[turn % LENGTHS] : SHORT;
		fill(input(rank), bytes, turn + (uint32_t)rank->rank);
		went(rank, ferryGroupStart());
		for (uint32_t i = 0; i < each; i++)
			if (!sends(rank, 0, input(rank), bytes) ||
			    !receives(rank, 0, output(rank) + i * bytes, bytes))
				break;
		if (!went(rank, ferryGroupEnd()) || !waits(rank, 0))
			break;
		for (uint32_t i = 0; i < each; i++)
			holds(rank, output(rank) + i * bytes, bytes, turn + (uint32_t)!rank->rank);
	}
	return NULL;
}

static void groups_that_send_and_receive_end_whatever_their_length(void **state)
{
	(void)state;
	pair_open("1M");
	pair_run(both_ways);
	pair_close();
}

static void a_rank_sends_to_itself(void **state)
{
	struct ranks ranks;
	char *from = malloc(SHORT), *to = malloc(SHORT);
	struct rank none = {.rank = 0};
	(void)state;
	open_with(&ranks, 2, 1, "1M");
	for (uint32_t i = 0; i < 3; i++) {
		size_t bytes = i ? SHORT >> (i - 1) * 4 : 8;
		fill(from, bytes, i);
		OK(ferryGroupStart());
		OK(ferrySend(from, bytes, ferryInt8, 0, ranks.comms[0], NULL));
		OK(ferryRecv(to, bytes, ferryInt8, 0, ranks.comms[0], NULL));
		OK(ferryGroupEnd());
		OK(ferryStreamSynchronize(NULL));
		assert_true(holds(&none, to, bytes, i));
	}
	close_ranks(&ranks);
	free(from);
	free(to);
}

/* ---- who waits for whom ---- */

/* Four messages are there before rank 1 asks for the first one. */
static void *ahead(void *argument)
{
	struct rank *rank = argument;
	for (uint32_t i = 0; !rank->rank && i < 4; i++) {
		fill(input(rank), 100, i);
		if (!sends(rank, 0, input(rank), 100) || !waits(rank, 0))
			break;
	}
	pthread_barrier_wait(rank->both);
	for (uint32_t i = 0; rank->rank && i < 4; i++)
		if (!receives(rank, 0, output(rank), 100) || !waits(rank, 0) || !holds(rank, output(rank), 100, i))
			break;
	return NULL;
}

static void sends_end_before_the_receiver_comes(void **state)
{
	(void)state;
	pair_open("1M");
	pair_run(ahead);
	pair_close();
}

/* One end waits for the call; the other one's thread does something else until that has ended. */
static void left_by(struct rank *rank, int leaver)
{
	bool sender = !rank->rank;
	fill(input(rank), SHORT, 7);
	if (!(sender ? sends(rank, 0, input(rank), SHORT) : receives(rank, 0, output(rank), SHORT)))
		return;
	if (rank->rank != leaver)
		waits(rank, 0);
	pthread_barrier_wait(rank->both);
	waits(rank, 0);
	if (!sender)
		holds(rank, output(rank), SHORT, 7);
	pthread_barrier_wait(rank->both);
}

static void *left_by_one(void *argument)
{
	for (int turn = 0; turn < 10; turn++)
		left_by(argument, turn % 2);
	return NULL;
}

static void messages_that_a_rank_does_not_wait_for_keep_no_other_waiting(void **state)
{
	(void)state;
	pair_open("1M");
	pair_run(left_by_one);
	pair_close();
}

/* Longer than the slots, so that each communicator needs both ranks. */
static void *in_opposite_orders(void *argument)
{
	struct rank *rank = argument;
	for (int turn = 0; turn < 40; turn++) {
		int first = (rank->rank + turn) % 2;
		for (int comm = 0; comm < 2; comm++)
			if (!(rank->rank ? receives(rank, comm, output(rank) + comm * SHORT, SHORT)
			                 : sends(rank, comm, input(rank), SHORT)))
				return NULL;
		if (!waits(rank, first) || !waits(rank, !first))
			break;
	}
	return NULL;
}

static void two_communicators_end_whose_messages_ranks_wait_for_in_opposite_orders(void **state)
{
	(void)state;
	pair_open("1M");
	pair_run(in_opposite_orders);
	pair_close();
}

static void wait_a_little(void *argument)
{
	(void)argument;
	nanosleep(&(struct timespec){0, 100000}, NULL);
}

/* Messages and sums, in streams that are idle and in such that are not: callers and lanes have them in turns. */
static void *mixed(void *argument)
{
	struct rank *rank = argument;
	uint32_t random = 1;
	for (uint32_t turn = 0; turn < 150; turn++) {
		random = random * 1664525 + 1013904223;
		size_t bytes = lengths[(random >> 10) % LENGTHS];
		float value = 1, sum = 0;
		int comm = random >> 16 & 1;
		bool sender = (int)(random >> 18 & 1) == rank->rank;
		if ((random >> 20) % 4 == (uint32_t)rank->rank)
			went(rank, ferryLaunchHostFunc(rank->streams[comm], wait_a_little, NULL));
		fill(input(rank), sender ? bytes : 0, turn);
		if (!(sender ? sends(rank, comm, input(rank), bytes) : receives(rank, comm, output(rank), bytes)))
			break;
		if (!went(rank, ferryAllReduce(&value, &sum, 1, ferryFloat32, ferrySum, rank->comms[random >> 24 & 1],
		                               rank->streams[comm])) ||
		    !waits(rank, comm) || (!sender && !holds(rank, output(rank), bytes, turn)))
			break;
		if (sum != 2)
			went(rank, ferryInternalError);
	}
	return NULL;
}

static void messages_and_collectives_follow_each_other_in_any_order(void **state)
{
	(void)state;
	pair_open("1M");
	pair_run(mixed);
	pair_close();
}

/* Rank 0 comes when rank 1 sleeps. */
static void *late(void *argument)
{
	struct rank *rank = argument;
	if (rank->rank)
		pthread_getcpuclockid(pthread_self(), &pair_clock);
	pthread_barrier_wait(rank->both);
	if (!rank->rank)
		other_sleeps(rank);
	if (rank->rank ? receives(rank, 0, output(rank), 8) : sends(rank, 0, input(rank), 8))
		waits(rank, 0);
	return NULL;
}

static void a_thread_that_waits_long_for_a_message_sleeps(void **state)
{
	(void)state;
	pair_open("1M");
	pair_run(late);
	pair_close();
}

/* ---- errors ---- */

static void ends_that_disagree_are_told_both_messages(void **state)
{
	struct ranks ranks;
	ferryStream_t streams[2];
	char buffer[100];
	(void)state;
	open_with(&ranks, 2, 1, "1M");
	for (int rank = 0; rank < 2; rank++)
		OK(ferryStreamCreate(&streams[rank], rank));
	OK(ferrySend(buffer, 10, ferryInt8, 1, ranks.comms[0], streams[0]));
	OK(ferryStreamSynchronize(streams[0]));
	ferryRecv(buffer, 11, ferryInt8, 0, ranks.comms[1], streams[1]);
	assert_int_equal(ferryStreamSynchronize(streams[1]), ferryInvalidUsage);
	assert_int_equal(ferrySend(buffer, 10, ferryInt8, 1, ranks.comms[0], streams[0]), ferryInvalidUsage);
	for (int rank = 0; rank < 2; rank++) {
		const char *said = ferryGetLastError(ranks.comms[rank]);
		if (!strstr(said, "message 1 from rank 0 to rank 1: sent 10 bytes of i8, received as 11 bytes of i8"))
			fail_msg("\"%s\"", said);
		OK(ferryStreamDestroy(streams[rank]));
		OK(ferryCommAbort(ranks.comms[rank]));
	}
}

static void a_message_that_is_never_sent_ends_when_the_rank_aborts(void **state)
{
	struct ranks ranks;
	ferryStream_t stream;
	char value;
	(void)state;
	open_with(&ranks, 2, 1, "1M");
	OK(ferryStreamCreate(&stream, 0));
	OK(ferryRecv(&value, 1, ferryInt8, 1, ranks.comms[0], stream));
	assert_int_equal(ferryStreamQuery(stream), ferryInProgress);
	OK(ferryCommAbort(ranks.comms[0]));
	assert_int_equal(ferryStreamSynchronize(stream), ferryRemoteError);
	OK(ferryStreamDestroy(stream));
	OK(ferryCommAbort(ranks.comms[1]));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(messages_of_all_lengths_come_whole_and_in_order),
	        cmocka_unit_test(groups_that_send_and_receive_end_whatever_their_length),
	        cmocka_unit_test(a_rank_sends_to_itself),
	        cmocka_unit_test(sends_end_before_the_receiver_comes),
	        cmocka_unit_test(messages_that_a_rank_does_not_wait_for_keep_no_other_waiting),
	        cmocka_unit_test(two_communicators_end_whose_messages_ranks_wait_for_in_opposite_orders),
	        cmocka_unit_test(messages_and_collectives_follow_each_other_in_any_order),
	        cmocka_unit_test(a_thread_that_waits_long_for_a_message_sleeps),
	        cmocka_unit_test(ends_that_disagree_are_told_both_messages),
	        cmocka_unit_test(a_message_that_is_never_sent_ends_when_the_rank_aborts),
	};
	setenv("FERRY_DEVICE", "host", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
