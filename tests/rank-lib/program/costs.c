/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the planner takes from `ferry-perf limits`, and how plans for copy engines follow from it and from the caches.
 */
#include "ipc/error.h"
#include "rank-lib/program/program.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char file[] = "/tmp/ferry-costs-XXXXXX";

static void measured(const char *text)
{
	FILE *out = fopen(file, "w");
	assert_non_null(out);
	fputs(text, out);
	assert_int_equal(fclose(out), 0);
	setenv("FERRY_LIMITS", file, 1);
}

static struct ferry_plan *plan_for(enum ferry_collective collective, uint64_t bytes,
                                   const struct ferry_compile_options *given)
{
	struct ferry_topology topology = {.nranks = 4, .ndomains = 1};
	struct ferry_compile_options options = *given;
	struct ferry_program *program;
	struct ferry_plan *plan;
	assert_int_equal(ferry_program_synthesize(collective, &topology, 0, &program), ferrySuccess);
	options.type = ferryFloat32;
	options.count = bytes / 4 / (collective == FERRY_ALLREDUCE ? 1 : 4);
	assert_int_equal(ferry_program_compile(program, &options, &plan), ferrySuccess);
	ferry_program_free(program);
	return plan;
}

static struct ferry_compile_options four_gpus(void)
{
	struct ferry_compile_options options = {.dma = true, .core_cache = 2 << 20};
	options.staging[0] = 100 << 20;
	assert_int_equal(ferry_costs_read(&options.costs), ferrySuccess);
	return options;
}

static void costs_are_those_of_the_file_and_typical_ones_without_it(void **state)
{
	struct ferry_costs costs;
	(void)state;
	setenv("FERRY_LIMITS", "/nonexistent/limits.json", 1);
	assert_int_equal(ferry_costs_read(&costs), ferrySuccess);
	assert_false(costs.measured);
	assert_int_equal(costs.issue_ns, 4000);
	measured("{\"windows\": [], \"gpus\": [],"
	         "\"copy\": {\"d2h_overhead_us\": 2, \"h2d_overhead_us\": 3, \"enqueue_us\": 1.5, \"d2h\": 26.5, "
	         "\"h2d\": 25.9}}");
	assert_int_equal(ferry_costs_read(&costs), ferrySuccess);
	assert_true(costs.measured);
	assert_int_equal(costs.issue_ns, 6300);
	assert_int_equal(costs.link, 25);
	assert_true(costs.push == 0 && costs.host == 0);
	measured("{\"windows\": [], \"gpus\": []}"); /* a machine without GPUs */
	assert_int_equal(ferry_costs_read(&costs), ferrySuccess);
	assert_false(costs.measured);
}

/* The slowest of all GPUs at work: pushes by the GPU, the host by the slower way of the best window of all. */
static void rates_of_the_fabrics_are_those_of_the_slowest_gpu(void **state)
{
	static const char windows[] =
	        "\"windows\": [{\"gpus\": 1, \"both\": {\"d2h\": 90, \"h2d\": 90}},"
	        "{\"gpus\": 2, \"both\": {\"d2h\": 70, \"h2d\": 40}},"
	        "{\"gpus\": 2, \"both\": {\"d2h\": 60, \"h2d\": 50}}],"
	        "\"copy\": {\"d2h_overhead_us\": 2, \"h2d_overhead_us\": 3, \"d2h\": 50, \"h2d\": 50}}";
	struct ferry_costs costs;
	char text[1024];
	(void)state;
	snprintf(text, sizeof text, "{\"gpus\": [{\"push\": 390}, {\"push\": 380}], %s", windows);
	measured(text);
	assert_int_equal(ferry_costs_read(&costs), ferrySuccess);
	assert_true(costs.push == 380 && costs.host == 25);
	snprintf(text, sizeof text, "{\"gpus\": [{\"push\": 390}, {}], %s", windows); /* one reaches no other */
	measured(text);
	assert_int_equal(ferry_costs_read(&costs), ferrySuccess);
	assert_true(costs.push == 0 && costs.host == 25);
	snprintf(text, sizeof text, "{\"gpus\": [{\"push\": 390}, {}, {}], %s", windows); /* never all three */
	measured(text);
	assert_int_equal(ferry_costs_read(&costs), ferrySuccess);
	assert_true(costs.host == 0);
}

