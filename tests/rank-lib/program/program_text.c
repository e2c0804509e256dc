/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of the parser and the printer: errors say where and what; what is printed parses to the same program. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "ipc/error.h"
#include "tests/rank-lib/program/program_cases.h"
#include "tests/rank-lib/program/program_execution.h"
#include "tests/rank-lib/program/program_interpreter.h"

#include <stdlib.h>
#include <string.h>

#define HEAD "program allreduce ranks 2 domains 1 chunks 1\n"

static void errors_say_where_and_what_was_expected_and_found(void **state)
{
	static const struct {
		const char *text, *message;
	} cases[] = {
	        {HEAD "rank 0\n  D2H gpu[0] > host[0]\n", "test:3:14: expected '->', found \">\""},
	        {HEAD "rank 0\n  D2H host[0] -> host[0]\n", "test:3:7: expected gpu[CHUNK], found \"host[0]\""},
	        {HEAD "rank 0\n  H2D host[0] -> host[0]\n", "test:3:18: expected gpu[CHUNK], found \"host[0]\""},
	        {HEAD "rank 0\n\tREDUCE host[0]   ->   7\n",
	         "test:3:24: expected host[CHUNK] or host@DOMAIN[CHUNK], found \"7\""},
	        {HEAD "rank 0\n  D2H gpu[] -> host[0]\n",
	         "test:3:11: expected a chunk number, at most 65535, found \"]\""},
	        {HEAD "rank 0\n  D2H gpu[65536] -> host[0]\n", "test:3:11: expected a chunk number, at most 65535"},
	        {HEAD "rank 0\n  D2H gpu[0 -> host[0]\n", "test:3:13: expected ']', found \"->\""},
	        {HEAD "rank 0\n  H2H host@8[0] -> host[0]\n",
	         "test:3:12: expected a domain number, at most 7, found \"8[0]\""},
	        {HEAD "rank 0\n  D2H gpu[0] -> host[0] deps host[0]>=1\n",
	         "test:3:30: expected ':', found \"host[0]>=1\""},
	        {HEAD "rank 0\n  D2H gpu[0] -> host[0] deps: host[0]>1\n", "test:3:38: expected '>=', found \">1\""},
	        {HEAD "rank 0\n  D2H gpu[0] -> host[0] deps: host[0]>=x\n", "test:3:40: expected a version"},
	        {HEAD "rank 0\n  D2H gpu[0] -> host[0] deps: host[0]>=0\n",
	         "test:3:40: expected a version, from 1: 0 is the unwritten chunk, which nothing waits for, found "},
	        {HEAD "rank 0\n  D2H gpu[0] -> host[0] deps: host[1]>=1, host[2]>=1, host@0[1]>=2\n",
	         "test:3: waits for versions 1 and 2 of host@0[1]: a statement names a place once"},
	        {HEAD "rank 0\n  D2H gpu[0] -> host[0] deps: host[0]>=1,\n",
	         "test:3:42: expected host[CHUNK] or host@DOMAIN[CHUNK], found the end of the line"},
	        {HEAD "rank 0\n  D2H gpu[0] -> host[0] host[1]\n",
	         "test:3:25: expected \"deps:\" or the end of the line"},
	        {HEAD "rank 0\n  d2h gpu[0] -> host[0]\n",
	         "test:3:3: expected program, rank, D2H, H2D, REDUCE, H2H, PUT, ADD or a comment"},
	        {HEAD "rank 0\n  D2Hx gpu[0] -> host[0]\n", "test:3:3: expected program, rank, D2H"},
	        {HEAD "rank 0\n  PUT host[0] -> gpu@1[0]\n", "test:3:7: expected gpu[CHUNK], found \"host[0]\""},
	        {HEAD "rank 0\n  PUT gpu[0] -> gpu[0]\n", "test:3:17: expected gpu@RANK[CHUNK], found \"gpu[0]\""},
	        {HEAD "rank 0\n  ADD gpu[0] -> mem[0]\n", "test:3:7: expected mem[CHUNK], found \"gpu[0]\""},
	        {HEAD "rank 0\n  ADD mem[0] -> host[0]\n", "test:3:17: expected mem[CHUNK], found \"host[0]\""},
	        {HEAD "rank 0\n  PUT mem[0] -> host[0]\n", "test:3:17: expected gpu[CHUNK], found \"host[0]\""},
	        {HEAD "rank 0\n  D2H gpu[0] -> mem[0]\n", "expected host[CHUNK]"},
	        {HEAD "rank 0\n  PUT gpu[0] -> mem@64[0]\n", "expected a rank, at most 63"},
	        {HEAD "rank 0\n  PUT gpu[0] -> host[0]\n", "test:3:17: expected gpu@RANK[CHUNK], found \"host[0]\""},
	        {HEAD "rank 0\n  PUT gpu[0] -> gpu@64[0]\n", "test:3:21: expected a rank, at most 63, found \"64[0]\""},
	        {HEAD "rank 0\n  PUT gpu[0] -> gpu@1\n", "test:3:22: expected '[', found the end of the line"},
	        {HEAD "rank 0\n  PUT gpu[0] -> gpu@1[0] deps: gpu[1]>=1\n",
	         "test:3: waits for gpu[1] and reads gpu[0]: a PUT waits for the receive chunk that it reads"},
	        {HEAD "rank 0\n  PUT gpu[0] -> gpu@1[0] deps: gpu[0]>=2\n",
	         "test:3: gpu[0]>=2: a receive chunk is written once, its version is 1"},
	        {HEAD "rank 0\n  PUT gpu[0] -> gpu@1[0] deps: gpu@1[0]>=1\n", "test:3:35: expected '[', found \"@1"},
	        {HEAD "rank 0\n  PUT gpu[0] -> gpu@1[0] deps: gpu[0]>=1 x\n",
	         "test:3:42: expected ',' or the end of the line, found \"x\""},
	        {HEAD "rank 0\n  H2D host[0] -> gpu[0] deps: gpu[0]>=1\n",
	         "test:3:31: expected host[CHUNK] or host@DOMAIN[CHUNK], found \"gpu[0]>=1\""},
	        {HEAD "rank 0\n  WAIT_PUT gpu[0] -> gpu@1[0]\n", "test:3:3: expected program, rank, D2H"},
	        {HEAD "rank 2\n", "test:2: rank 2: the last of 2 ranks is 1"},
	        {"program reduce_scatter ranks 2 domains 1 chunks 1\n",
	         "alltoall, alltoallv, sendrecv), found \"reduce_scatter\""},
	        {HEAD "rank 0\nrank 0\n", "test:3: a second section for rank 0"},
	        {HEAD "rank 0 domain 1\n", "test:2:15: expected a domain, at most 0, found \"1\""},
	        {HEAD "rank 0 on 1\n", "test:2:8: expected \"domain D\" or the end of the line, found \"on\""},
	        {HEAD "  D2H gpu[0] -> host[0]\n", "test:2:1: expected \"rank R\" before the first instruction"},
	        {HEAD HEAD, "test:2:1: a second program header"},
	        {"rank 0\n" HEAD, "test:2:1: a second program header, or one after the first section"},
	        {"program allsum ranks 2 domains 1 chunks 1\n", "test:1:9: expected a collective (allreduce, "},
	        {"program allreduce ranks 65 domains 1 chunks 1\n",
	         "test:1:25: expected a number of ranks, at most 64, found \"65\""},
	        {"program allreduce ranks 2 ranks 3\n", "test:1:27: expected ranks N, domains D, chunks K"},
	        {"program allreduce ranks 2 domains 1 chunks 1 root 0\n", "test:1:46: expected ranks N"},
	        {"program allreduce ranks 0 domains 1 chunks 1\n", "at least 1 each, found 0, 1 and 1"},
	        {"program allreduce ranks 2 domains 1\n", "at least 1 each, found 2, 1 and 0"},
	        {"program allreduce ranks 2 domains 1 chunks 1 bytes 4K..x\n",
	         "test:1:56: expected a size such as 64K, found \"x\""},
	        {"program allreduce ranks 2 domains 1 chunks 1 bytes 4K..1K\n",
	         "test:1: bytes 4096..1024 holds no size"},
	        {"program reduce ranks 2 domains 1 chunks 1 root 0 root 1\n", "test:1:50: expected ranks N"},
	        {"program allreduce ranks 2 domains 1 chunks 1 bytes 1..2 bytes 3..4\n", "test:1:57: expected ranks N"},
	        {"", "test: no program header and no section"},
	        {"# nothing\n", "test: no program header and no section"},
	        {"# Rank 0 sends\n", "test:1:10: expected \"domain D\" or the end of the line, found \"sends\""},
	        {"\x01\xff\n",
	         "test:1:1: expected program, rank, D2H, H2D, REDUCE, H2H, PUT, ADD or a comment, found \"??\""},
	};
	(void)state;
	const struct ferry_program_defaults defaults = {.collective = FERRY_ALLREDUCE};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct ferry_program *program = NULL;
		assert_int_equal(ferry_program_parse("test", cases[i].text, strlen(cases[i].text), &defaults, &program),
		                 ferryProgramError);
		if (!strstr(ferry_last_message(), cases[i].message))
			fail_msg("\"%s\"\n  says \"%s\"\n  not  \"%s\"", cases[i].text, ferry_last_message(),
			         cases[i].message);
	}
}

