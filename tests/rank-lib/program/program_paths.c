/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The alltoallv of every path: right on all machines, by either reading of the language and as a plan, whatever part of
 * a block goes over which path; and what no router may take of such plans.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "ipc/error.h"
#include "ipc/links.h"
#include "tests/rank-lib/program/program_cases.h"
#include "tests/rank-lib/program/program_execution.h"
#include "tests/rank-lib/program/program_interpreter.h"

#include <stdlib.h>
#include <string.h>

static struct ferry_compile_options options_for_paths(void)
{
	struct ferry_compile_options options = {.type = ferryUint32, .redop = ferrySum};
	for (uint32_t domain = 0; domain < FERRY_MAX_DOMAINS; domain++)
		options.staging[domain] = 4u << 20;
	return options;
}

static struct ferry_instr *instrs_of(struct ferry_plan *plan)
{
	return (struct ferry_instr *)((char *)plan + plan->instrs_at);
}

static ferryResult_t validate(struct ferry_plan *plan)
{
	struct ferry_plan_room room = {
	        .nranks = plan->nranks, .ndomains = plan->ndomains, .rank_domain = plan->rank_domain};
	for (uint32_t domain = 0; domain < FERRY_MAX_DOMAINS; domain++) {
		room.staging[domain] = 4u << 20;
		room.counters[domain] = 1u << 14;
	}
	plan->hash = ferry_plan_hash(plan);
	return ferry_plan_validate(plan, plan->bytes, &room);
}

/* ---- programs ---- */

static void fail_on(const struct ferry_program *program, const char *reason)
{
	fail_msg("%s of %u ranks, root %u, %u chunks, %u statements: %s", ferry_collective_name(program->collective),
	         program->nranks, program->root, program->nchunks, program->nstatements, reason);
}

static uint64_t seed = 7;

static struct ferry_links links_of(const char *text, uint32_t nranks)
{
	struct ferry_host_links machine;
	struct ferry_links links;
	if (ferry_host_links_parse("links", text, &machine) ||
	    ferry_host_links_place("links", &machine, nranks, &links))
		fail_msg("%s", ferry_last_message());
	return links;
}

static void all_paths_are_right_on(const char *text, uint32_t nranks, float host)
{
	static struct ferry_network network;
	const uint64_t staging[FERRY_MAX_DOMAINS] = {64u << 20, 64u << 20};
	struct ferry_topology topology = {.nranks = nranks, .ndomains = 2};
	struct ferry_program *program;
	char reason[256];
	for (uint32_t rank = 0; rank < nranks; rank++)
		topology.rank_domain[rank] = rank >= nranks / 2;
	network = (struct ferry_network){.links = links_of(text, nranks), .limits = {.up = host, .down = host}};
	if (ferry_program_synthesize_paths(&topology, &network, staging, 0, &program) || !program)
		fail_msg("%s, %u ranks: %s", text, nranks, program ? ferry_last_message() : "no paths");
	if (ferry_program_check(program))
		fail_on(program, ferry_last_message());
	if (!interpret_program(program, draw_below(&seed, 50), draw(&seed), reason) ||
	    !compile_and_execute_divided(program, &network, draw(&seed), reason))
		fail_on(program, reason);
	if (compile_and_execute(program, 1, reason) || !strstr(reason, "no network by which a router would divide"))
		fail_on(program, reason);
	ferry_program_free(program);
}

static void alltoallv_by_all_paths_is_right(void **state)
{
	(void)state;
	for (int i = 0; i < 3; i++) {
		all_paths_are_right_on("links=mesh:1", 4, 0);
		all_paths_are_right_on("links=mesh:1,peer@0-3=0", 4, 1);
		all_paths_are_right_on("links=bridges:52:25", 8, 0);
		all_paths_are_right_on("links=dgx1v:25", 8, 12);
		all_paths_are_right_on("links=nvswitch:450", 8, 50);
		all_paths_are_right_on("links=pcie2:25:10:20", 8, 0);
	}
}

/* Behind a switch no relay helps; and a pair that nothing leads to would have no part. */
static void where_there_is_one_path_at_most_there_is_no_program_of_paths(void **state)
{
	static const struct {
		const char *links;
		uint32_t nranks;
	} machines[] = {{"links=nvswitch:450", 8}, {"links=mesh:1,peer@0-2=0,peer@1-2=0", 3}, {"links=mesh:1", 2}};
	const struct ferry_topology topology = {.nranks = 8, .ndomains = 1};
	const uint64_t staging[FERRY_MAX_DOMAINS] = {64u << 20}, little[FERRY_MAX_DOMAINS] = {1u << 16};
	static struct ferry_network network;
	struct ferry_program *program;
	(void)state;
	for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
		struct ferry_topology few = topology;
		few.nranks = machines[i].nranks;
		network = (struct ferry_network){.links = links_of(machines[i].links, few.nranks)};
		assert_int_equal(ferry_program_synthesize_paths(&few, &network, staging, 0, &program), ferrySuccess);
		assert_null(program);
	}
	network = (struct ferry_network){.links = links_of("links=mesh:1", 8)};
	assert_int_equal(ferry_program_synthesize_paths(&topology, &network, little, 0, &program), ferrySuccess);
	assert_null(program); /* no room for relays' windows */
	assert_int_equal(ferry_program_synthesize_paths(&topology, &network, staging, 0, &program), ferrySuccess);
	assert_non_null(program);
	ferry_program_free(program);
}

