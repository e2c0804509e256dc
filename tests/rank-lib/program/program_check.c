/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of the checker: each way of being wrong is named with its line; what is right passes, and runs right. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "ipc/error.h"
#include "rank-lib/program/chunks.h"
#include "rank-lib/program/versions.h"
#include "tests/rank-lib/program/program_cases.h"
#include "tests/rank-lib/program/program_interpreter.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TWO         "program allreduce ranks 2 domains 1 chunks 1\n"
#define TWO_DOMAINS "program allreduce ranks 2 domains 2 chunks 1\n"
#define SUM         "rank 0\nD2H gpu[0] -> host[0]\nREDUCE host[0] -> host[1] deps: host[1]>=1\nH2D host[1] -> gpu[0]\n"

static void assert_rejected(const char *text, const char *message)
{
	struct ferry_program *program = program_of(text);
	if (ferry_program_check(program) == ferrySuccess)
		fail_msg("passes, and should say \"%s\":\n%s", message, text);
	if (!strstr(ferry_last_message(), message))
		fail_msg("%s\n  says \"%s\"\n  not  \"%s\"", text, ferry_last_message(), message);
	ferry_program_free(program);
}

static void assert_right(const char *text)
{
	char reason[256];
	struct ferry_program *program = program_of(text);
	if (ferry_program_check(program))
		fail_msg("%s\n%s", text, ferry_last_message());
	for (uint64_t seed = 0; seed < 20; seed++)
		if (!interpret_program(program, seed * 9, seed, reason))
			fail_msg("%s\n%s", text, reason);
	ferry_program_free(program);
}

static void places_and_chunks_out_of_bounds_are_named(void **state)
{
	(void)state;
	assert_rejected(TWO "rank 0\nD2H gpu[1] -> host[0]\n",
	                "test:3: gpu[1]: the send buffer of rank 0 has 1 chunk");
	assert_rejected(TWO "rank 1\nD2H gpu[0] -> host[0]\nH2D host[0] -> gpu[1]\n",
	                "test:4: gpu[1]: the receive buffer of rank 1 has 1 chunk");
	assert_rejected(TWO "rank 0\nD2H gpu[0] -> host@1[4]\n", "test:3: host@1[4]: the program has domains 0 to 0");
	assert_rejected(TWO "rank 0\nD2H gpu[0] -> host[4] deps: host@3[1]>=1\n", "test:3: host@3[1]");
	assert_rejected("program broadcast ranks 2 domains 1 chunks 1 root 1\nrank 0\nD2H gpu[0] -> host[0]\n",
	                "test:3: gpu[0]: the send buffer of rank 0 has 0 chunks");
	assert_rejected("program broadcast ranks 2 domains 1 chunks 1 root 2\n", "root 2: the last of 2 ranks is 1");
	assert_rejected("program sendrecv ranks 3 domains 1 chunks 1\n", "sendrecv is between 2 ranks, not 3");
}

static void instructions_where_they_cannot_run_are_rejected(void **state)
{
	(void)state;
	assert_rejected(TWO_DOMAINS "rank 0\nD2H gpu[0] -> host[0]\nREDUCE host[0] -> host@1[0]\n",
	                "test:4: REDUCE from domain 0 into domain 1");
	assert_rejected(TWO_DOMAINS "rank 0\nD2H gpu[0] -> host[0]\nH2H host[0] -> host[1]\n",
	                "test:4: H2H inside domain 0");
	assert_rejected(TWO "rank 0\nD2H gpu[0] -> host[0]\nREDUCE host[0] -> host[0]\n",
	                "test:4: REDUCE of host[0] into itself");
	assert_rejected(
	        "program alltoallv ranks 2 domains 1 chunks 1\nrank 0\nD2H gpu[1] -> host[0]\nREDUCE host[0] -> "
	        "host[1]\n",
	        "test:4: alltoallv has D2H, H2D and PUTs of its input only, not REDUCE");
}