/* GPUs 0 and 1 are in one node, 2 and 3 in another. Parts of the slowest pair of a node; NVLinks are none of PCIe's. */
static void what_crosses_between_nodes_is_a_part_of_what_a_port_carries(void **state)
{
	static const char links[] = "\"gpus\": [{\"numa_node\": 0}, {\"numa_node\": 0}, {\"numa_node\": 1}, "
	                            "{\"numa_node\": 1}], \"windows\": [], "
	                            "\"copy\": {\"d2h_overhead_us\": 2, \"d2h\": 50, \"h2d\": 50}, \"links\": ["
	                            "{\"from\": 0, \"to\": 1, \"pcie\": true, \"alone\": 25}, "
	                            "{\"from\": 1, \"to\": 0, \"pcie\": true, \"alone\": 24}, "
	                            "{\"from\": 2, \"to\": 3, \"pcie\": false, \"alone\": 9}, "
	                            "{\"from\": 0, \"to\": 2, \"pcie\": true, \"alone\": 18}, "
	                            "{\"from\": 0, \"to\": 3, \"pcie\": true, \"alone\": 12}, "
	                            "{\"from\": 9, \"to\": 1, \"pcie\": true, \"alone\": 1}]";
	struct ferry_costs costs;
	char text[1024];
	(void)state;
	snprintf(text, sizeof text, "{%s, \"crossing\": 36}", links);
	measured(text);
	assert_int_equal(ferry_costs_read(&costs), ferrySuccess);
	assert_true(costs.across == 0.5 && costs.crossing == 1.5);
	snprintf(text, sizeof text, "{%s, \"crossing\": 6}", links); /* noise: a pair has no more than all */
	measured(text);
	assert_int_equal(ferry_costs_read(&costs), ferrySuccess);
	assert_true(costs.across == 0.5 && costs.crossing == 0.5);
	snprintf(text, sizeof text, "{%s}", links);
	measured(text);
	assert_int_equal(ferry_costs_read(&costs), ferrySuccess);
	assert_true(costs.across == 0 && costs.crossing == 0);
}

static void a_file_of_something_else_is_an_error_that_names_it(void **state)
{
	struct ferry_costs costs;
	(void)state;
	measured("{\"windows\": 3}");
	assert_int_equal(ferry_costs_read(&costs), ferryInvalidArgument);
	assert_non_null(strstr(ferry_last_message(), file));
	measured("not JSON");
	assert_int_equal(ferry_costs_read(&costs), ferryInvalidArgument);
}

static void slices_grow_with_the_message_and_with_what_a_copy_costs(void **state)
{
	(void)state;
	unsetenv("FERRY_LIMITS");
	setenv("XDG_CACHE_HOME", "/nonexistent", 1);
	struct ferry_compile_options options = four_gpus();
	uint32_t last = 0;
	for (uint64_t bytes = 1 << 20; bytes <= 1ull << 40; bytes *= 4) {
		struct ferry_plan *plan = plan_for(FERRY_ALLREDUCE, bytes, &options);
		assert_true(plan->slice >= last && plan->slice <= 2 << 20);
		last = plan->slice;
		free(plan);
	}
	struct ferry_plan *cheap = plan_for(FERRY_ALLREDUCE, 16 << 20, &options);
	options.costs.issue_ns *= 4;
	struct ferry_plan *dear = plan_for(FERRY_ALLREDUCE, 16 << 20, &options);
	assert_true(dear->slice > cheap->slice);
	free(cheap);
	free(dear);
}

/* Copy engines rest between copies. Where cores reduce, a lane with many windows needs each of them deep, too. */
static void long_messages_get_slices_as_long_as_the_windows_of_a_lane_allow(void **state)
{
	static const struct {
		enum ferry_collective collective;
		uint64_t bytes;
		uint32_t slice, window; /* at least */
	} wanted[] = {
	        {FERRY_ALLREDUCE, 256 << 20, 2 << 20, 6},
	        {FERRY_REDUCESCATTER, 256 << 20, 1 << 19, 10},
	        {FERRY_BROADCAST, 4096ull << 20, 4 << 20, 4},
	        {FERRY_ALLTOALL, 256 << 20, 2 << 20, 2},
	};
	(void)state;
	struct ferry_compile_options options = four_gpus();
	for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
		struct ferry_plan *plan = plan_for(wanted[i].collective, wanted[i].bytes, &options);
		if (plan->slice < wanted[i].slice || plan->window < wanted[i].window)
			fail_msg("%s: %u slots of %u bytes", ferry_collective_name(wanted[i].collective), plan->window,
			         plan->slice);
		free(plan);
	}
}

/*
 * Eight ranks' ReduceScatter, with any staging: ten slots of a window are what the room was divided by, and ten there
 * are. With nine, a tenth of the staging would be nobody's.
 */
static void long_slices_leave_a_reducing_window_its_slots(void **state)
{
	(void)state;
	struct ferry_topology topology = {.nranks = 8, .ndomains = 1};
	struct ferry_program *program;
	assert_int_equal(ferry_program_synthesize(FERRY_REDUCESCATTER, &topology, 0, &program), ferrySuccess);
	for (uint64_t staging = 16 << 20; staging <= 256 << 20; staging += 1234567) {
		struct ferry_compile_options options = four_gpus();
		struct ferry_plan *plan;
		options.staging[0] = staging;
		options.type = ferryFloat32;
		options.count = 256 << 20;
		assert_int_equal(ferry_program_compile(program, &options, &plan), ferrySuccess);
		if (plan->window < 10)
			fail_msg("%llu bytes of staging: %u slots of %u bytes", (unsigned long long)staging,
			         plan->window, plan->slice);
		free(plan);
	}
	ferry_program_free(program);
}

