/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checker's promise, from the other side: right programs are changed at random, and whatever the checker still
 * accepts must compute its collective, whatever order its statements run in. program_mutations [SEED [MUTANTS
 * [trees]]]; trees: nothing but programs with sums in ranks' memory.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "ipc/error.h"
#include "tests/rank-lib/program/program_cases.h"
#include "tests/rank-lib/program/program_execution.h"
#include "tests/rank-lib/program/program_interpreter.h"
#include "tests/sanitized.h"

#include <stdlib.h>
#include <string.h>

#define ORDERS        6   /* random orders in which an accepted mutant runs */
#define MOST_OF_TREES 128 /* statements */

static uint64_t first_seed = 1;
static uint32_t mutants = REPEATS(20000, 4000);
static bool trees_alone;

/* ---- originals ---- */

/*
 * Shapes that the synthesizer does not write: overwrites, shared requirements, partial sums forwarded, copies by
 * REDUCE.
 */
static const char *const hand_written[] = {
        figure3,
        "program sendrecv ranks 2 domains 1 chunks 3\n"
        "rank 0\nD2H gpu[0] -> host[0]\nD2H gpu[1] -> host[0]\nD2H gpu[2] -> host[0] deps: host[0]>=2\n"
        "rank 1\nH2D host[0] -> gpu[0] deps: host[0]>=1\nH2D host[0] -> gpu[1] deps: host[0]>=2\n"
        "H2D host[0] -> gpu[2] deps: host[0]>=3\n",
        "program allreduce ranks 4 domains 1 chunks 1\n"
        "rank 0\nD2H gpu[0] -> host[0]\nH2D host[0] -> gpu[0] deps: host[0]>=4\n"
        "rank 1\nD2H gpu[0] -> host[1]\nREDUCE host[1] -> host[0] deps: host[0]>=1\nH2D host[0] -> gpu[0] deps: "
        "host[0]>=4\n"
        "rank 2\nD2H gpu[0] -> host[2]\nREDUCE host[2] -> host[0] deps: host[0]>=1\nH2D host[0] -> gpu[0] deps: "
        "host[0]>=4\n"
        "rank 3\nD2H gpu[0] -> host[3]\nREDUCE host[3] -> host[0] deps: host[0]>=1\nH2D host[0] -> gpu[0] deps: "
        "host[0]>=4\n",
        "program allreduce ranks 3 domains 3 chunks 1 # a ring of partial sums, then the sum handed on\n"
        "rank 0\nD2H gpu[0] -> host[0]\nH2H host@2[2] -> host[3] deps: host@2[2]>=2\nH2D host[3] -> gpu[0]\n"
        "rank 1\nD2H gpu[0] -> host[0]\nH2H host@0[0] -> host[2] deps: host@0[0]>=1\nREDUCE host[0] -> host[2]\n"
        "H2H host@0[3] -> host[3] deps: host@0[3]>=1\nH2D host[3] -> gpu[0]\n"
        "rank 2\nD2H gpu[0] -> host[0]\nH2H host@1[2] -> host[2] deps: host@1[2]>=2\nREDUCE host[0] -> host[2]\n"
        "H2D host[2] -> gpu[0]\n",
        "program reduce ranks 3 domains 2 chunks 2 root 2\n"
        "rank 0 domain 0\nD2H gpu[0] -> host[0]\nD2H gpu[1] -> host[1]\n"
        "rank 1 domain 0\nD2H gpu[0] -> host[2]\nD2H gpu[1] -> host[3]\nREDUCE host[2] -> host[0] deps: host[0]>=1\n"
        "REDUCE host[3] -> host[1] deps: host[1]>=1\n"
        "rank 2 domain 1\nD2H gpu[0] -> host[0]\nD2H gpu[1] -> host[1]\nH2H host@0[0] -> host[2] deps: host@0[0]>=2\n"
        "H2H host@0[1] -> host[3] deps: host@0[1]>=2\nREDUCE host[0] -> host[2]\nREDUCE host[1] -> host[3]\n"
        "H2D host[2] -> gpu[0] deps: host[3]>=1\nH2D host[3] -> gpu[1]\n",
        "program allreduce ranks 2 domains 1 chunks 1 # a complete sum copied by REDUCE\n"
        "rank 0\nD2H gpu[0] -> host[0]\nREDUCE host[0] -> host[2]\nH2D host[2] -> gpu[0] deps: host[2]>=2\n"
        "rank 1\nD2H gpu[0] -> host[1]\nREDUCE host[1] -> host[2]\nREDUCE host[2] -> host[3] deps: host[2]>=2\n"
        "H2D host[3] -> gpu[0]\n",
        "program allgather ranks 3 domains 1 chunks 2 # copies by REDUCE\n"
        "rank 0\nD2H gpu[0] -> host[0]\nD2H gpu[1] -> host[1]\nREDUCE host[0] -> host[9]\nH2D host[2] -> gpu[2] deps: "
        "host[2]>=1\n"
        "H2D host[3] -> gpu[3] deps: host[3]>=1\nH2D host[4] -> gpu[4] deps: host[4]>=1\nH2D host[5] -> gpu[5] deps: "
        "host[5]>=1\n"
        "rank 1\nD2H gpu[0] -> host[2]\nD2H gpu[1] -> host[3]\nH2D host[9] -> gpu[0] deps: host[9]>=1\n"
        "H2D host[1] -> gpu[1] deps: host[1]>=1\nH2D host[4] -> gpu[4] deps: host[4]>=1\nH2D host[5] -> gpu[5] deps: "
        "host[5]>=1\n"
        "rank 2\nD2H gpu[0] -> host[4]\nD2H gpu[1] -> host[5]\nH2D host[9] -> gpu[0] deps: host[9]>=1\n"
        "H2D host[1] -> gpu[1] deps: host[1]>=1\nH2D host[2] -> gpu[2] deps: host[2]>=1\nH2D host[3] -> gpu[3] deps: "
        "host[3]>=1\n",
        "program allreduce ranks 3 domains 2 chunks 1 # a line, summed in ranks' memory, and passed on\n"
        "rank 0\nPUT gpu[0] -> mem@1[0]\n"
        "rank 1\nPUT gpu[0] -> mem[1]\nADD mem[0] -> mem[1] deps: mem[0]>=1\nPUT mem[1] -> mem@2[0]\n"
        "rank 2\nPUT gpu[0] -> mem[1]\nADD mem[0] -> mem[1] deps: mem[0]>=1\nPUT mem[1] -> gpu[0]\n"
        "PUT gpu[0] -> gpu@1[0] deps: gpu[0]>=1\nPUT gpu[0] -> gpu@0[0] deps: gpu[0]>=1\n",
        "program allreduce ranks 2 domains 1 chunks 2 # each sums one chunk\n"
        "rank 0\nPUT gpu[0] -> mem[0]\nPUT gpu[1] -> mem@1[0]\nADD mem[0] -> mem[2]\n"
        "ADD mem[1] -> mem[2] deps: mem[1]>=1\nPUT mem[2] -> gpu[0]\nPUT gpu[0] -> gpu@1[0] deps: gpu[0]>=1\n"
        "rank 1\nPUT gpu[1] -> mem[1]\nPUT gpu[0] -> mem@0[1]\nADD mem[0] -> mem[2] deps: mem[0]>=1\n"
        "ADD mem[1] -> mem[2]\nPUT mem[2] -> gpu[1]\nPUT gpu[1] -> gpu@0[1] deps: gpu[1]>=1\n",
        "program allgather ranks 4 domains 1 chunks 1 # a ring\n"
        "rank 0\nPUT gpu[0] -> gpu@1[0]\nPUT gpu[3] -> gpu@1[3] deps: gpu[3]>=1\nPUT gpu[2] -> gpu@1[2] deps: "
        "gpu[2]>=1\n"
        "rank 1\nPUT gpu[0] -> gpu@2[1]\nPUT gpu[0] -> gpu@2[0] deps: gpu[0]>=1\nPUT gpu[3] -> gpu@2[3] deps: "
        "gpu[3]>=1\n"
        "rank 2\nPUT gpu[0] -> gpu@3[2]\nPUT gpu[1] -> gpu@3[1] deps: gpu[1]>=1\nPUT gpu[0] -> gpu@3[0] deps: "
        "gpu[0]>=1\n"
        "rank 3\nPUT gpu[0] -> gpu@0[3]\nPUT gpu[2] -> gpu@0[2] deps: gpu[2]>=1\nPUT gpu[1] -> gpu@0[1] deps: "
        "gpu[1]>=1\n",
        "program allreduce ranks 3 domains 1 chunks 1 # one H2D brings the sum, which goes on from GPU to GPU\n"
        "rank 0\nD2H gpu[0] -> host[0]\nREDUCE host[0] -> host[3]\nH2D host[3] -> gpu[0] deps: host[3]>=3\n"
        "PUT gpu[0] -> gpu@1[0] deps: gpu[0]>=1\n"
        "rank 1\nD2H gpu[0] -> host[1]\nREDUCE host[1] -> host[3]\nPUT gpu[0] -> gpu@2[0] deps: gpu[0]>=1\n"
        "rank 2\nD2H gpu[0] -> host[2]\nREDUCE host[2] -> host[3]\n",
        "program alltoall ranks 3 domains 2 chunks 1 # some by the host, some swapped, one held back\n"
        "rank 0 domain 0\nPUT gpu[1] -> gpu@1[0]\nPUT gpu[2] -> gpu@2[0]\nH2D host[5] -> gpu[2] deps: host[5]>=1\n"
        "rank 1 domain 0\nPUT gpu[0] -> gpu@0[1]\nPUT gpu[2] -> gpu@2[1] deps: host@1[0]>=1\n"
        "H2D host@1[1] -> gpu[2] deps: host@1[1]>=1\n"
        "rank 2 domain 1\nD2H gpu[0] -> host[0]\nH2H host@1[0] -> host@0[5]\nD2H gpu[1] -> host[1]\n",
        "program broadcast ranks 4 domains 1 chunks 2 root 1 # relays, and the host\n"
        "rank 1\nPUT gpu[0] -> gpu@0[0]\nPUT gpu[1] -> gpu@0[1]\nD2H gpu[1] -> host[0]\n"
        "rank 0\nPUT gpu[0] -> gpu@2[0] deps: gpu[0]>=1\nPUT gpu[1] -> gpu@3[1] deps: host[0]>=1, gpu[1]>=1\n"
        "rank 2\nPUT gpu[0] -> gpu@3[0] deps: gpu[0]>=1\nH2D host[0] -> gpu[1] deps: host[0]>=1\n",
};
#define HAND_WRITTEN (sizeof hand_written / sizeof *hand_written)