/* Chunk 1 of a block is its part over the relay; chunk 2 is brought by nobody, so it is empty in every call. */
static void parts_of_uneven_blocks_go_by_relays(void **state)
{
	static const char relayed[] = "program alltoallv ranks 3 domains 1 chunks 3\n"
	                              "rank 0\n  PUT gpu[3] -> gpu@1[0]\n  PUT gpu[4] -> mem@2[0]\n"
	                              "  PUT gpu[6] -> gpu@2[0]\n"
	                              "rank 1\n  PUT gpu[0] -> gpu@0[3]\n  PUT gpu[6] -> gpu@2[3]\n"
	                              "rank 2\n  PUT gpu[0] -> gpu@0[6]\n  PUT gpu[3] -> gpu@1[6]\n"
	                              "  PUT mem[0] -> gpu@1[%d]  deps: mem[0]>=1\n";
	char text[1024];
	(void)state;
	for (int chunk = 1; chunk <= 2; chunk++) {
		snprintf(text, sizeof text, relayed, chunk);
		if (chunk == 1)
			assert_right(text);
		else
			assert_rejected(text, "rank 1's output chunk 2 gets input chunk 4 instead of 5");
	}
	assert_rejected("program alltoallv ranks 2 domains 1 chunks 2\nrank 0\nPUT mem@1[0] -> gpu@1[1]\n",
	                "test:3: mem@1[0] in the section of rank 0, which reads its own alone");
	assert_rejected("program alltoallv ranks 2 domains 1 chunks 1\nrank 0\nPUT mem[0] -> gpu@1[0]\n",
	                "only the two ends know a chunk's size");
	assert_rejected("program alltoallv ranks 2 domains 1 chunks 2\nrank 0\nPUT gpu[3] -> gpu@1[1]\n"
	                "rank 1\nPUT gpu[0] -> gpu@0[2]\n",
	                "rank 1's output chunk 0 is never written");
	assert_rejected("program alltoallv ranks 2 domains 1 chunks 2\nrank 0\nD2H gpu[2] -> host[0]\n"
	                "REDUCE host[0] -> host[1]\n",
	                "test:4: alltoallv has D2H, H2D and PUTs of its input only, not REDUCE");
}

#define GATHER "program allgather ranks 3 domains 1 chunks 1\n"

static void puts_out_of_bounds_or_to_oneself_are_rejected(void **state)
{
	(void)state;
	assert_rejected(GATHER "rank 1\nPUT gpu[0] -> gpu@3[0]\n", "test:3: PUT to rank 3: the last of 3 ranks is 2");
	assert_rejected(GATHER "rank 1\nPUT gpu[0] -> gpu@1[0]\n", "test:3: PUT from rank 1 to itself");
	assert_rejected(GATHER "rank 1\nPUT gpu[0] -> mem@9[0]\n", "test:3: mem@9[0]: the last of ");
	assert_rejected(GATHER "rank 1\nPUT mem@0[0] -> gpu[0]\n", "test:3: mem@0[0] in the section of rank 1");
	assert_rejected(GATHER "rank 1\nPUT gpu[0] -> mem[0]\nPUT mem[0] -> mem@1[1]\n",
	                "test:4: PUT from rank 1's memory to itself");
	assert_rejected(GATHER "rank 1\nPUT gpu[0] -> mem[0]\nADD mem[0] -> mem@0[1]\n",
	                "test:4: ADD into mem@0[1] in the section of rank 1");
	assert_rejected(GATHER "rank 1\nPUT gpu[0] -> mem[0]\nADD mem[0] -> mem[0]\n",
	                "test:4: ADD of mem[0] into itself");
	assert_rejected(GATHER "rank 1\nPUT gpu[1] -> gpu@0[1]\n",
	                "test:3: gpu[1]: the send buffer of rank 1 has 1 chunk");
	assert_rejected(GATHER "rank 1\nPUT gpu[3] -> gpu@0[1] deps: gpu[3]>=1\n",
	                "test:3: gpu[3]: the receive buffer of rank 1 has 3 chunks");
	assert_rejected(GATHER "rank 1\nPUT gpu[0] -> gpu@0[3]\n",
	                "test:3: gpu[3]: the receive buffer of rank 0 has 3 chunks");
	assert_rejected("program gather ranks 2 domains 1 chunks 1 root 1\nrank 1\nPUT gpu[0] -> gpu@0[1]\n",
	                "test:3: gpu[1]: the receive buffer of rank 0 has 0 chunks");
	assert_rejected(GATHER "rank 1\nPUT gpu[0] -> gpu@0[1] deps: host@1[0]>=1\n",
	                "test:3: host@1[0]: the program has domains 0 to 0");
	assert_rejected("program alltoallv ranks 2 domains 1 chunks 1\nrank 0\nPUT gpu[1] -> gpu@1[0]\n"
	                "rank 1\nPUT gpu[0] -> gpu@0[1] deps: gpu[0]>=1\n",
	                "test:5: alltoallv has D2H, H2D and PUTs of its input only, not PUT: only the two ends know a "
	                "chunk's size");
	assert_rejected("program alltoallv ranks 2 domains 1 chunks 1\nrank 0\nPUT gpu[1] -> mem@1[0]\n",
	                "test:3: alltoallv has D2H, H2D and PUTs of its input only: only the two ends know");
	assert_rejected("program alltoallv ranks 2 domains 1 chunks 1\nrank 0\nPUT gpu[0] -> gpu@1[0]\n",
	                "rank 0's output chunk 1 is never written");
	assert_right("program alltoallv ranks 2 domains 1 chunks 1\nrank 0\nPUT gpu[1] -> gpu@1[0]\n"
	             "rank 1\nPUT gpu[0] -> gpu@0[1]\n");
}