static void text_need_not_end_in_newline_or_nul(void **state)
{
	(void)state;
	struct ferry_program *program;
	static const char text[] =
	        HEAD "rank 1\r\n D2H gpu[0]->host[0]deps:host[3]>=2# why\r\nrank 0\nD2H gpu[0] -> host[1]7";
	assert_int_equal(ferry_program_parse("test", text, sizeof text - 2, NULL, &program), ferrySuccess);
	assert_int_equal(program->nstatements, 2);
	assert_int_equal(program->statements[0].rank, 0); /* sections come in any order */
	assert_int_equal(program->statements[1].dependencies[0].version, 2);
	assert_int_equal(program->statements[1].line, 3);
	ferry_program_free(program);
}

static void figure_3_parses_as_printed(void **state)
{
	(void)state;
	struct ferry_program *program = program_of(figure3);
	assert_int_equal(program->collective, FERRY_ALLREDUCE);
	assert_int_equal(program->nranks, 2);
	assert_int_equal(program->ndomains, 1);
	assert_int_equal(program->nchunks, 2);
	assert_int_equal(program->nstatements, 10);
	assert_int_equal(ferry_program_check(program), ferrySuccess);
	ferry_program_free(program);
}

static void text_without_header_takes_collective_ranks_and_placement_from_the_caller(void **state)
{
	(void)state;
	static const char
	        text[] = "rank 0\nD2H gpu[0] -> host[0]\nD2H gpu[1] -> host[1]\nrank 2\nH2D host@0[0] -> gpu[5]\n";
	struct ferry_program_defaults defaults = {.collective = FERRY_NUM_COLLECTIVES};
	struct ferry_program *program;
	assert_int_equal(ferry_program_parse("test", text, sizeof text - 1, &defaults, &program), ferryProgramError);
	assert_non_null(strstr(ferry_last_message(), "which collective"));
	defaults.collective = FERRY_ALLGATHER;
	assert_int_equal(ferry_program_parse("test", text, sizeof text - 1, &defaults, &program), ferrySuccess);
	assert_int_equal(program->nranks, 3);
	assert_int_equal(program->nchunks, 2); /* gpu[5] is in a buffer of 3 blocks */
	ferry_program_free(program);
	defaults = (struct ferry_program_defaults){FERRY_ALLGATHER, 4, 3, 0, (const uint8_t[]){2, 2, 1, 0}};
	assert_int_equal(ferry_program_parse("test", text, sizeof text - 1, &defaults, &program), ferrySuccess);
	assert_int_equal(program->nranks, 4);
	assert_int_equal(program->ndomains, 3);
	assert_int_equal(program->statements[0].destination.domain, 2);
	assert_int_equal(program->statements[2].source.domain, 0);
	ferry_program_free(program);
	static const char put[] = "rank 0\nPUT gpu[0] -> gpu@2[5]\n"; /* its receiver is there, and so is the chunk */
	defaults = (struct ferry_program_defaults){.collective = FERRY_ALLGATHER};
	assert_int_equal(ferry_program_parse("test", put, sizeof put - 1, &defaults, &program), ferrySuccess);
	assert_int_equal(program->nranks, 3);
	assert_int_equal(program->nchunks, 2);
	ferry_program_free(program);
	defaults.nranks = 2;
	assert_int_equal(ferry_program_parse("test", text, sizeof text - 1, &defaults, &program), ferryProgramError);
	assert_non_null(strstr(ferry_last_message(), "test:4: rank 2: the last of 2 ranks is 1"));
}