static struct ferry_program *random_program_of_trees(uint64_t *seed)
{
	struct ferry_topology topology;
	do
		topology = random_topology(seed, 5, 3);
	while (topology.nranks < 2);
	return program_of_trees(&topology, MOST_OF_TREES, seed);
}

static struct ferry_program *random_original(uint64_t *seed)
{
	uint32_t which = trees_alone ? 2 * HAND_WRITTEN : draw_below(seed, 5 * HAND_WRITTEN);
	if (which < HAND_WRITTEN)
		return program_of(hand_written[which]);
	if (which < 2 * HAND_WRITTEN)
		return random_pushing_program(seed, 5, 3);
	if (which < 3 * HAND_WRITTEN)
		return random_program_of_trees(seed);
	struct ferry_topology topology = random_topology(seed, 5, 3);
	enum ferry_collective collective = (enum ferry_collective)draw_below(seed, FERRY_NUM_COLLECTIVES);
	return synthesized(collective, &topology, draw_below(seed, topology.nranks));
}

/* ---- mutations ---- */

static struct ferry_statement *any(const struct ferry_program *program, uint64_t *seed)
{
	return &program->statements[draw_below(seed, program->nstatements)];
}

static struct ferry_place *any_place(struct ferry_statement *statement, uint64_t *seed)
{
	uint32_t which = draw_below(seed, statement->ndependencies + 2);
	if (which < statement->ndependencies)
		return &statement->dependencies[which].place;
	bool source =
	        statement->opcode != FERRY_D2H && (statement->opcode == FERRY_H2D || which == statement->ndependencies);
	return source ? &statement->source : &statement->destination;
}