static void what_is_forwarded_must_come(void **state)
{
	(void)state;
	assert_rejected(GATHER "rank 1\nPUT gpu[0] -> gpu@2[0] deps: gpu[0]>=1\n",
	                "test:3: waits for gpu[0]>=1, a chunk of rank 1's receive buffer that no H2D and no PUT "
	                "writes");
	assert_rejected(GATHER "rank 1\nPUT gpu[1] -> gpu@2[1] deps: gpu[1]>=1\n", /* a COPY comes of no statement */
	                "test:3: waits for gpu[1]>=1, a chunk of rank 1's receive buffer that no H2D");
	assert_rejected(GATHER "rank 0\nPUT gpu[2] -> gpu@1[2] deps: gpu[2]>=1\n"
	                       "rank 1\nPUT gpu[2] -> gpu@0[2] deps: gpu[2]>=1\n",
	                "test:3: deadlock: line 3 waits for gpu[2]>=1, which line 5 writes; line 5 waits for "
	                "gpu[2]>=1, which line 3 writes");
}

static void what_a_put_brings_is_known(void **state)
{
	(void)state;
	assert_rejected(GATHER "rank 0\nPUT gpu[0] -> gpu@1[0]\nPUT gpu[0] -> gpu@2[0]\n"
	                       "rank 1\nPUT gpu[0] -> gpu@2[0] deps: gpu[0]>=1\n",
	                "test:6: rank 2's output chunk 0 is written here and in line 4");
	assert_rejected(GATHER "rank 0\nPUT gpu[0] -> gpu@1[0]\nPUT gpu[0] -> gpu@2[0]\n"
	                       "rank 1\nPUT gpu[0] -> gpu@2[1] deps: gpu[0]>=1\nPUT gpu[0] -> gpu@0[1]\n"
	                       "rank 2\nPUT gpu[0] -> gpu@0[2]\nPUT gpu[0] -> gpu@1[2]\n",
	                "test:6: rank 2's output chunk 1 gets the contribution of rank 0, not of rank 1");
	assert_rejected(TWO "rank 0\nPUT gpu[0] -> gpu@1[0]\nrank 1\nPUT gpu[0] -> gpu@0[0]\n",
	                "rank 0's output chunk 0 lacks the contribution of rank 0");
	assert_rejected("program scatter ranks 3 domains 1 chunks 1 root 0\nrank 0\nPUT gpu[2] -> gpu@1[0]\n"
	                "PUT gpu[1] -> gpu@2[0]\n",
	                "rank 1's output chunk 0 gets input chunk 2 instead of 1");
	assert_right("program scatter ranks 3 domains 1 chunks 1 root 0\nrank 0\nPUT gpu[1] -> gpu@1[0]\n"
	             "PUT gpu[2] -> gpu@2[0]\n");
	assert_right(TWO SUM "PUT gpu[0] -> gpu@1[0] deps: gpu[0]>=1\nrank 1\nD2H gpu[0] -> host[1]\n");
	assert_right(GATHER "rank 0\nPUT gpu[0] -> gpu@1[0]\nPUT gpu[0] -> gpu@2[0] deps: host[1]>=1\n"
	                    "PUT gpu[2] -> gpu@1[2] deps: gpu[2]>=1\n" /* back by way of rank 2: its own block */
	                    "rank 1\nD2H gpu[0] -> host[1]\nH2D host[1] -> gpu[1]\nPUT gpu[1] -> gpu@0[1] deps: "
	                    "gpu[1]>=1\nPUT gpu[0] -> gpu@2[1]\n"
	                    "rank 2\nPUT gpu[0] -> gpu@0[2]\n");
}

