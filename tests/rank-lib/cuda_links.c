/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes over which link between GPUs, over the doubles of the driver and of NVML: routers count NVLinks, and ranks
 * push by them.
 */
#include "tests/fake_cuda/routers.h"
#include "tests/rounds.h"
#include "tests/status_line.h"

#include "ipc/gpu_links.h"
#include "ipc/rankset.h"
#include "rank-lib/program/synth/cuts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GPUS 8
#define BYTES 299880 /* of a block: as many of each of 2 to 8 chunks */

#define CUBE_MESH "0-1:1,0-2:1,0-3:2,0-4:2,1-2:2,1-3:1,1-5:2,2-3:2,2-6:1,3-7:1,4-5:1,4-6:1,4-7:2,5-6:2,5-7:1,6-7:2"

static const int devices[GPUS] = {0, 1, 2, 3, 4, 5, 6, 7};

/* What one AllGather has pushed from rank to rank. */
struct pushes {
	uint32_t nranks;
	uint64_t bytes[GPUS][GPUS];
};

static void take_pushes(struct pushes *pushes, int domain)
{
	static struct ferry_counters counters;
	char path[128];
	snprintf(path, sizeof path, "%s/router-%d.sock", getenv("FERRY_SOCKET_DIR"), domain);
	assert_int_equal(counters_take(path, &counters), ferrySuccess);
	for (uint32_t i = 0; i < counters.nlink_rows; i++)
		pushes->bytes[counters.link_rows[i].number >> 8 & 0xff][counters.link_rows[i].number & 0xff] +=
		        counters.link_rows[i].bytes;
}

/* The driver's pairs as of the links: 0-1:1,0-2:1 is 0-1,0-2. */
static void set_pairs(const char *name, const char *links)
{
	char pairs[256] = "";
	for (const char *at = links; at; at = strchr(at, ','), at += at != NULL)
		snprintf(pairs + strlen(pairs), sizeof pairs - strlen(pairs), "%.3s,", at);
	setenv(name, pairs, 1);
}

static struct pushes allgather(int nranks, int domains)
{
	struct pushes pushes = {.nranks = (uint32_t)nranks};
	struct gang gang;
	setenv("FERRY_FABRICS", "peer", 1);
	gang_open(&gang, nranks, devices, domains);
	unsetenv("FERRY_FABRICS");
	rounds_of(&gang, (struct what){.kind = ALLGATHER, .bytes = BYTES}, 1, -1, false);
	for (int domain = 0; domain < domains; domain++)
		take_pushes(&pushes, domain);
	gang_close(&gang);
	no_misuse(NULL); /* the next one is a router's first job again */
	unsetenv("FAKE_CUDA_PEERS");
	unsetenv("FAKE_CUDA_NVLINKS");
	unsetenv("FAKE_NVML_LINKS");
	return pushes;
}

/* How long its busiest link takes, and what shares links, over the least time of any program. */
static double part_of_optimum(const struct pushes *pushes, const struct ferry_links *links)
{
	double shared[FERRY_MAX_SHARED_LINKS] = {0}, busiest = 0;
	for (uint32_t from = 0; from < pushes->nranks; from++)
		for (uint32_t to = 0; to < pushes->nranks; to++) {
			double bytes = (double)pushes->bytes[from][to];
			busiest = bytes > 0 ? fmax(busiest, bytes / links->speed[from][to]) : busiest;
			for (uint64_t set = links->through[from][to]; set; set &= set - 1)
				shared[__builtin_ctzll(set)] += bytes;
		}
	for (uint32_t k = 0; k < FERRY_MAX_SHARED_LINKS; k++)
		busiest = shared[k] > 0 ? fmax(busiest, shared[k] / links->shared[k]) : busiest;
	return BYTES * ferry_cut_spread_time(links, pushes->nranks, ferry_rankset_all(pushes->nranks)) / busiest;
}

static void assert_optimal(const struct pushes *pushes, const char *machine)
{
	struct ferry_host_links modelled;
	struct ferry_links links;
	assert_int_equal(ferry_host_links_parse("links", machine, &modelled), ferrySuccess);
	assert_int_equal(ferry_host_links_place("links", &modelled, pushes->nranks, &links), ferrySuccess);
	double part = part_of_optimum(pushes, &links);
	if (!(part >= 0.98 && part < 1.001))
		fail_msg("%s: %.3f of the optimum", machine, part);
}

/* Straight from each to each other, as where nobody counts anything. */
static void assert_all_pairs(const struct pushes *pushes)
{
	for (uint32_t from = 0; from < pushes->nranks; from++)
		for (uint32_t to = 0; to < pushes->nranks; to++)
			assert_int_equal(pushes->bytes[from][to], from == to ? 0 : BYTES);
}