static void drop_statement(struct ferry_program *program, uint64_t *seed)
{
	struct ferry_statement *statement = any(program, seed);
	free(statement->dependencies);
	*statement = program->statements[--program->nstatements];
}

static void duplicate_statement(struct ferry_program *program, uint64_t *seed)
{
	struct ferry_statement *grown = realloc(program->statements, (program->nstatements + 1) * sizeof *grown), *copy;
	assert_non_null(grown);
	program->statements = grown;
	copy = &grown[program->nstatements];
	const struct ferry_statement *original = any(program, seed);
	*copy = *original;
	copy->dependencies = malloc((copy->ndependencies + 1) * sizeof *copy->dependencies);
	assert_non_null(copy->dependencies);
	for (uint32_t i = 0; i < copy->ndependencies; i++)
		copy->dependencies[i] = original->dependencies[i];
	program->nstatements++;
}

static void drop_dependency(struct ferry_program *program, uint64_t *seed)
{
	struct ferry_statement *statement = any(program, seed);
	if (statement->ndependencies)
		statement->dependencies[draw_below(seed, statement->ndependencies)] =
		        statement->dependencies[statement->ndependencies - 1];
	statement->ndependencies -= statement->ndependencies > 0;
}

static void add_dependency(struct ferry_program *program, uint64_t *seed)
{
	struct ferry_statement *statement = any(program, seed);
	struct ferry_dependency dependency = {*any_place(any(program, seed), seed), 1 + draw_below(seed, 3)};
	void *grown = realloc(statement->dependencies, (statement->ndependencies + 1) * sizeof dependency);
	assert_non_null(grown);
	statement->dependencies = grown;
	statement->dependencies[statement->ndependencies++] = dependency;
}