static void versions_that_never_exist_are_named(void **state)
{
	(void)state;
	assert_rejected(TWO "rank 0\nH2D host[2] -> gpu[0]\n",
	                "test:3: reads host[2] but names no version, and nothing earlier in rank 0 writes it");
	assert_rejected(TWO "rank 0\nD2H gpu[0] -> host[2]\nrank 1\nH2D host[2] -> gpu[0]\n",
	                "test:5: reads host[2] but names no version, and nothing earlier in rank 1 writes it");
	assert_rejected(TWO "rank 0\nD2H gpu[0] -> host[2]\nH2D host[2] -> gpu[0] deps: host[2]>=2\n",
	                "test:4: waits for version 2 of host[2], which is written 1 time");
	assert_rejected(TWO "rank 0\nD2H gpu[0] -> host[2]\nH2D host[2] -> gpu[0] deps: host[7]>=1\n",
	                "test:4: waits for version 1 of host[7], which is written 0 times");
	assert_rejected(TWO SUM "rank 1\nH2D host[1] -> gpu[0] deps: host[1]>=1\n",
	                "test:4: waits for version 1 of host[1], which has only 0 writes before this one");
}

static void writers_that_nothing_orders_are_rejected(void **state)
{
	(void)state;
	assert_rejected(TWO "rank 0\nD2H gpu[0] -> host[0]\nrank 1\nD2H gpu[0] -> host[0]\n",
	                "two unordered writers of host[0]: line 3 and line 5");
	assert_rejected(TWO "rank 0\nD2H gpu[0] -> host[0]\nREDUCE host[0] -> host[1]\nrank 1\nD2H gpu[0] -> host[1]\n",
	                "two unordered writers of host[1]: line 4 and line 6");
	assert_rejected(TWO "rank 0\nD2H gpu[0] -> host[0]\nREDUCE host[0] -> host[2]\nrank 1\nD2H gpu[0] -> host[1]\n"
	                    "REDUCE host[1] -> host[2]\nD2H gpu[0] -> host[2]\nH2D host[2] -> gpu[0]\n",
	                "test:8: overwrites host[2] after version 1, but 2 versions are written before it");
}

static void circles_are_rejected(void **state)
{
	(void)state;
	assert_rejected(TWO
	                "rank 0\nD2H gpu[0] -> host[0] deps: host[1]>=1\nrank 1\nD2H gpu[0] -> host[1] deps: "
	                "host[0]>=1\n",
	                "test:3: deadlock: line 3 waits for host[1]>=1, which line 5 writes; line 5 waits for "
	                "host[0]>=1, which line 3 writes");
	assert_rejected(TWO "rank 0\nD2H gpu[0] -> host[0]\nREDUCE host[1] -> host[2] deps: host[1]>=1\n"
	                    "REDUCE host[2] -> host[1] deps: host[2]>=1\n",
	                "test:4: deadlock: line 4 waits for host[1]>=1, which line 5 writes; line 5 waits for "
	                "host[2]>=1, which line 4 writes");
	/* A statement behind the circle is not told, nor is all of a long circle. */
	assert_rejected(TWO "rank 0\nD2H gpu[0] -> host[9]  deps: host[0]>=1\n"
	                    "D2H gpu[0] -> host[0] deps: host[1]>=1\nrank 1 domain 0\n"
	                    "D2H gpu[0] -> host[1] deps: host[0]>=1\n",
	                "test:4: deadlock: line 4 waits for host[1]>=1, which line 6 writes; line 6 waits for "
	                "host[0]>=1, which line 4 writes");
	char text[1024], *end = text + sprintf(text, TWO "rank 0\n");
	for (int i = 0; i < 12; i++)
		end += sprintf(end, "D2H gpu[0] -> host[%d] deps: host[%d]>=1\n", i, (i + 1) % 12);
	assert_rejected(text, "host[8]>=1, which line 11 writes; and 4 more in the circle");
}