/* By one router, and by two, each of which knows half of the GPUs. */
static void an_allgather_on_a_dgx1v_uses_each_nvlink_as_much(void **state)
{
	(void)state;
	for (int domains = 1; domains <= 2; domains++) {
		set_pairs("FAKE_CUDA_PEERS", CUBE_MESH);
		set_pairs("FAKE_CUDA_NVLINKS", CUBE_MESH);
		setenv("FAKE_NVML_LINKS", CUBE_MESH, 1);
		struct pushes pushes = allgather(GPUS, domains);
		assert_optimal(&pushes, "links=dgx1v:25");
	}
}

static void bridged_pairs_get_each_block_over_pcie_once(void **state)
{
	static const char *const pairs[] = {"0-1:4,2-3:4", "0-1:4,2-3:4,4-5:4,6-7:4"};
	(void)state;
	for (int i = 0; i < 2; i++) {
		setenv("FAKE_NVML_LINKS", pairs[i], 1);
		struct pushes pushes = allgather(i ? 8 : 4, 1);
		assert_optimal(&pushes, "links=bridges:56:24");
	}
}

static void full_meshes_and_switches_push_from_all_to_all(void **state)
{
	static const char *const links[] = {"0-s:6,1-s:6,2-s:6,3-s:6", "0-1:2,0-2:2,0-3:2,1-2:2,1-3:2,2-3:2", "", NULL};
	(void)state;
	for (int i = 0; i < 4; i++) {
		setenv("FAKE_CUDA_NVLINKS", i == 3 ? "0" : "1", 1); /* the last: PCIe alone */
		if (links[i])
			setenv("FAKE_NVML_LINKS", links[i], 1);
		struct pushes pushes = allgather(4, 1);
		assert_all_pairs(&pushes);
	}
}

/*
 * An AllGather on GPUs in two nodes, a domain in each, whose link has these parts of a port's speed. The double of the
 * driver says that even GPUs are in node 0; the others go by their number.
 */
static double part_of_two_nodes(float across, float crossing)
{
	struct ferry_gpu_reach found = {
	        .node = {0, 0, 0, 0, 0, 1, 0, 1}, .across = across, .crossing = crossing};
	struct ferry_links links;
	memset(found.reach, 0xff, sizeof found.reach);
	memset(found.nvlinks, FERRY_NVLINKS_NONE, sizeof found.nvlinks);
	ferry_gpu_links_make(&found, GPUS, &links);
	setenv("FAKE_CUDA_NVLINKS", "0", 1);
	struct pushes pushes = allgather(GPUS, 2);
	return part_of_optimum(&pushes, &links);
}

static void pcie_of_two_nodes_is_told_apart(void **state)
{
	(void)state;
	double part = part_of_two_nodes(0, 0);
	if (!(part >= 0.98))
		fail_msg("%.3f of the optimum", part);
}

/* A slow link of both: by what was measured of it, and by the guess. */
static void what_was_measured_between_two_nodes_decides(void **state)
{
	static const char limits[] =
	        "{\"gpus\": [{\"numa_node\": 0}, {\"numa_node\": 0}, {\"numa_node\": 1}], \"windows\": [], "
	        "\"copy\": {\"d2h_overhead_us\": 2, \"d2h\": 50, \"h2d\": 50}, \"crossing\": 5, \"links\": ["
	        "{\"from\": 0, \"to\": 1, \"pcie\": true, \"alone\": 20}, "
	        "{\"from\": 0, \"to\": 2, \"pcie\": true, \"alone\": 5}]}";
	char name[] = "/tmp/ferry-crossing-XXXXXX";
	int file = mkstemp(name);
	(void)state;
	assert_true(file >= 0 && write(file, limits, sizeof limits - 1) == sizeof limits - 1);
	close(file);
	double guessed = part_of_two_nodes(0.25f, 0.25f);
	setenv("FERRY_LIMITS", name, 1);
	double part = part_of_two_nodes(0.25f, 0.25f);
	unsetenv("FERRY_LIMITS");
	unlink(name);
	if (!(part >= 0.97) || !(guessed < 0.9))
		fail_msg("%.3f of the optimum, as guessed %.3f", part, guessed);
}

#define TEST(name) cmocka_unit_test_teardown(name, no_misuse)

int main(void)
{
	const struct CMUnitTest tests[] = {
	        TEST(an_allgather_on_a_dgx1v_uses_each_nvlink_as_much),
	        TEST(bridged_pairs_get_each_block_over_pcie_once),
	        TEST(full_meshes_and_switches_push_from_all_to_all),
	        TEST(pcie_of_two_nodes_is_told_apart),
	        TEST(what_was_measured_between_two_nodes_decides),
	};
	setenv("FAKE_CUDA_DEVICES", "8", 1);
	setenv("HWLOC_SYNTHETIC", "pack:2 [numa(memory=0)] pu:1", 1); /* two nodes, none to bind memory to */
	fake_is_the_driver();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