static void swap_chunks(struct ferry_program *program, uint64_t *seed)
{
	struct ferry_place *a = any_place(any(program, seed), seed), *b = any_place(any(program, seed), seed),
	                   kept = *a;
	*a = *b;
	if (draw_below(seed, 2))
		*b = kept;
}

static void change_version(struct ferry_program *program, uint64_t *seed)
{
	struct ferry_statement *statement = any(program, seed);
	if (!statement->ndependencies)
		return;
	uint32_t *version = &statement->dependencies[draw_below(seed, statement->ndependencies)].version;
	*version = draw_below(seed, 2) ? *version + 1 : *version - 1;
}

static void change_opcode(struct ferry_program *program, uint64_t *seed)
{
	static const uint8_t opcodes[] = {FERRY_D2H, FERRY_H2D, FERRY_REDUCE, FERRY_H2H, FERRY_PUT};
	struct ferry_statement *statement = any(program, seed);
	if (statement->opcode == FERRY_D2H)
		statement->source = statement->destination;
	if (statement->opcode == FERRY_H2D)
		statement->destination = statement->source;
	if (statement->opcode == FERRY_PUT)
		*statement = (struct ferry_statement){.rank = statement->rank,
		                                      .line = statement->line,
		                                      .gpu = statement->gpu,
		                                      .ndependencies = statement->ndependencies,
		                                      .dependencies = statement->dependencies};
	statement->opcode = opcodes[draw_below(seed, 5)];
	if (statement->opcode == FERRY_PUT) {
		statement->peer = (uint16_t)draw_below(seed, program->nranks);
		statement->peer_gpu = any(program, seed)->gpu;
	}
}

/* Another rank or chunk to put to, or the other of the pushing rank's buffers; of two PUTs, swapped. */
static void change_put(struct ferry_program *program, uint64_t *seed)
{
	struct ferry_statement *a = any(program, seed), *b = any(program, seed);
	if (a->opcode != FERRY_PUT)
		return;
	uint16_t peer = a->peer, chunk = a->peer_gpu;
	switch (draw_below(seed, 4)) {
	case 0:
		a->forwards = !a->forwards;
		break;
	case 1:
		a->peer = (uint16_t)draw_below(seed, program->nranks);
		break;
	case 2:
		a->peer_gpu = b->gpu;
		break;
	default:
		if (b->opcode != FERRY_PUT)
			break;
		a->peer = b->peer;
		a->peer_gpu = b->peer_gpu;
		b->peer = peer;
		b->peer_gpu = chunk;
	}
}

static void change_domain(struct ferry_program *program, uint64_t *seed)
{
	/* of a domain, or of a rank's memory */
	uint32_t memory = draw_below(seed, program->ndomains + program->nranks);
	any_place(any(program, seed), seed)->domain =
	        (uint16_t)(memory < program->ndomains ? memory : FERRY_MAX_DOMAINS + memory - program->ndomains);
}

static void change_gpu_chunk(struct ferry_program *program, uint64_t *seed)
{
	struct ferry_statement *a = any(program, seed), *b = any(program, seed);
	uint16_t kept = a->gpu;
	a->gpu = b->gpu;
	b->gpu = draw_below(seed, 2) ? kept : b->gpu;
}