static void contributions_missing_or_double_are_named(void **state)
{
	(void)state;
	assert_rejected(TWO SUM "rank 1\nD2H gpu[0] -> host[1]\n", "rank 1's output chunk 0 is never written");
	assert_rejected(TWO "rank 0\nD2H gpu[0] -> host[0]\nH2D host[0] -> gpu[0]\n",
	                "test:4: rank 0's output chunk 0 lacks the contribution of rank 1");
	assert_rejected(TWO "rank 0\nD2H gpu[0] -> host[0]\nH2D host[0] -> gpu[0]\n" /* its deps forgotten */
	                    "rank 1\nD2H gpu[0] -> host[1]\nREDUCE host[1] -> host[0] deps: host[0]>=1\n",
	                "test:4: rank 0's output chunk 0 lacks the contribution of rank 1; it reads version 1 of "
	                "host[0], and version 2 has it: deps: host[0]>=2");
	assert_rejected(TWO "rank 0\nD2H gpu[0] -> host[0]\nREDUCE host[0] -> host[1]\nREDUCE host[0] -> host[1]\n",
	                "test:5: the contribution of rank 0 comes in twice");
	assert_rejected(
	        "program allreduce ranks 2 domains 1 chunks 2\nrank 0\nD2H gpu[0] -> host[0]\nrank 1\nD2H gpu[1] -> "
	        "host[1]\nREDUCE host[0] -> host[1] deps: host[0]>=1\n",
	        "test:6: adds chunk 0 to chunk 1");
	assert_rejected(
	        "program allgather ranks 2 domains 1 chunks 1\nrank 0\nD2H gpu[0] -> host[0]\nrank 1\nD2H gpu[0] -> "
	        "host[1]\nREDUCE host[0] -> host[1] deps: host[0]>=1\n",
	        "test:6: allgather sums nothing, and this REDUCE joins two values");
	assert_rejected(
	        "program allgather ranks 3 domains 1 chunks 1\nrank 0\nD2H gpu[0] -> host[0]\nrank 1\nH2D host[0] -> "
	        "gpu[2] deps: host[0]>=1\n",
	        "rank 0's output chunk 1 is never written");
	assert_rejected(
	        "program sendrecv ranks 2 domains 1 chunks 2\nrank 0\nD2H gpu[0] -> host[0]\nrank 1\nH2D host[0] -> "
	        "gpu[1] deps: host[0]>=1\n",
	        "rank 1's output chunk 0 is never written");
	assert_rejected(
	        "program sendrecv ranks 2 domains 1 chunks 2\nrank 0\nD2H gpu[1] -> host[0]\nrank 1\nH2D host[0] -> "
	        "gpu[0] deps: host[0]>=1\n",
	        "test:5: rank 1's output chunk 0 gets input chunk 1 instead of 0");
	assert_rejected(
	        "program gather ranks 3 domains 1 chunks 1\nrank 1\nD2H gpu[0] -> host[1]\nrank 2\nD2H gpu[0] -> "
	        "host[2]\n"
	        "rank 0\nH2D host[2] -> gpu[1] deps: host[2]>=1\nH2D host[1] -> gpu[2] deps: host[1]>=1\n",
	        "test:7: rank 0's output chunk 1 gets the contribution of rank 2, not of rank 1");
}

