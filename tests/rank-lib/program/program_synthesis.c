/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of the synthesizer: a right program for every collective on every machine, with the fewest bytes on every
 * link.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "ipc/error.h"
#include "rank-lib/program/chunks.h"
#include "rank-lib/program/versions.h"
#include "tests/rank-lib/program/program_cases.h"
#include "tests/rank-lib/program/program_execution.h"
#include "tests/rank-lib/program/program_interpreter.h"

#include <stdlib.h>
#include <string.h>

#define COUNT 1000

static void fail_on(const struct ferry_program *program, const char *reason)
{
	char *text = NULL;
	ferry_program_print(program, &text);
	fail_msg("%s\n%s", reason, text ? text : "");
}

static void every_collective_on_random_machines_passes_the_check_and_runs_right(void **state)
{
	(void)state;
	char reason[256];
	uint64_t seed = 11;
	for (uint32_t i = 0; i < 400; i++) {
		enum ferry_collective collective = (enum ferry_collective)(i % FERRY_NUM_COLLECTIVES);
		struct ferry_topology topology = random_topology(&seed, i < 300 ? 8 : 14, 8);
		struct ferry_program *program = synthesized(collective, &topology, draw_below(&seed, topology.nranks));
		if (ferry_program_check(program))
			fail_on(program, ferry_last_message());
		if (!interpret_program(program, draw_below(&seed, 200), draw(&seed), reason) ||
		    !compile_and_execute(program, draw(&seed), reason))
			fail_on(program, reason);
		ferry_program_free(program);
	}
}

static void largest_machines_pass_the_check(void **state)
{
	(void)state;
	uint64_t seed = 5;
	for (int i = 0; i < 3 * FERRY_NUM_COLLECTIVES; i++) {
		struct ferry_topology topology = {.nranks = FERRY_MAX_RANKS, .ndomains = FERRY_MAX_DOMAINS};
		for (uint32_t rank = 0; rank < FERRY_MAX_RANKS; rank++)
			topology.rank_domain[rank] = (uint8_t)(i % 3 ? draw_below(&seed, i % 3 == 1 ? 8 : 2)
			                                             : rank / 8);
		enum ferry_collective collective = (enum ferry_collective)(i / 3);
		struct ferry_program *program = synthesized(collective, &topology, draw_below(&seed, topology.nranks));
		if (ferry_program_check(program))
			fail_on(program, ferry_last_message());
		ferry_program_free(program);
	}
}

/* ---- bytes ---- */

static uint64_t chunk_bytes(const struct ferry_program *program, uint32_t chunk)
{
	uint64_t offset, length;
	ferry_chunk_span(COUNT, 4, program->nchunks, chunk % program->nchunks, &offset, &length);
	return length;
}

/* What a program moves across boundaries between domains, by whichever instruction. */
static uint64_t crossing_bytes(const struct ferry_program *program)
{
	struct ferry_versions versions;
	uint64_t bytes = 0;
	assert_int_equal(ferry_versions_build(program, &versions), ferrySuccess);
	for (uint32_t i = 0; i < program->nstatements; i++) {
		const struct ferry_statement *s = &program->statements[i];
		const struct ferry_use *use = &versions.uses[i];
		uint32_t value = use->writes == FERRY_NO_VALUE ? use->reads : use->writes;
		uint32_t from = s->opcode == FERRY_D2H ? program->rank_domain[s->rank] : s->source.domain;
		uint32_t to = s->opcode == FERRY_H2D ? program->rank_domain[s->rank] : s->destination.domain;
		if (from != to)
			bytes += chunk_bytes(program, versions.values[value].chunk);
	}
	ferry_versions_free(&versions);
	return bytes;
}

static uint32_t populated_domains(const struct ferry_topology *topology)
{
	uint32_t domains = 0;
	for (uint32_t rank = 0; rank < topology->nranks; rank++)
		domains |= 1u << topology->rank_domain[rank];
	return (uint32_t)__builtin_popcount(domains);
}

/*
 * The least: of an element that only moves, one crossing per domain that needs it and does not have it; of a sum over D
 * domains, D - 1 to bring it to one domain, and D - 1 more if all need it.
 */
static uint64_t least_crossing_bytes(enum ferry_collective collective, const struct ferry_topology *topology,
                                     uint32_t root)
{
	uint64_t block = COUNT * 4, others = populated_domains(topology) - 1, n = topology->nranks, remote = 0,
	         pairs = 0;
	for (uint32_t a = 0; a < n; a++) {
		remote += topology->rank_domain[a] != topology->rank_domain[root];
		for (uint32_t b = 0; b < n; b++)
			pairs += topology->rank_domain[a] != topology->rank_domain[b];
	}
	switch (collective) {
	case FERRY_ALLREDUCE:
		return 2 * others * block;
	case FERRY_REDUCE_TO_ROOT:
	case FERRY_BROADCAST:
		return others * block;
	case FERRY_REDUCESCATTER:
	case FERRY_ALLGATHER:
		return others * block * n;
	case FERRY_GATHER:
	case FERRY_SCATTER:
		return remote * block;
	case FERRY_ALLTOALL:
	case FERRY_ALLTOALLV:
		return pairs * block;
	default:
		return (topology->rank_domain[0] != topology->rank_domain[1]) * block;
	}
}