static void ranks_are_in_equal_blocks_unless_their_section_says_otherwise(void **state)
{
	(void)state;
	struct ferry_program *program =
	        program_of("program allreduce ranks 5 domains 2 chunks 1\nrank 1 domain 1\nrank 4 domain 0\n");
	assert_memory_equal(program->rank_domain, ((uint8_t[]){0, 1, 0, 1, 0}), 5);
	ferry_program_free(program);
}

static void assert_same_program(const struct ferry_program *a, const struct ferry_program *b)
{
	assert_int_equal(a->collective, b->collective);
	assert_int_equal(a->nranks, b->nranks);
	assert_int_equal(a->ndomains, b->ndomains);
	assert_int_equal(a->nchunks, b->nchunks);
	assert_int_equal(a->root, b->root);
	assert_int_equal(a->least_bytes, b->least_bytes);
	assert_int_equal(a->most_bytes, b->most_bytes);
	assert_memory_equal(a->rank_domain, b->rank_domain, a->nranks);
	assert_int_equal(a->nstatements, b->nstatements);
	for (uint32_t i = 0; i < a->nstatements; i++) {
		const struct ferry_statement *s = &a->statements[i], *t = &b->statements[i];
		assert_int_equal(s->opcode, t->opcode);
		assert_int_equal(s->rank, t->rank);
		assert_int_equal(s->gpu, t->gpu);
		assert_int_equal(s->forwards, t->forwards);
		assert_int_equal(s->peer, t->peer);
		assert_int_equal(s->peer_gpu, t->peer_gpu);
		assert_memory_equal(&s->source, &t->source, sizeof s->source);
		assert_memory_equal(&s->destination, &t->destination, sizeof s->destination);
		assert_int_equal(s->ndependencies, t->ndependencies);
		for (uint32_t j = 0; j < s->ndependencies; j++) {
			assert_memory_equal(&s->dependencies[j].place, &t->dependencies[j].place, sizeof s->source);
			assert_int_equal(s->dependencies[j].version, t->dependencies[j].version);
		}
	}
}

