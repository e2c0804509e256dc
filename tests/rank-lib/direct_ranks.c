/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks on GPUs that move their data themselves, over the double of the driver: why is said, and what they may not do
 * beside kernels that are loaded lazily. Ranks whose router moves it may.
 */
#include "tests/fake_cuda/rank_process.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT 30011
#define LAZY  "CUDA_MODULE_LOADING=LAZY"

static const int devices[] = {0, 1};

#define ORDER(...) ((struct rank_ordered){__VA_ARGS__})

/* Two ranks in processes of their own, and what they say. */
struct pair {
	struct rank_process ranks[2];
	FILE *said;
};

/* Routers that can map nothing where `shut`. */
static struct pair pair_start(const char *variables, bool shut)
{
	struct pair pair = {.said = tmpfile()};
	int own = dup(STDERR_FILENO);
	if (shut)
		setenv("FAKE_CUDA_NO_IPC", "1", 1);
	domains_open(1);
	unsetenv("FAKE_CUDA_NO_IPC");
	assert_non_null(pair.said);
	dup2(fileno(pair.said), STDERR_FILENO);
	for (int rank = 0; rank < 2; rank++)
		pair.ranks[rank] = rank_start(variables);
	dup2(own, STDERR_FILENO);
	close(own);
	return pair;
}

static void pair_finish(struct pair *pair)
{
	for (int rank = 0; rank < 2; rank++)
		rank_finish(&pair->ranks[rank]);
	fclose(pair->said);
	domains_close();
}

static void play(struct pair *pair)
{
	ranks_join(pair->ranks, 2, devices, COUNT);
	ranks_round(pair->ranks, 2, 5, 5);
	ranks_tell(pair->ranks, 2, ORDER(.order = RANK_DESTROY), NULL);
}

static void is_refused(struct pair *pair, const char *begins)
{
	struct rank_ordered order = {.order = RANK_JOIN, .nranks = 2, .count = COUNT};
	assert_int_equal(ferryGetUniqueId(&order.id), ferrySuccess);
	for (order.rank = 0; order.rank < 2; order.rank++) {
		order.ordinal = devices[order.rank];
		rank_order(&pair->ranks[order.rank], order);
	}
	for (int rank = 0; rank < 2; rank++) {
		struct rank_answer answer = rank_heard(&pair->ranks[rank]);
		bool others = !strncmp(answer.message, "rank ", 5); /* the other was refused before it */
		const char *message = answer.message + (others ? strlen("rank 0: ") : 0);
		if (answer.result != ferryInvalidUsage || strncmp(message, begins, strlen(begins)) ||
		    !strstr(answer.message, "CUDA_MODULE_LOADING=EAGER") ||
		    !strstr(answer.message, "FERRY_LAZY_MODULES=1"))
			fail_msg("rank %d: %d, \"%s\"", rank, (int)answer.result, answer.message);
	}
}

/* How many lines have both. */
static int count_said(struct pair *pair, const char *first, const char *second)
{
	char line[1000];
	int count = 0;
	rewind(pair->said);
	while (fgets(line, sizeof line, pair->said))
		count += strstr(line, first) && strstr(line, second);
	return count;
}

static void is_said(struct pair *pair, const char *why)
{
	int count = count_said(pair, "moves its data itself", why);
	if (count != 2)
		fail_msg("%d lines that say so with \"%s\"", count, why);
}

static void where_routers_move_the_data_kernels_may_be_loaded_lazily(void **state)
{
	(void)state;
	struct pair pair = pair_start(LAZY " FERRY_LOG=info", false);
	play(&pair);
	assert_int_equal(count_said(&pair, "moves its data itself", ""), 0);
	pair_finish(&pair);
}

static void where_no_router_can_that_is_refused(void **state)
{
	(void)state;
	struct pair pair = pair_start(LAZY, true);
	is_refused(&pair, "no router can reach this GPU's buffers (FERRY_LOG=info tells why)");
	pair_finish(&pair);
}

static void and_let_through_if_asked_for(void **state)
{
	(void)state;
	struct pair pair = pair_start(LAZY " FERRY_LAZY_MODULES=1", true);
	play(&pair);
	pair_finish(&pair);
}

static void the_refusal_says_that_the_user_wants_it_so(void **state)
{
	(void)state;
	struct pair pair = pair_start(LAZY " FERRY_LANES=rank", false);
	is_refused(&pair, "FERRY_LANES=rank: ");
	pair_finish(&pair);
	pair = pair_start(LAZY " FERRY_ROUTER=embedded", false);
	is_refused(&pair, "its routers are ranks' own (FERRY_ROUTER=embedded): ");
	pair_finish(&pair);
}

static void the_log_says_why_a_rank_moves_its_data_itself(void **state)
{
	static const struct {
		const char *variables;
		bool shut;
		const char *why;
	} cases[] = {
	        {"FERRY_LOG=info FERRY_LANES=rank", false, "FERRY_LANES=rank"},
	        {"FERRY_LOG=info FERRY_ROUTER=embedded", false, "FERRY_ROUTER=embedded"},
	        {"FERRY_LOG=info", true, "cuIpcOpenMemHandle"},
	};
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct pair pair = pair_start(cases[i].variables, cases[i].shut);
		play(&pair);
		is_said(&pair, cases[i].why);
		pair_finish(&pair);
	}
}

#define TEST(name) cmocka_unit_test_teardown(name, no_misuse)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        TEST(where_routers_move_the_data_kernels_may_be_loaded_lazily),
	        TEST(where_no_router_can_that_is_refused),
	        TEST(and_let_through_if_asked_for),
	        TEST(the_refusal_says_that_the_user_wants_it_so),
	        TEST(the_log_says_why_a_rank_moves_its_data_itself),
	};
	if (argc > 1)
		return rank_process_main(atoi(argv[1]));
	fake_is_the_driver();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