static void boundaries_are_crossed_by_the_fewest_bytes(void **state)
{
	(void)state;
	uint64_t seed = 3;
	for (uint32_t i = 0; i < 500; i++) {
		enum ferry_collective collective = (enum ferry_collective)(i % FERRY_NUM_COLLECTIVES);
		struct ferry_topology topology = random_topology(&seed, i < 450 ? 16 : 64, 8);
		uint32_t root = draw_below(&seed, topology.nranks);
		struct ferry_program *program = synthesized(collective, &topology, root);
		uint64_t bytes = crossing_bytes(program), least = least_crossing_bytes(collective, &topology, root);
		if (bytes != least) {
			char reason[96];
			snprintf(reason, sizeof reason, "%llu bytes cross, the least is %llu",
			         (unsigned long long)bytes, (unsigned long long)least);
			fail_on(program, reason);
		}
		ferry_program_free(program);
	}
}

static void a_chunk_goes_up_at_most_once_and_down_at_most_once(void **state)
{
	(void)state;
	uint64_t seed = 17;
	for (uint32_t i = 0; i < 200; i++) {
		struct ferry_topology topology = random_topology(&seed, 16, 8);
		struct ferry_program *program =
		        synthesized((enum ferry_collective)(i % FERRY_NUM_COLLECTIVES), &topology, 0);
		uint32_t most = program->nranks * program->nchunks;
		uint8_t *seen = calloc((size_t)program->nranks * most, 1);
		assert_non_null(seen);
		for (uint32_t j = 0; j < program->nstatements; j++) {
			const struct ferry_statement *s = &program->statements[j];
			uint8_t bit = s->opcode == FERRY_D2H   ? 1
			              : s->opcode == FERRY_H2D ? 2
			                                       : 0,
			        *flags = &seen[s->rank * most + s->gpu];
			assert_false(*flags & bit);
			*flags |= bit;
		}
		free(seen);
		ferry_program_free(program);
	}
}

static void an_allreduce_in_one_domain_is_one_sum_of_all_ranks(void **state)
{
	(void)state;
	char *text;
	struct ferry_topology topology = {.nranks = 2, .ndomains = 1};
	struct ferry_program *program = synthesized(FERRY_ALLREDUCE, &topology, 0);
	assert_int_equal(ferry_program_print(program, &text), ferrySuccess);
	assert_string_equal(text, "program allreduce  ranks 2  domains 1  chunks 1\n"
	                          "rank 0\n"
	                          "  D2H    gpu[0] -> host[0]\n"
	                          "  REDUCE host[0] -> host[2]  deps: host[0]>=1\n"
	                          "  REDUCE host[1] -> host[2]  deps: host[1]>=1\n"
	                          "  H2D    host[2] -> gpu[0]  deps: host[2]>=2\n"
	                          "rank 1\n"
	                          "  D2H    gpu[0] -> host[1]\n"
	                          "  H2D    host[2] -> gpu[0]  deps: host[2]>=2\n");
	free(text);
	ferry_program_free(program);
}

static void sums_add_up_in_the_order_of_ranks_within_a_domain(void **state)
{
	(void)state;
	struct ferry_versions versions;
	struct ferry_topology topology = {.nranks = 7, .ndomains = 2, .rank_domain = {1, 0, 1, 0, 0, 1, 1}};
	struct ferry_program *program = synthesized(FERRY_ALLREDUCE, &topology, 0);
	assert_int_equal(ferry_versions_build(program, &versions), ferrySuccess);
	for (uint32_t i = 0; i < versions.nvalues; i++) {
		const struct ferry_value *value = &versions.values[i];
		if (value->base == FERRY_NO_VALUE)
			continue;
		uint64_t added = versions.values[value->source].ranks, before = versions.values[value->base].ranks;
		if (!(added &
		      /* one rank's contribution, not a domain's partial sum: all before it are lower ranks' */
		      (added - 1)))
			assert_true(before < added);
	}
	ferry_versions_free(&versions);
	ferry_program_free(program);
}

static void impossible_machines_are_refused(void **state)
{
	(void)state;
	struct ferry_program *program = NULL;
	static const struct ferry_topology machines[] = {{.nranks = 0, .ndomains = 1},
	                                                 {.nranks = 65, .ndomains = 1},
	                                                 {.nranks = 2, .ndomains = 0},
	                                                 {.nranks = 2, .ndomains = 9},
	                                                 {.nranks = 2, .ndomains = 2, .rank_domain = {0, 2}}};
	for (size_t i = 0; i < sizeof machines / sizeof *machines; i++)
		assert_int_equal(ferry_program_synthesize(FERRY_ALLREDUCE, &machines[i], 0, &program),
		                 ferryInvalidArgument);
	const struct ferry_topology three = {.nranks = 3, .ndomains = 1};
	assert_int_equal(ferry_program_synthesize(FERRY_SENDRECV, &three, 0, &program), ferryInvalidArgument);
	assert_int_equal(ferry_program_synthesize(FERRY_BROADCAST, &three, 3, &program), ferryInvalidArgument);
	assert_int_equal(ferry_program_synthesize(FERRY_NUM_COLLECTIVES, &three, 0, &program), ferryInvalidArgument);
	assert_null(program);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(every_collective_on_random_machines_passes_the_check_and_runs_right),
	        cmocka_unit_test(largest_machines_pass_the_check),
	        cmocka_unit_test(boundaries_are_crossed_by_the_fewest_bytes),
	        cmocka_unit_test(a_chunk_goes_up_at_most_once_and_down_at_most_once),
	        cmocka_unit_test(an_allreduce_in_one_domain_is_one_sum_of_all_ranks),
	        cmocka_unit_test(sums_add_up_in_the_order_of_ranks_within_a_domain),
	        cmocka_unit_test(impossible_machines_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