static void an_output_chunk_is_written_once(void **state)
{
	(void)state;
	assert_rejected(TWO SUM
	                "H2D host[1] -> gpu[0]\nrank 1\nD2H gpu[0] -> host[1]\nH2D host[1] -> gpu[0] deps: "
	                "host[1]>=2\n",
	                "test:6: rank 0's output chunk 0 is written here and in line 5");
}

static void a_read_without_version_takes_the_nearest_earlier_write(void **state)
{
	(void)state;
	struct ferry_versions versions;
	struct ferry_program *program =
	        program_of("program sendrecv ranks 2 domains 1 chunks 2\nrank 0\nD2H gpu[0] -> host[0]\n"
	                   "REDUCE host[0] -> host[1]\nD2H gpu[1] -> host[0]\nREDUCE host[0] -> host[2]\n");
	assert_int_equal(ferry_versions_build(program, &versions), ferrySuccess);
	assert_int_equal(versions.values[versions.uses[1].reads].version, 1);
	assert_int_equal(versions.values[versions.uses[3].reads].version, 2);
	assert_int_equal(versions.values[versions.uses[1].writes].chunk, 0);
	assert_int_equal(versions.values[versions.uses[3].writes].chunk, 1);
	ferry_versions_free(&versions);
	ferry_program_free(program);
}

static void an_older_version_stays_readable_after_an_overwrite(void **state)
{
	(void)state;
	assert_right(
	        "program sendrecv ranks 2 domains 1 chunks 2\nrank 0\nD2H gpu[0] -> host[0]\nD2H gpu[1] -> host[0]\n"
	        "rank 1\nH2D host[0] -> gpu[0] deps: host[0]>=1\nH2D host[0] -> gpu[1] deps: host[0]>=2\n");
}

static void reduces_that_require_the_same_version_commute(void **state)
{
	(void)state;
	assert_right(
	        "program allreduce ranks 3 domains 1 chunks 1\nrank 0\nD2H gpu[0] -> host[0]\nH2D host[0] -> gpu[0] "
	        "deps: host[0]>=3\nrank 1\nD2H gpu[0] -> host[1]\nREDUCE host[1] -> host[0] deps: host[0]>=1\nH2D "
	        "host[0] -> gpu[0] deps: host[0]>=3\nrank 2\nD2H gpu[0] -> host[2]\nREDUCE host[2] -> host[0] deps: "
	        "host[0]>=1\nH2D host[0] -> gpu[0] deps: host[0]>=3\n");
}

static void what_a_rank_owns_already_needs_no_statement(void **state)
{
	(void)state;
	assert_right("program allgather ranks 1 domains 1 chunks 3\n");
	assert_right("program scatter ranks 1 domains 1 chunks 2 root 0\n");
	assert_right("program alltoallv ranks 1 domains 1 chunks 1\n");
	assert_right(
	        "program sendrecv ranks 2 domains 1 chunks 1\nrank 0\nD2H gpu[0] -> host[0]\nrank 1\nH2D host[0] -> "
	        "gpu[0] deps: "
	        "host[0]>=1\n");
	assert_right("program allreduce ranks 1 domains 1 chunks 2\n"); /* the sum over one rank */
	assert_right("program reducescatter ranks 1 domains 1 chunks 1\n");
	assert_rejected(TWO, "rank 0's output chunk 0 is never written");
}

/* It is right for any other sum, so the checker, which knows no factor, lets it pass. */
static void what_no_reduce_has_scaled_is_no_premulsum(void **state)
{
	(void)state;
	static const char *const programs[] = {
	        "program allreduce ranks 1 domains 1 chunks 1\n",
	        "program allreduce ranks 1 domains 1 chunks 1\nrank 0\nD2H gpu[0] -> host[0]\nH2D host[0] -> gpu[0]\n"};
	for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
		struct ferry_compile_options options = {.count = 4, .type = ferryFloat32, .redop = ferryNumOps};
		struct ferry_program *program = program_of(programs[i]);
		struct ferry_plan *plan;
		options.staging[0] = 1 << 20;
		assert_int_equal(ferry_program_compile(program, &options, &plan), ferryProgramError);
		assert_non_null(strstr(ferry_last_message(), "premulsum scales in a REDUCE"));
		options.redop = ferrySum;
		assert_int_equal(ferry_program_compile(program, &options, &plan), ferrySuccess);
		free(plan);
		ferry_program_free(program);
	}
}

