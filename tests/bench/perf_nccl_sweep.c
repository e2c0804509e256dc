/* SPDX-License-Identifier: Apache-2.0 */
/* Which settings of NCCL ferry-perf compares with, by what the environment has. */
#include "bench/peers/nccl_sweep.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct peers sweep(enum ferry_collective collective)
{
	struct peers peers = {0};
	nccl_sweep_make(&peers, collective, NCCL_SWEEP_HYLINK);
	assert_string_equal(peers.settings[0].name, "default");
	assert_true(peers.count <= PEERS_MOST_SETTINGS);
	return peers;
}

static const struct peer_setting *find(const struct peers *peers, const char *name)
{
	for (unsigned i = 0; i < peers->count; i++)
		if (!strcmp(peers->settings[i].name, name))
			return &peers->settings[i];
	return NULL;
}

static int clear(void **state)
{
	(void)state;
	for (unsigned i = 0; i < NCCL_VARIABLES; i++)
		unsetenv(nccl_variables[i]);
	return 0;
}

static void all_are_there_where_nothing_is_set(void **state)
{
	(void)state;
	struct peers peers = sweep(FERRY_ALLREDUCE);
	assert_int_equal(peers.count, 1 + 3 * 2 * 2 + 3);
	assert_string_equal(find(&peers, "PROTO=LL ALGO=Tree P2P_DISABLE=1")->brief, "LL/Tree/noP2P");
	assert_string_equal(find(&peers, "P2P_DISABLE=1 SHM_USE_CUDA_MEMCPY=1")->brief, "noP2P/memcpy");
	assert_string_equal(find(&peers, "P2P_DISABLE=1 MIN_NCHANNELS=16")->brief, "noP2P/16ch");
	assert_string_equal(find(&peers, "P2P_DISABLE=1 SHM_USE_CUDA_MEMCPY=1 MIN_NCHANNELS=16")->brief,
	                    "noP2P/memcpy/16ch");
	peers = sweep(FERRY_SENDRECV);
	assert_int_equal(peers.count, 1 + 2 + 3);
	assert_string_equal(find(&peers, "P2P_DISABLE=0")->brief, "P2P");
}

static void without_links_the_ways_through_the_host_are_compared(void **state)
{
	(void)state;
	setenv("NCCL_P2P_DISABLE", "1", 1);
	struct peers peers = sweep(FERRY_ALLGATHER);
	assert_int_equal(peers.count, 1 + 3 + 3);
	assert_string_equal(find(&peers, "SHM_USE_CUDA_MEMCPY=1 MIN_NCHANNELS=16")->brief, "memcpy/16ch");
}

static void where_links_are_asked_for_nothing_goes_through_the_host(void **state)
{
	(void)state;
	setenv("NCCL_P2P_DISABLE", "0", 1);
	struct peers peers = sweep(FERRY_ALLGATHER);
	assert_int_equal(peers.count, 1 + 3);
}

static void what_the_environment_has_is_not_swept(void **state)
{
	(void)state;
	setenv("NCCL_P2P_DISABLE", "1", 1);
	setenv("NCCL_SHM_USE_CUDA_MEMCPY", "1", 1);
	struct peers peers = sweep(FERRY_SENDRECV);
	assert_int_equal(peers.count, 2);
	assert_non_null(find(&peers, "MIN_NCHANNELS=16"));
	setenv("NCCL_MIN_NCHANNELS", "8", 1);
	peers = sweep(FERRY_SENDRECV);
	assert_int_equal(peers.count, 1);
	setenv("NCCL_PROTO", "LL", 1);
	setenv("NCCL_ALGO", "Ring", 1);
	peers = sweep(FERRY_ALLREDUCE);
	assert_int_equal(peers.count, 1);
}

static void without_a_sweep_the_defaults_alone(void **state)
{
	(void)state;
	struct peers peers = {0};
	nccl_sweep_make(&peers, FERRY_ALLREDUCE, false);
	assert_int_equal(peers.count, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(all_are_there_where_nothing_is_set, clear, clear),
		cmocka_unit_test_setup_teardown(without_links_the_ways_through_the_host_are_compared, clear, clear),
		cmocka_unit_test_setup_teardown(where_links_are_asked_for_nothing_goes_through_the_host, clear, clear),
		cmocka_unit_test_setup_teardown(what_the_environment_has_is_not_swept, clear, clear),
		cmocka_unit_test_setup_teardown(without_a_sweep_the_defaults_alone, clear, clear),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
