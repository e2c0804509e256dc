/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of the API about calls of many counts: they wait for nothing but their streams, and plans that were given up
 * are made again.
 */
#include "tests/api_ranks.h"
#include "tests/sanitized.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#define N 2
#define MOST 700

static int32_t input[N][MOST], output[N][MOST][MOST];

static void fill_input(int round)
{
	for (int rank = 0; rank < N; rank++)
		for (int i = 0; i < MOST; i++)
			input[rank][i] = round + 1000 * rank + i;
	memset(output, 0, sizeof output);
}

static void check_output(int round, int count)
{
	for (int rank = 0; rank < N; rank++) {
		for (int i = 0; i < count; i++)
			assert_int_equal(output[rank][count - 1][i], 2 * round + 1000 + 2 * i);
		for (int i = count; i < MOST; i++)
			assert_int_equal(output[rank][count - 1][i], 0);
	}
}

static void reduce(struct ranks *ranks, int rank, int count, ferryStream_t stream)
{
	OK(ferryAllReduce(input[rank], output[rank][count - 1], (size_t)count, ferryInt32, ferrySum, ranks->comms[rank],
	                  stream));
}

struct gate {
	pthread_mutex_t lock;
	pthread_cond_t opened;
	int open;
};

static void wait_at_gate(void *argument)
{
	struct gate *gate = argument;
	pthread_mutex_lock(&gate->lock);
	while (!gate->open)
		pthread_cond_wait(&gate->opened, &gate->lock);
	pthread_mutex_unlock(&gate->lock);
}

static void open_gate(struct gate *gate)
{
	pthread_mutex_lock(&gate->lock);
	gate->open = 1;
	pthread_cond_broadcast(&gate->opened);
	pthread_mutex_unlock(&gate->lock);
}

/* That they return: else nobody opens the gate, and ctest's timeout tells. */
static void calls_of_600_counts_return_while_their_stream_is_held(void **state)
{
	(void)state;
	for (int domains = 1; domains <= 2; domains++) {
		struct ranks ranks;
		struct gate gate = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
		ferryStream_t streams[N];
		open_ranks(&ranks, N, domains);
		fill_input(domains);
		for (int rank = 0; rank < N; rank++)
			OK(ferryStreamCreate(&streams[rank], rank));
		OK(ferryLaunchHostFunc(streams[0], wait_at_gate, &gate));
		for (int count = 1; count <= 600; count++)
			for (int rank = 0; rank < N; rank++)
				reduce(&ranks, rank, count, streams[rank]);
		assert_int_equal(ferryStreamQuery(streams[0]), ferryInProgress);
		assert_int_equal(ferryStreamQuery(streams[1]), ferryInProgress);
		open_gate(&gate);
		for (int rank = 0; rank < N; rank++)
			OK(ferryStreamSynchronize(streams[rank]));
		for (int count = 1; count <= 600; count++)
			check_output(domains, count);
		for (int rank = 0; rank < N; rank++)
			OK(ferryStreamDestroy(streams[rank]));
		close_ranks(&ranks);
	}
}

/* ---- giving up ---- */

static FILE *said; /* what goes to stderr meanwhile: FERRY_DEBUG=plan tells of every plan that is made */
static int stderr_kept;

static void hear_of_plans(void)
{
	setenv("FERRY_DEBUG", "plan", 1);
	said = tmpfile();
	assert_non_null(said);
	stderr_kept = dup(STDERR_FILENO);
	assert_true(dup2(fileno(said), STDERR_FILENO) >= 0);
}

static int plans_heard_of(void)
{
	char line[1024];
	int plans = 0;
	unsetenv("FERRY_DEBUG");
	assert_true(dup2(stderr_kept, STDERR_FILENO) >= 0);
	close(stderr_kept);
	rewind(said);
	while (fgets(line, sizeof line, said))
		plans += strstr(line, "ferry plan:") != NULL;
	fclose(said);
	return plans;
}

/* Counts 1 .. most, three times over, all ranks in step; returns how many plans rank 0 has made. */
static int plans_of_three_rounds(int most)
{
	struct ranks ranks;
	hear_of_plans();
	open_ranks(&ranks, N, 2);
	for (int round = 0; round < 3; round++) {
		fill_input(round);
		for (int count = 1; count <= most; count++) {
			for (int rank = 0; rank < N; rank++)
				reduce(&ranks, rank, count, NULL);
			OK(ferryStreamSynchronize(NULL));
		}
		for (int count = 1; count <= most; count++)
			check_output(round, count);
	}
	close_ranks(&ranks);
	return plans_heard_of();
}

