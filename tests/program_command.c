/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of the ferryprog command: exit status, verdicts with line and reason, and output that other commands can
 * read.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/program_cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/*
 * Runs `ferryprog arguments` in a shell with `input` on standard input; its output, both kinds, in *output for free().
 */
static int ferryprog(const char *arguments, const char *input, char **output)
{
	char command[512], file[] = "/tmp/ferryprog-test-XXXXXX";
	size_t bytes = 0;
	int descriptor = mkstemp(file);
	assert_true(descriptor >= 0);
	assert_int_equal(write(descriptor, input, strlen(input)), strlen(input));
	close(descriptor);
	snprintf(command, sizeof command, "%s %s <%s 2>&1", FERRYPROG, arguments, file);
	FILE *pipe = popen(command, "r");
	assert_non_null(pipe);
	*output = NULL;
	if (getdelim(output, &bytes, '\0', pipe) < 0 && *output)
		**output = '\0';
	int status = pclose(pipe);
	unlink(file);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void assert_says(const char *arguments, const char *input, int code, const char *expected)
{
	char *output;
	int got = ferryprog(arguments, input, &output);
	if (got != code || !output || !strstr(output, expected))
		fail_msg("ferryprog %s: exits with %d instead of %d, or lacks \"%s\":\n%s", arguments, got, code,
		         expected, output ? output : "");
	free(output);
}

static void check_says_right_and_exits_with_0(void **state)
{
	(void)state;
	assert_says("check -", figure3, 0, "<stdin>: right: allreduce of 2 ranks in 1 domain, 2 chunks, 10 statements");
	assert_says("check - --ranks 2 --domains 1", figure3, 0, "right");
}

static void check_names_line_and_reason_and_exits_with_1(void **state)
{
	(void)state;
	assert_says("check -", "# Rank 0\nD2H gpu[0] -> host[0]\nH2D host[3] -> gpu[0]\n", 1,
	            "<stdin>:3: reads host[3] but names no version, and nothing earlier in rank 0 writes it");
	assert_says("check -", "# Rank 0\nD2H gpu[0] => host[0]\n", 1, "<stdin>:2:12: expected '->', found \"=>\"");
	assert_says("check - --ranks 3", "program allgather ranks 1 domains 1 chunks 1\n", 1,
	            "it is for 1 rank in 1 domain, not for 3 in 1");
	assert_says("check /nonexistent/file", "", 1, "/nonexistent/file: No such file or directory");
	assert_says("check /", "", 1, "/: Is a directory");
}

static void check_warns_about_work_for_nothing(void **state)
{
	(void)state;
	assert_says("check -",
	            "program sendrecv ranks 2 domains 1 chunks 1\nrank 0\nD2H gpu[0] -> host[0]\nREDUCE host[0] -> "
	            "host[4]\n"
	            "rank 1\nH2D host[0] -> gpu[0] deps: host[0]>=1\n",
	            0, "<stdin>:4: warning: version 1 of host[4] reaches no output");
}

static void a_wrong_command_line_exits_with_64(void **state)
{
	(void)state;
	assert_says("", "", 64, "Usage");
	assert_says("prove x", "", 64, "\"prove\" is no command: check, show or synth");
	assert_says("synth allreduce", "", 64, "for how many ranks?");
	assert_says("synth allsum -n 2", "", 64, "\"allsum\" is no collective");
	assert_says("synth allreduce -n 65", "", 64, "--ranks: \"65\" is not a number from 1 to 64");
	assert_says("synth broadcast -n 2 -r 5", "", 64, "--root 5: the last of 2 ranks is 1");
	assert_says("synth sendrecv -n 3", "", 64, "between 2 ranks, not 3");
	assert_says("synth allreduce --place 0,8", "", 64, "--place: \"8\"");
	assert_says("synth allreduce --place 0,1 -n 4", "", 64, "--ranks 4: --place has 2");
	assert_says("synth allreduce -d 2 --place 0,3", "", 64, "--domains 2: --place has a rank in domain 3");
	assert_says("synth allreduce -n 2 -c broadcast", "", 64, "the collective is its operand, \"allreduce\"");
	assert_says("synth allreduce -n 2 --dot", "", 64, "synth: --dot is an option of show");
	assert_says("check - --count 5", figure3, 64, "check: --count is an option of show");
	assert_says("check - --domains 2", figure3, 64, "--domains 2: for how many ranks?");
	assert_says("check - -c broadcast", "program allgather ranks 1 domains 1 chunks 1\n", 1,
	            "it is of allgather, not of broadcast");
	assert_says("check - --root 1", "program broadcast ranks 2 domains 1 chunks 1 root 0\n", 1,
	            "its root is 0, not 1");
	assert_says("synth allgather -n 2 --root 0", "", 64, "synth: --root 0: allgather has no root");
	assert_says("check - -r 1", figure3, 64, "<stdin>: --root 1: allreduce has no root");
	assert_says("check - -c alltoall -r 1", "rank 0\nrank 1\n", 64, "<stdin>: --root 1: alltoall has no root");
	assert_says("show - --op max", "program allgather ranks 1 domains 1 chunks 1\n", 64,
	            "<stdin>: --op max: allgather reduces nothing");
	assert_says("show - --op max", figure3, 0, "");
	assert_says("show - --type f128", figure3, 64, "\"f128\" is no element type");
	assert_says("show - --slice 100", figure3, 64, "100 is no multiple of 64");
}

static void what_synth_prints_passes_the_check(void **state)
{
	(void)state;
	static const char *const requests[] = {"synth allreduce --ranks 8 --domains 2",
	                                       "synth broadcast --place 0,0,1,1,1 --root "
	                                       "2", "synth alltoallv -n 5 -d 3",
	                                       "synth sendrecv -n 2", "synth reduce -n 64 -d 8 -r 63"};
	for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
		char *text;
		assert_int_equal(ferryprog(requests[i], "", &text), 0);
		assert_says("check -", text, 0, "right");
		free(text);
	}
}