/*
 * Longer slices for moves are for windows that have the room, in the cache and in the staging; else they would have
 * fewer slots.
 */
static void long_slices_leave_a_moving_window_its_slots(void **state)
{
	(void)state;
	for (uint64_t megabytes = 6; megabytes <= 64; megabytes++) {
		struct ferry_compile_options options = four_gpus();
		options.staging[0] = megabytes << 20;
		struct ferry_plan *plan = plan_for(FERRY_BROADCAST, 4096ull << 20, &options);
		if (plan->window < 3)
			fail_msg("%llu MiB of staging: %u slots of %u bytes", (unsigned long long)megabytes,
			         plan->window, plan->slice);
		free(plan);
	}
}

/* A D2H into a slot waits until the cores are past it by as much as their private caches hold. */
static void copy_engines_stay_behind_the_cores_by_what_their_caches_hold(void **state)
{
	(void)state;
	struct ferry_compile_options options = four_gpus();
	struct ferry_plan *plan = plan_for(FERRY_ALLREDUCE, 256 << 20, &options);
	const struct ferry_instr *instrs = ferry_plan_instrs(plan);
	const struct ferry_edge *edges = ferry_plan_edges(plan);
	uint64_t slot = plan->staging[0] / plan->window, caches = plan->workers * options.core_cache;
	uint32_t guarded = 0;
	assert_true(plan->workers > 0 && caches * 3 <= plan->staging[0]);
	for (uint32_t i = 0; i < plan->ninstrs; i++)
		for (uint32_t e = 0; instrs[i].opcode == FERRY_D2H && e < instrs[i].nedges; e++) {
			const struct ferry_edge *edge = &edges[instrs[i].first_edge + e];
			if (instrs[edge->instr].opcode != FERRY_REDUCE)
				continue;
			assert_true((plan->window - edge->lag) * slot >= caches);
			guarded++;
		}
	assert_int_equal(guarded, 4);
	assert_true(plan->flags & FERRY_PLAN_DMA);
	free(plan);
}

/*
 * How much a domain's copy engines may have written that nobody has reduced yet: a third of the staging, or two slots
 * of each.
 */
static void copy_engines_stay_near_the_cores(void **state)
{
	static const enum ferry_collective collectives[] = {FERRY_ALLREDUCE, FERRY_REDUCE_TO_ROOT, FERRY_REDUCESCATTER};
	(void)state;
	struct ferry_compile_options options = four_gpus();
	for (size_t i = 0; i < sizeof collectives / sizeof *collectives; i++)
		for (uint64_t bytes = 1 << 20; bytes <= 1 << 30; bytes *= 4) {
			struct ferry_plan *plan = plan_for(collectives[i], bytes, &options);
			const struct ferry_instr *instrs = ferry_plan_instrs(plan);
			uint64_t ahead = 0, least = UINT32_MAX;
			for (uint32_t k = 0; k < plan->ninstrs; k++)
				for (uint32_t e = 0; instrs[k].opcode == FERRY_D2H && e < instrs[k].nedges; e++) {
					uint32_t lag = ferry_plan_edges(plan)[instrs[k].first_edge + e].lag;
					ahead += (uint64_t)lag * plan->slice;
					least = lag < least ? lag : least;
				}
			if (least < 2 || (least > 2 && ahead > options.staging[0] / 3))
				fail_msg("%s of %llu bytes: %llu slots, %llu bytes ahead",
				         ferry_collective_name(collectives[i]), (unsigned long long)bytes,
				         (unsigned long long)least, (unsigned long long)ahead);
			free(plan);
		}
}

/* Not all of the staging comes round, but more than the workers' caches hold beside two calls. */
static void small_messages_get_few_workers_and_shallow_windows(void **state)
{
	(void)state;
	struct ferry_compile_options options = four_gpus();
	struct ferry_plan *small = plan_for(FERRY_ALLREDUCE, 1 << 20, &options);
	struct ferry_plan *large = plan_for(FERRY_ALLREDUCE, 64 << 20, &options);
	uint64_t slot = small->staging[0] / small->window, slots = ((1 << 20) + small->slice - 1) / small->slice;
	assert_in_range(small->workers, 1, large->workers - 1);
	assert_true(small->staging[0] < options.staging[0] / 2 && large->staging[0] > options.staging[0] / 2);
	assert_true((small->window - slots) * slot >= small->workers * options.core_cache);
	struct ferry_plan *scattered = plan_for(FERRY_REDUCESCATTER, 1 << 20, &options);
	assert_int_equal(scattered->workers, small->workers); /* the same sums, each rank's part of them in one place */
	free(scattered);
	free(small);
	free(large);
}