/* ---- what no router may take ---- */

/* The first instruction of that opcode. */
static struct ferry_instr *first_of(struct ferry_plan *plan, uint8_t opcode)
{
	struct ferry_instr *instr = instrs_of(plan);
	while (instr->opcode != opcode)
		instr++;
	assert_true(instr < instrs_of(plan) + plan->ninstrs);
	return instr;
}

static struct ferry_plan *plan_of_paths(void)
{
	static struct ferry_network network;
	const struct ferry_topology topology = {.nranks = 3, .ndomains = 1};
	struct ferry_compile_options options = options_for_paths();
	struct ferry_program *program;
	struct ferry_plan *plan;
	for (uint32_t pair = 0; pair < 9; pair++)
		network.links.speed[pair / 3][pair % 3] = pair / 3 == pair % 3 ? 0 : 1;
	if (ferry_program_synthesize_paths(&topology, &network, options.staging, 0, &program))
		fail_msg("%s", ferry_last_message());
	options.network = &network;
	if (ferry_program_compile(program, &options, &plan))
		fail_msg("%s", ferry_last_message());
	ferry_program_free(program);
	return plan;
}

/* The first that passes on what is in its rank's memory. */
static struct ferry_instr *first_relay(struct ferry_plan *plan)
{
	struct ferry_instr *instr = instrs_of(plan);
	while (!instr->nsources)
		instr++;
	return instr;
}

static struct ferry_network *network_of(struct ferry_plan *plan)
{
	return (struct ferry_network *)((char *)plan + plan->network_at);
}

static void passes_another_part_on(struct ferry_plan *plan)
{
	first_relay(plan)->path++;
}

static void passes_on_what_goes_elsewhere(struct ferry_plan *plan)
{
	struct ferry_instr *relay = first_relay(plan);
	relay->from = relay->owner;
}

static void waits_for_another_part(struct ferry_plan *plan)
{
	first_of(plan, FERRY_WAIT_PUT)->path++;
}

static void path_of_a_copy(struct ferry_plan *plan)
{
	first_of(plan, FERRY_COPY)->path = 1;
}

static void goes_to_nobody(struct ferry_plan *plan)
{
	first_of(plan, FERRY_PUT)->to = plan->nranks;
}

static void has_no_network(struct ferry_plan *plan)
{
	plan->network_at = 0;
}

static void network_lies_outside(struct ferry_plan *plan)
{
	plan->network_at += 64;
}

static void link_is_no_number(struct ferry_plan *plan)
{
	network_of(plan)->links.speed[0][1] = -1;
}

static void nobody_divides(struct ferry_plan *plan)
{
	struct ferry_instr *division = first_of(plan, FERRY_DIVIDE), *copy = first_of(plan, FERRY_COPY);
	*division = *copy;
	division->counter = plan->ninstrs - 1;
}

static void division_wakes_few(struct ferry_plan *plan)
{
	first_of(plan, FERRY_DIVIDE)->wakes_h2d = 3;
}

static void a_divided_plan_that_is_changed_is_refused(void **state)
{
	(void)state;
	static const struct {
		void (*change)(struct ferry_plan *);
		const char *message;
	} changes[] = {
	        {passes_another_part_on, "reads another part than instruction"},
	        {passes_on_what_goes_elsewhere, "reads another part than instruction"},
	        {waits_for_another_part, "is not what instruction"},
	        {path_of_a_copy, "path 1 from rank"},
	        {goes_to_nobody, "whose peer is rank 1, is of part 1"},
	        {has_no_network, "instruction 0: path 1 from rank 0 to rank 1"},
	        {network_lies_outside, "a network at"},
	        {link_is_no_number, "its network has a speed below 0"},
	        {nobody_divides, "COPY, with a network"},
	        {division_wakes_few, "a DIVIDE that waits, or does not wake every rank"},
	};
	for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
		struct ferry_plan *plan = plan_of_paths();
		if (validate(plan))
			fail_msg("%s", ferry_last_message());
		changes[i].change(plan);
		if (validate(plan) == ferrySuccess)
			fail_msg("change %zu is taken, and should be told \"%s\"", i, changes[i].message);
		if (!strstr(ferry_last_message(), changes[i].message))
			fail_msg("change %zu: \"%s\" and not \"%s\"", i, ferry_last_message(), changes[i].message);
		free(plan);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(alltoallv_by_all_paths_is_right),
	        cmocka_unit_test(where_there_is_one_path_at_most_there_is_no_program_of_paths),
	        cmocka_unit_test(a_divided_plan_that_is_changed_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