static void swap_ranks(struct ferry_program *program, uint64_t *seed)
{
	struct ferry_statement *a = any(program, seed), *b = any(program, seed);
	uint16_t kept = a->rank;
	a->rank = b->rank;
	b->rank = draw_below(seed, 2) ? kept : b->rank;
}

static void swap_lines(struct ferry_program *program, uint64_t *seed)
{
	struct ferry_statement *a = any(program, seed), *b = any(program, seed), kept = *a;
	*a = *b;
	*b = kept;
	b->rank = a->rank;
	a->rank = kept.rank;
}

static void move_rank(struct ferry_program *program, uint64_t *seed)
{
	program->rank_domain[draw_below(seed, program->nranks)] = (uint8_t)draw_below(seed, program->ndomains);
}

/* Mutates until the text differs; the text is the caller's to free(). */
static char *mutate(struct ferry_program *program, uint64_t *seed)
{
	static void (*const mutations[])(struct ferry_program *, uint64_t *) = {
	        drop_statement, duplicate_statement, drop_dependency,  add_dependency, swap_chunks, change_version,
	        change_opcode,  change_domain,       change_gpu_chunk, swap_ranks,     swap_lines,  move_rank,
	        change_put};
	char *before, *text = NULL;
	assert_int_equal(ferry_program_print(program, &before), ferrySuccess);
	for (bool same = true; same; same = !strcmp(before, text)) {
		free(text);
		for (uint32_t i = 1 + draw_below(seed, 3); i && program->nstatements; i--)
			mutations[draw_below(seed, sizeof mutations / sizeof *mutations)](program, seed);
		sort_sections(program);
		assert_int_equal(ferry_program_print(program, &text), ferrySuccess);
	}
	free(before);
	return text;
}

/* ---- the promise ---- */

static void fail_on(const char *text, uint64_t seed, const char *reason)
{
	fail_msg("seed %llu: %s\n%s", (unsigned long long)seed, reason, text);
}

/* Whether it parses and passes; if so, it must run right in every order tried, as a program and as a plan. */
static bool passes_and_runs_right(const char *text, uint64_t *seed)
{
	char reason[256];
	uint64_t before = *seed;
	struct ferry_program *mutant = NULL;
	bool passes = !ferry_program_parse("mutant", text, strlen(text), NULL, &mutant) && !ferry_program_check(mutant);
	for (uint32_t order = 0; passes && order < ORDERS; order++)
		if (!interpret_program(mutant, order ? draw_below(seed, 120) : 100, draw(seed), reason) ||
		    !compile_and_execute(mutant, draw(seed), reason))
			fail_on(text, before, reason);
	ferry_program_free(mutant);
	return passes;
}

static void every_mutant_that_the_checker_accepts_runs_right(void **state)
{
	(void)state;
	uint64_t seed = first_seed;
	uint32_t made = 0, accepted = 0, summed = 0;
	while (made < mutants) {
		struct ferry_program *original = random_original(&seed);
		if (original->nstatements) {
			char *text = mutate(original, &seed);
			accepted += passes_and_runs_right(text, &seed);
			summed += strstr(text, "ADD") != NULL;
			made++;
			free(text);
		}
		ferry_program_free(original);
	}
	print_message("seed %llu: mutants %u, with sums in ranks' memory %u, rejected %u, accepted and right %u\n",
	              (unsigned long long)first_seed, made, summed, made - accepted, accepted);
	assert_in_range(accepted, made / 20, made / 2); /* else the mutations have become too wild or too tame */
}

static void originals_are_right(void **state)
{
	(void)state;
	char reason[256];
	for (size_t i = 0; i < HAND_WRITTEN; i++) {
		struct ferry_program *program = program_of(hand_written[i]);
		if (ferry_program_check(program))
			fail_on(hand_written[i], 0, ferry_last_message());
		for (uint64_t seed = 0; seed < 50; seed++)
			if (!interpret_program(program, 3 * seed, seed, reason) ||
			    !compile_and_execute(program, seed, reason))
				fail_on(hand_written[i], seed, reason);
		ferry_program_free(program);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(originals_are_right),
	        cmocka_unit_test(every_mutant_that_the_checker_accepts_runs_right),
	};
	if (argc > 1)
		first_seed = strtoull(argv[1], NULL, 10);
	if (argc > 2)
		mutants = (uint32_t)strtoul(argv[2], NULL, 10);
	trees_alone = argc > 3 && !strcmp(argv[3], "trees");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