static void assert_round_trip(const struct ferry_program *program, bool same_lines)
{
	char *text, *again;
	assert_int_equal(ferry_program_print(program, &text), ferrySuccess);
	struct ferry_program *parsed = program_of(text);
	assert_same_program(program, parsed);
	for (uint32_t i = 0; same_lines && i < program->nstatements; i++)
		assert_int_equal(program->statements[i].line, parsed->statements[i].line);
	assert_int_equal(ferry_program_print(parsed, &again), ferrySuccess);
	assert_string_equal(text, again);
	free(text);
	free(again);
	ferry_program_free(parsed);
}

static void what_is_printed_parses_to_the_same_program(void **state)
{
	(void)state;
	static const char *const texts[] = {
	        figure3,
	        HEAD,
	        "program broadcast ranks 3 domains 2 chunks 4 root 2 bytes 0..64K\nrank 1\nH2H host@1[3] -> host[4] "
	        "deps: host@1[3]>=7\n",
	        "program reduce ranks 3 domains 2 chunks 4 root 2 bytes 1000..3G\n",
	        "program allgather ranks 3 domains 2 chunks 4 bytes 1M..18446744073709551615\nrank 2 domain 0\nD2H "
	        "gpu[0] -> host@1[2]\n",
	        "program allgather ranks 3 domains 2 chunks 4\nrank 0\nPUT gpu[65535] -> gpu@63[9]\nPUT gpu[4] -> "
	        "gpu@2[3] deps: gpu[4]>=1, host@1[7]>=2, host[1]>=1\nPUT gpu[2] -> gpu@1[0] deps: host[7]>=1\n",
	        "program alltoallv ranks 3 domains 8 chunks 1 # unchecked\nrank 2\nREDUCE host@7[65535] -> host[0]\n"};
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
		struct ferry_program *program = program_of(texts[i]);
		assert_round_trip(program, false);
		ferry_program_free(program);
	}
	uint64_t seed = 1;
	for (int i = 0; i < 200; i++) {
		struct ferry_topology topology = random_topology(&seed, 12, 8);
		enum ferry_collective collective = (enum ferry_collective)(i % FERRY_NUM_COLLECTIVES);
		struct ferry_program *program = synthesized(collective, &topology, draw_below(&seed, topology.nranks));
		assert_round_trip(program, true);
		ferry_program_free(program);
		assert_round_trip(program = random_pushing_program(&seed, 12, 8), true);
		ferry_program_free(program);
	}
}

static void check_and_run(const char *text, void *context)
{
	char reason[256];
	uint64_t *seed = context;
	struct ferry_program *program = program_of(text);
	if (ferry_program_check(program))
		fail_msg("%s\n%s", ferry_last_message(), text);
	if (!interpret_program(program, 150, draw(seed), reason) || !compile_and_execute(program, draw(seed), reason))
		fail_msg("%s\n%s", reason, text);
	ferry_program_free(program);
}

static void every_program_of_the_manual_is_right(void **state)
{
	(void)state;
	uint64_t seed = 7;
	assert_true(for_each_manual_program(check_and_run, &seed) >= 6);
}

static void every_example_is_right(void **state)
{
	(void)state;
	uint64_t seed = 8;
	assert_true(for_each_example(check_and_run, &seed) >= 6);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(errors_say_where_and_what_was_expected_and_found),
	        cmocka_unit_test(text_need_not_end_in_newline_or_nul),
	        cmocka_unit_test(figure_3_parses_as_printed),
	        cmocka_unit_test(text_without_header_takes_collective_ranks_and_placement_from_the_caller),
	        cmocka_unit_test(ranks_are_in_equal_blocks_unless_their_section_says_otherwise),
	        cmocka_unit_test(what_is_printed_parses_to_the_same_program),
	        cmocka_unit_test(every_program_of_the_manual_is_right),
	        cmocka_unit_test(every_example_is_right),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