static void plans_are_kept_while_there_are_few_and_made_again_after_many_others(void **state)
{
	(void)state;
	assert_int_equal(plans_of_three_rounds(200), 200);
	/* Nearly all go before they come again; a router that is still in a plan's last call keeps a few. */
	int plans = plans_of_three_rounds(400);
	assert_in_range(plans, 2 * 400 + 1, 3 * 400);
}

/* Counts that go up and down and calls that run ahead: plans come and go while others are in use. */
static void results_are_right_while_plans_come_and_go_under_calls_that_run_ahead(void **state)
{
	(void)state;
	struct ranks ranks;
	open_ranks(&ranks, N, 1);
	for (int round = 0; round < REPEATS(6, 2); round++) {
		fill_input(round);
		for (int i = 0; i < MOST; i++) {
			int count = round % 2 ? MOST - i : i + 1;
			for (int rank = 0; rank < N; rank++)
				reduce(&ranks, rank, count, NULL);
			if (i % 150 == 149)
				OK(ferryStreamSynchronize(NULL));
		}
		OK(ferryStreamSynchronize(NULL));
		for (int count = 1; count <= MOST; count++)
			check_output(round, count);
	}
	close_ranks(&ranks);
}

/* A router keeps 4096 plans of a job at a time, and would refuse the next. */
static void a_communicator_may_have_had_more_plans_than_a_router_keeps(void **state)
{
	(void)state;
	struct ranks ranks;
	static int32_t in[N][4300], out[N][4300];
	open_ranks(&ranks, N, 2);
	for (int rank = 0; rank < N; rank++)
		for (int i = 0; i < 4300; i++)
			in[rank][i] = i;
	for (int count = 1; count <= 4300; count++) {
		for (int rank = 0; rank < N; rank++)
			OK(ferryAllReduce(in[rank], out[rank], (size_t)count, ferryInt32, ferrySum, ranks.comms[rank],
			                  NULL));
		if (count % 100 == 0)
			OK(ferryStreamSynchronize(NULL));
	}
	for (int rank = 0; rank < N; rank++)
		for (int i = 0; i < 4300; i++)
			assert_int_equal(out[rank][i], 2 * i);
	close_ranks(&ranks);
}

static const char program[] = "program allreduce ranks 2 domains 1 chunks 1\n"
                              "rank 0\n"
                              "D2H gpu[0] -> host[0]\n"
                              "REDUCE host[1] -> host[0] deps: host[0]>=1, host[1]>=1\n"
                              "H2D host[0] -> gpu[0] deps: host[0]>=2\n"
                              "rank 1\n"
                              "D2H gpu[0] -> host[1]\n"
                              "H2D host[0] -> gpu[0] deps: host[0]>=2\n";

static void run_text(struct ranks *ranks, int rank, const char *text)
{
	OK(ferryRunProgram(text, input[rank], output[rank][MOST - 1], MOST, ferryInt32, ferrySum, ranks->comms[rank],
	                   NULL));
}

/* Two texts, one plan: giving up the one that is used no more takes nothing away from the other. */
static void a_plan_stays_for_one_program_after_another_that_says_the_same_was_given_up(void **state)
{
	(void)state;
	struct ranks ranks;
	char twin[sizeof program + 16];
	snprintf(twin, sizeof twin, "%s# the same\n", program);
	hear_of_plans();
	open_ranks(&ranks, N, 1);
	fill_input(0);
	for (int i = 0; i <= 600; i++) {
		for (int rank = 0; rank < N; rank++) {
			run_text(&ranks, rank, program);
			if (i)
				reduce(&ranks, rank, i, NULL);
			else
				run_text(&ranks, rank, twin);
		}
		OK(ferryStreamSynchronize(NULL));
	}
	check_output(0, MOST);
	close_ranks(&ranks);
	assert_int_equal(plans_heard_of(), 602); /* the first program's stayed */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(calls_of_600_counts_return_while_their_stream_is_held),
	        cmocka_unit_test(plans_are_kept_while_there_are_few_and_made_again_after_many_others),
	        cmocka_unit_test(results_are_right_while_plans_come_and_go_under_calls_that_run_ahead),
	        cmocka_unit_test(a_communicator_may_have_had_more_plans_than_a_router_keeps),
	        cmocka_unit_test(a_plan_stays_for_one_program_after_another_that_says_the_same_was_given_up),
	};
	setenv("FERRY_SHORT", "0", 1); /* this is about plans */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