static void a_dependency_on_what_is_not_read_orders_only(void **state)
{
	(void)state;
	assert_right(
	        "program sendrecv ranks 2 domains 1 chunks 2\nrank 0\nD2H gpu[0] -> host[0] deps: host[1]>=1\nD2H "
	        "gpu[1] -> host[1]\nrank 1\nH2D host[0] -> gpu[0] deps: host[0]>=1\nH2D host[1] -> gpu[1] deps: "
	        "host[0]>=1, host[1]>=1\n");
}

/* Chunks of one buffer cover it, in order, without overlap, and are cut between cache lines. */
static void chunks_cover_a_block_exactly(void **state)
{
	(void)state;
	static const uint64_t counts[] = {0, 1, 7, 15, 16, 17, 64, 1000, 4097, 1ull << 33};
	static const size_t elements[] = {1, 2, 4, 8};
	for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
		for (size_t e = 0; e < 4; e++)
			for (uint32_t nchunks = 1; nchunks <= 9; nchunks++) {
				uint64_t next = 0, offset, length;
				for (uint32_t chunk = 0; chunk < nchunks; chunk++) {
					ferry_chunk_span(counts[c], elements[e], nchunks, chunk, &offset, &length);
					assert_int_equal(offset, next);
					assert_true(offset % 64 == 0 || offset == counts[c] * elements[e]);
					assert_int_equal(length % elements[e], 0);
					next = offset + length;
				}
				assert_int_equal(next, counts[c] * elements[e]);
			}
}

/* ---- size ---- */

/* One rank's chunk goes up `count` times, the last time for a reason; for free(). */
static char *uploads(uint32_t count)
{
	char *text = NULL;
	size_t bytes = 0;
	FILE *out = open_memstream(&text, &bytes);
	assert_non_null(out);
	fprintf(out, "program allreduce ranks 1 domains 1 chunks 1\nrank 0\n");
	for (uint32_t i = 0; i < count; i++)
		fprintf(out, "D2H gpu[0] -> host[0]\n");
	fprintf(out, "H2D host[0] -> gpu[0]\n");
	assert_int_equal(fclose(out), 0);
	return text;
}

static void a_program_of_more_instructions_than_an_arena_has_room_for_is_rejected(void **state)
{
	(void)state;
	char *text = uploads(FERRY_MOST_COUNTERS - 1);
	struct ferry_program *program = program_of(text);
	assert_int_equal(ferry_program_check(program), ferrySuccess);
	ferry_program_free(program);
	free(text);
	program = program_of(text = uploads(FERRY_MOST_COUNTERS));
	assert_int_equal(ferry_program_check(program), ferryProgramError);
	assert_non_null(strstr(ferry_last_message(), "131073 instructions in domain 0; at most 131072"));
	ferry_program_free(program);
	free(text);
}

/* A router puts memory behind as many as a plan says. */
static void a_plan_has_no_more_counters_than_instructions(void **state)
{
	(void)state;
	static const uint8_t rank_domain[2] = {0, 0};
	struct ferry_plan_room room = {.nranks = 2,
	                               .ndomains = 1,
	                               .rank_domain = rank_domain,
	                               .staging = {1 << 20},
	                               .counters = {FERRY_MOST_COUNTERS}};
	struct ferry_compile_options options = {
	        .count = 100, .type = ferryFloat32, .redop = ferrySum, .staging = {1 << 20}};
	struct ferry_program *program = program_of(figure3);
	struct ferry_plan *plan;
	assert_int_equal(ferry_program_compile(program, &options, &plan), ferrySuccess);
	assert_int_equal(plan->counters[0], plan->ninstrs);
	assert_int_equal(ferry_plan_validate(plan, plan->bytes, &room), ferrySuccess);
	plan->counters[0]++;
	plan->hash = ferry_plan_hash(plan);
	assert_int_equal(ferry_plan_validate(plan, plan->bytes, &room), ferryProgramError);
	assert_non_null(strstr(ferry_last_message(), "11 counters in domain 0 for 10 instructions"));
	free(plan);
	ferry_program_free(program);
}