/* Two routers on one node must not hold twice of what one holds in the same cache. */
static void domains_that_share_a_cache_share_what_moves_take_of_it(void **state)
{
	(void)state;
	struct ferry_compile_options options = four_gpus();
	struct ferry_plan *alone = plan_for(FERRY_BROADCAST, 4096ull << 20, &options);
	options.sharing = 2;
	struct ferry_plan *shared = plan_for(FERRY_BROADCAST, 4096ull << 20, &options);
	assert_in_range(shared->staging[0], 1, alone->staging[0] / 2 + shared->slice);
	assert_true(shared->window >= 3);
	free(alone);
	free(shared);
}

static void compiles_to_a_valid_plan(const struct ferry_program *program, const struct ferry_compile_options *options)
{
	struct ferry_plan_room limits = {.nranks = program->nranks,
	                                   .ndomains = 1,
	                                   .rank_domain = program->rank_domain};
	struct ferry_plan *plan;
	limits.staging[0] = options->staging[0];
	limits.counters[0] = 1000;
	if (ferry_program_compile(program, options, &plan) || ferry_plan_validate(plan, plan->bytes, &limits))
		fail_msg("%u ranks, count %llu, staging %llu, slice %u, cache %llu: %s", program->nranks,
		         (unsigned long long)options->count, (unsigned long long)options->staging[0], options->slice,
		         (unsigned long long)options->core_cache, ferry_last_message());
	free(plan);
}

/*
 * Short slices, by a setting or because the message is short, in large caches and much staging ask for the most slots.
 */
static void windows_are_never_deeper_than_a_plan_may_have_them(void **state)
{
	(void)state;
	static const uint64_t caches[] = {0, 2 << 20, 4 << 20, 64 << 20}, counts[] = {0, 1, 1 << 20, 64 << 20};
	for (uint32_t nranks = 1; nranks <= 4; nranks++) {
		struct ferry_topology topology = {.nranks = nranks, .ndomains = 1};
		struct ferry_program *program;
		assert_int_equal(ferry_program_synthesize(FERRY_ALLREDUCE, &topology, 0, &program), ferrySuccess);
		for (uint64_t staging = 1 << 20; staging <= 64ull << 30; staging *= 8)
			for (int i = 0; i < 4 * 4 * 3; i++) {
				struct ferry_compile_options options = four_gpus();
				options.staging[0] = staging;
				options.core_cache = caches[i % 4];
				options.count = counts[i / 4 % 4];
				options.slice = (uint32_t)(i / 16) * 64;
				options.type = ferryFloat32;
				compiles_to_a_valid_plan(program, &options);
			}
		ferry_program_free(program);
	}
}

static void host_devices_get_none_of_it(void **state)
{
	(void)state;
	struct ferry_compile_options options = four_gpus();
	options.dma = false;
	struct ferry_plan *plan = plan_for(FERRY_ALLREDUCE, 256 << 20, &options);
	assert_int_equal(plan->workers, 0);
	assert_int_equal(plan->advance, 0);
	assert_false(plan->flags & FERRY_PLAN_DMA);
	free(plan);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(costs_are_those_of_the_file_and_typical_ones_without_it),
	        cmocka_unit_test(rates_of_the_fabrics_are_those_of_the_slowest_gpu),
	        cmocka_unit_test(what_crosses_between_nodes_is_a_part_of_what_a_port_carries),
	        cmocka_unit_test(a_file_of_something_else_is_an_error_that_names_it),
	        cmocka_unit_test(slices_grow_with_the_message_and_with_what_a_copy_costs),
	        cmocka_unit_test(long_messages_get_slices_as_long_as_the_windows_of_a_lane_allow),
	        cmocka_unit_test(long_slices_leave_a_reducing_window_its_slots),
	        cmocka_unit_test(long_slices_leave_a_moving_window_its_slots),
	        cmocka_unit_test(copy_engines_stay_behind_the_cores_by_what_their_caches_hold),
	        cmocka_unit_test(copy_engines_stay_near_the_cores),
	        cmocka_unit_test(small_messages_get_few_workers_and_shallow_windows),
	        cmocka_unit_test(domains_that_share_a_cache_share_what_moves_take_of_it),
	        cmocka_unit_test(windows_are_never_deeper_than_a_plan_may_have_them),
	        cmocka_unit_test(host_devices_get_none_of_it),
	};
	int descriptor = mkstemp(file);
	if (descriptor < 0)
		return 1;
	close(descriptor);
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	unlink(file);
	return failed;
}