static void show_prints_instructions_and_bytes_per_link(void **state)
{
	(void)state;
	char *text;
	assert_says("show - --count 1024", figure3, 0, "rank 0        up 4096  down 4096");
	assert_says("show - --count 1024", figure3, 0, "domain 0       REDUCE reads 8192  writes 4096");
	assert_says("show - --count 1024 --slice 1024 --window 3", figure3, 0,
	            "slices of 1024 bytes, windows of 3 slots");
	assert_int_equal(ferryprog("synth allgather -n 4 -d 2", "", &text), 0);
	assert_says("show - --count 1000", text, 0, "domain 0 -> 1  H2H 8000  direct 0");
	assert_says("check - -n 4", text, 0, "4 ranks in 2 domains"); /* how many domains nobody has said */
	assert_says("check - -n 4 -d 1", text, 1, "not for 4 in 1");
	free(text);
	assert_int_equal(ferryprog("synth alltoallv -n 3", "", &text), 0);
	assert_says("show -", text, 0, "bytes per link are known at the call");
	free(text);
	assert_says("show - --staging 64", figure3, 1, "do not fit");
}

static void the_graph_has_an_arrow_per_edge(void **state)
{
	(void)state;
	assert_says("show - --dot", figure3, 0, "digraph plan {");
	assert_says("show - --dot", figure3, 0, "i0 -> i4;");
	assert_says("show - --dot", figure3, 0, "i4 -> i0 [style=dashed");
}

static void help_shows_examples(void **state)
{
	(void)state;
	assert_says("--help", "", 0, "ferryprog synth allreduce --ranks 8 --domains 2");
	assert_says("--version", "", 0, "ferryprog ");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(check_says_right_and_exits_with_0),
	        cmocka_unit_test(check_names_line_and_reason_and_exits_with_1),
	        cmocka_unit_test(check_warns_about_work_for_nothing),
	        cmocka_unit_test(a_wrong_command_line_exits_with_64),
	        cmocka_unit_test(what_synth_prints_passes_the_check),
	        cmocka_unit_test(show_prints_instructions_and_bytes_per_link),
	        cmocka_unit_test(the_graph_has_an_arrow_per_edge),
	        cmocka_unit_test(help_shows_examples),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
