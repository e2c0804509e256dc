/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of `ferry-perf limits` about links between GPUs, over the double of the driver. No rate means anything. */
#include "rank-lib/program/limits.h"
#include "tests/commands.h"

#include <stdbool.h>

static struct ferry_limits limits;
static char output[1 << 16];

/* With the environment in front; then `limits` and `output` are what it wrote. */
static void measure(const char *environment)
{
	char command[1024], file[96];
	bool found;
	snprintf(file, sizeof file, "%s/limits.json", directory);
	FILE *kept = fopen(file, "w"); /* as ferry-perf tune has left it */
	assert_non_null(kept);
	fputs("{\"windows\": [], \"gpus\": [], \"collectives\": [{\"ranks\": 7, \"collective\": \"allreduce\"}]}",
	      kept);
	fclose(kept);
	setenv("FERRY_LIMITS", file, 1);
	snprintf(command, sizeof command, "FERRY_CUDA_LIBRARY=%s %s %s limits --quick 2>&1", FAKE_CUDA_LIBRARY,
	         environment, FERRY_PERF);
	int code = run(command, output, sizeof output);
	if (code)
		fail_msg("%s: %d\n%s", command, code, output);
	assert_int_equal(ferry_limits_load(&limits, &found), ferrySuccess);
	assert_true(found);
	assert_int_equal(limits.ncollectives, 1);
	assert_int_equal(limits.collectives[0].ranks, 7);
	unlink(file);
}

static void each_pair_that_reaches_each_other_is_measured_both_ways(void **state)
{
	(void)state;
	int seen[3][3] = {{0}};
	measure("FAKE_CUDA_DEVICES=3");
	assert_int_equal(limits.ngpus, 3);
	assert_int_equal(limits.nlinks, 6);
	for (int i = 0; i < limits.nlinks; i++) {
		const struct ferry_limits_link *link = &limits.links[i];
		assert_in_range(link->from, 0, 2);
		assert_in_range(link->to, 0, 2);
		seen[link->from][link->to]++;
		assert_true(link->alone > 0 && link->both > 0 && link->overhead_us >= 0);
	}
	for (int from = 0; from < 3; from++) {
		for (int to = 0; to < 3; to++)
			assert_int_equal(seen[from][to], from != to);
		assert_true(limits.gpus[from].push > 0);
	}
	assert_true(limits.crossing == 0); /* one node */
	assert_false(limits.astray);
	assert_null(strstr(output, "not measured"));
}

/* GPUs 0 and 2 are in one node, 1 in another one; 0 and 1 have NVLinks. */
static void what_pcie_carries_from_node_to_node_is_measured(void **state)
{
	(void)state;
	measure("FAKE_CUDA_DEVICES=3 FAKE_CUDA_NODES=2 FAKE_CUDA_NVLINKS=0-1");
	assert_int_equal(limits.nlinks, 6);
	assert_true(limits.crossing > 0);
	for (int i = 0; i < limits.nlinks; i++)
		assert_int_equal(limits.links[i].pcie, limits.links[i].from + limits.links[i].to != 1);
	for (int i = 0; i < limits.ngpus; i++)
		assert_int_equal(limits.gpus[i].numa_node, i % 2);
}

static void what_has_no_links_says_why(void **state)
{
	(void)state;
	static const char *const cases[][2] = {
	        {"FAKE_CUDA_DEVICES=1", "not measured: one GPU"},
	        {"FAKE_CUDA_DEVICES=2 FAKE_CUDA_PEERS=0", "not measured: the driver says that no GPU reaches"}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		measure(cases[i][0]);
		assert_int_equal(limits.nlinks, 0);
		assert_true(limits.gpus[0].push == 0);
		if (!strstr(output, cases[i][1]))
			fail_msg("no \"%s\" in:\n%s", cases[i][1], output);
	}
}

static void copies_that_go_astray_are_found_and_named(void **state)
{
	(void)state;
	static const char *const cases[][2] = {
	        {"FAKE_CUDA_DEVICES=3 FAKE_CUDA_ASTRAY=1-2", "a copy of GPU 1 into GPU 2 does not arrive"},
	        {"FAKE_CUDA_DEVICES=2 FAKE_CUDA_ASTRAY=0-1 FAKE_CUDA_ENDLESS=1",
	         "a copy of GPU 0 into GPU 1 does not end"}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		measure(cases[i][0]);
		assert_true(limits.astray);
		assert_int_equal(limits.nlinks, 0);
		assert_string_equal(limits.no_links, cases[i][1]);
		assert_true(limits.gpus[0].push == 0 && limits.gpus[0].alone.d2h > 0);
		assert_non_null(strstr(output, "NCCL_P2P_DISABLE=1"));
	}
}

/* As where a container hides the GPUs of a machine that was measured. */
static void the_limits_that_were_measured_stay_where_there_is_no_gpu(void **state)
{
	(void)state;
	static const char before[] = "what was measured\n";
	char command[1024], file[96], after[64];
	snprintf(file, sizeof file, "%s/limits.json", directory);
	FILE *kept = fopen(file, "w");
	assert_non_null(kept);
	fputs(before, kept);
	fclose(kept);
	setenv("FERRY_LIMITS", file, 1);
	snprintf(command, sizeof command, "FERRY_CUDA_LIBRARY=/nowhere %s limits --quick 2>&1", FERRY_PERF);
	assert_int_equal(run(command, output, sizeof output), 0);
	if (!strstr(output, "nothing was measured, so") || !strstr(output, file))
		fail_msg("%s", output);
	snprintf(command, sizeof command, "cat %s", file);
	assert_int_equal(run(command, after, sizeof after), 0);
	assert_string_equal(after, before);
	unlink(file);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        TEST(each_pair_that_reaches_each_other_is_measured_both_ways),
	        TEST(what_pcie_carries_from_node_to_node_is_measured),
	        TEST(what_has_no_links_says_why),
	        TEST(copies_that_go_astray_are_found_and_named),
	        TEST(the_limits_that_were_measured_stay_where_there_is_no_gpu),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