/*
 * Seconds of CPU to compile, and to validate as a router does, so many readers of what one rank has sent up: the least
 * of three times.
 */
static double seconds_for(uint32_t count)
{
	static const uint8_t rank_domain[1] = {0};
	struct ferry_plan_room room = {.nranks = 1,
	                               .ndomains = 1,
	                               .rank_domain = rank_domain,
	                               .staging = {UINT64_MAX},
	                               .counters = {FERRY_MOST_COUNTERS}};
	char *text = NULL;
	size_t bytes = 0;
	double least = 1e9;
	struct ferry_compile_options options = {
	        .count = 100, .type = ferryFloat32, .redop = ferrySum, .staging = {UINT64_MAX}};
	FILE *out = open_memstream(&text, &bytes);
	assert_non_null(out);
	fprintf(out, "program allreduce ranks 1 domains 1 chunks 1\nrank 0\nD2H gpu[0] -> host[0]\n");
	for (uint32_t i = 1; i <= count; i++) /* one value that all of these read */
		fprintf(out, "REDUCE host[0] -> host[%u]\n", i);
	for (uint32_t i = 1; i <= count; i++) /* values that nothing near has written */
		fprintf(out, "REDUCE host[%u] -> host[%u]\n", i, count + i);
	fprintf(out, "H2D host[1] -> gpu[0]\n");
	assert_int_equal(fclose(out), 0);
	struct ferry_program *program = program_of(text);
	for (int i = 0; i < 3; i++) {
		struct ferry_plan *plan;
		clock_t before = clock();
		assert_int_equal(ferry_program_compile(program, &options, &plan), ferrySuccess);
		assert_int_equal(ferry_plan_validate(plan, plan->bytes, &room), ferrySuccess);
		double took = (double)(clock() - before) / CLOCKS_PER_SEC;
		least = took < least ? took : least;
		free(plan);
	}
	ferry_program_free(program);
	free(text);
	return least;
}

static void eight_times_the_statements_take_about_eight_times_as_long(void **state)
{
	(void)state;
	double few = seconds_for(4000), many = seconds_for(32000);
	if (many > 24 * few)
		fail_msg("%.4f s for 8,000 statements, %.4f s for 64,000", few, many);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(places_and_chunks_out_of_bounds_are_named),
	        cmocka_unit_test(instructions_where_they_cannot_run_are_rejected),
	        cmocka_unit_test(parts_of_uneven_blocks_go_by_relays),
	        cmocka_unit_test(puts_out_of_bounds_or_to_oneself_are_rejected),
	        cmocka_unit_test(what_is_forwarded_must_come),
	        cmocka_unit_test(what_a_put_brings_is_known),
	        cmocka_unit_test(versions_that_never_exist_are_named),
	        cmocka_unit_test(writers_that_nothing_orders_are_rejected),
	        cmocka_unit_test(circles_are_rejected),
	        cmocka_unit_test(contributions_missing_or_double_are_named),
	        cmocka_unit_test(an_output_chunk_is_written_once),
	        cmocka_unit_test(a_read_without_version_takes_the_nearest_earlier_write),
	        cmocka_unit_test(an_older_version_stays_readable_after_an_overwrite),
	        cmocka_unit_test(reduces_that_require_the_same_version_commute),
	        cmocka_unit_test(what_a_rank_owns_already_needs_no_statement),
	        cmocka_unit_test(what_no_reduce_has_scaled_is_no_premulsum),
	        cmocka_unit_test(a_dependency_on_what_is_not_read_orders_only),
	        cmocka_unit_test(a_program_of_more_instructions_than_an_arena_has_room_for_is_rejected),
	        cmocka_unit_test(a_plan_has_no_more_counters_than_instructions),
	        cmocka_unit_test(eight_times_the_statements_take_about_eight_times_as_long),
	        cmocka_unit_test(chunks_cover_a_block_exactly),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
