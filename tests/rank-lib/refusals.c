/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a router cannot map the memory of one rank's GPU, over the double of the driver: all ranks are refused their
 * communicator at once, with the rank and the reason, and may have the next one where a router can.
 */
#include "tests/fake_cuda/rank_process.h"
#include "tests/fake_cuda/routers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT 30011

static const int devices[] = {0, 1};

#define ORDER(...) ((struct rank_ordered){__VA_ARGS__})

static void are_refused(const struct rank_process *ranks, const char *of_rank, const char *why, const char *remedy)
{
	struct rank_ordered order = {.order = RANK_JOIN, .nranks = 2, .count = COUNT};
	assert_int_equal(ferryGetUniqueId(&order.id), ferrySuccess);
	for (order.rank = 0; order.rank < 2; order.rank++) {
		order.ordinal = devices[order.rank];
		rank_order(&ranks[order.rank], order);
	}
	for (int rank = 0; rank < 2; rank++) {
		struct rank_answer answer = rank_heard(&ranks[rank]);
		if (answer.result != ferryInvalidUsage || !strstr(answer.message, of_rank) ||
		    !strstr(answer.message, why) || !strstr(answer.message, remedy))
			fail_msg("rank %d: %d, \"%s\"", rank, (int)answer.result, answer.message);
	}
}

/* Two ranks that another router than the one with this in its environment serves as it should. */
static void a_router_with(const char *name, const char *value, const char *of_rank, const char *why)
{
	struct rank_process ranks[2];
	char *before = getenv(name) ? strdup(getenv(name)) : NULL;
	setenv(name, value, 1);
	domains_open(1);
	if (before)
		setenv(name, before, 1);
	else
		unsetenv(name);
	free(before);
	for (int rank = 0; rank < 2; rank++)
		ranks[rank] = rank_start(NULL);
	are_refused(ranks, of_rank, why, "has to see the same GPUs");
	routers_close();
	routers_open(1);
	ranks_join(ranks, 2, devices, COUNT);
	ranks_round(ranks, 2, 3, 3);
	ranks_tell(ranks, 2, ORDER(.order = RANK_DESTROY), NULL);
	for (int rank = 0; rank < 2; rank++)
		rank_finish(&ranks[rank]);
	domains_close();
}

static void a_router_without_a_driver_serves_no_gpu(void **state)
{
	(void)state;
	a_router_with("FERRY_CUDA_LIBRARY", "/nowhere/libcuda.so", " GPU", "/nowhere/libcuda.so");
}

/* Rank 0's it could map. */
static void a_gpu_that_the_router_does_not_see_is_refused_to_all(void **state)
{
	(void)state;
	a_router_with("CUDA_VISIBLE_DEVICES", "0", "rank 1's GPU", "UUID");
}

static void a_router_that_gets_no_context_serves_no_gpu(void **state)
{
	(void)state;
	a_router_with("FAKE_CUDA_MEMORY", "4096", " GPU", "out of memory");
}

/* Which is found when a buffer is mapped, after all have attached. */
static void a_router_that_can_open_nothing_serves_no_gpu(void **state)
{
	(void)state;
	a_router_with("FAKE_CUDA_NO_IPC", "1", " GPU", "cuIpcOpenMemHandle");
}

#define TEST(name) cmocka_unit_test_teardown(name, no_misuse)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        TEST(a_router_without_a_driver_serves_no_gpu),
	        TEST(a_gpu_that_the_router_does_not_see_is_refused_to_all),
	        TEST(a_router_that_gets_no_context_serves_no_gpu),
	        TEST(a_router_that_can_open_nothing_serves_no_gpu),
	};
	if (argc > 1)
		return rank_process_main(atoi(argv[1]));
	fake_is_the_driver();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
