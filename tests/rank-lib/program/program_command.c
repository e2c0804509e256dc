/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of the ferryprog command: exit status, verdicts with line and reason, and output that other commands can
 * read.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/rank-lib/program/program_cases.h"

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
	assert_says("check -", figure3, 0,
	            "<stdin>: right: allreduce of 2 ranks in 1 domain, 2 chunks, 10 statements; ends with any window; "
	            "runs with FERRY_STAGING=8K or more\n");
	assert_says("check -", "program allreduce ranks 1 domains 1 chunks 1\nrank 0\nD2H gpu[0] -> host[0]\n"
	            "H2D host[0] -> gpu[0]\n", 0, "allreduce of 1 rank in 1 domain, 1 chunk, 2 statements; ");
	assert_says("check -", "program allgather ranks 1 domains 1 chunks 1\n", 0, "1 chunk, 0 statements; ");
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
	assert_says("check /dev/zero", "", 1, "/dev/zero: more than 64 MiB: no program");
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
	assert_says("prove x", "", 64, "\"prove\" is no command: check, show, draw, synth or rates");
	assert_says("synth allreduce", "", 64, "for how many ranks?");
	assert_says("synth allsum -n 2", "", 64, "\"allsum\" is no collective");
	assert_says("synth allreduce -n 65", "", 64, "--ranks: \"65\" is not a number from 1 to 64");
	assert_says("synth broadcast -n 2 -r 5", "", 64, "--root 5: the last of 2 ranks is 1");
	assert_says("synth sendrecv -n 3", "", 64, "between 2 ranks, not 3");
	assert_says("synth allreduce --place 0,8", "", 64, "--place: \"8\"");
	assert_says("synth allreduce --place 0,1 -n 4", "", 64, "--ranks 4: --place has 2");
	assert_says("synth allreduce -d 2 --place 0,3", "", 64, "--domains 2: --place has a rank in domain 3");
	assert_says("synth allreduce -n 2 -c broadcast", "", 64, "the collective is its operand, \"allreduce\"");
	assert_says("synth allreduce -n 2 --count 4", "", 64, "synth: --count is an option of show");
	assert_says("synth allgather -n 2 --fabric ring", "", 64, "\"ring\" is no fabric: host or peer");
	assert_says("synth allgather -n 2 --fabric peer", "", 64, "over which links? --links SPEC");
	assert_says("synth allgather -n 2 --links peer=5", "", 64, "--links is an option of --fabric=peer");
	assert_says("check - --fabric peer", figure3, 64, "check: --fabric is an option of synth");
	assert_says("synth allgather --fabric peer --links peer=5", "", 64, "for how many ranks?");
	assert_says("synth allgather --fabric peer --links links=dgx2:5", "", 64, "--links=links=dgx2:5: expected");
	assert_says("synth allgather -n 9 --fabric peer --links links=dgx1v:5", "", 1, "rank 8 on device 8");
	assert_says("synth reduce --fabric peer --links links=dgx1v:5,devices=0,1,6", "", 64, "do not connect");
	assert_says("synth allreduce --fabric peer --links links=dgx1v:5,devices=0,1,6", "", 64, "do not connect");
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
	                                       "synth sendrecv -n 2", "synth reduce -n 64 -d 8 -r 63",
	                                       "synth allgather --fabric peer --links links=dgx1v:25",
	                                       "synth broadcast -r 2 --fabric peer --links peer@0-1=5 -n 4 -d 2",
	                                       "synth alltoall --fabric=peer --links=links=pcie2:12:6 -n 5"};
	for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
		char *text;
		assert_int_equal(ferryprog(requests[i], "", &text), 0);
		assert_says("check -", text, 0, "right");
		free(text);
	}
}

static void rates_are_printed_beside_the_optimum(void **state)
{
	(void)state;
	assert_says("rates links=dgx1v:25,devices=0,2,3", "", 0,
	            "| Broadcast      |       75 |       75 | 1.000 |       50 |       75 |\n"
	            "| AllGather      |    112.5 |    112.5 | 1.000 |       75 |       75 |\n"
	            "| AllReduce      |     62.5 |     62.5 | 1.000 |     37.5 |          |\n"
	            "AllReduce in 5 trees.\n");
	assert_says("rates links=dgx1v:25,devices=0,1,6,7", "", 64, "do not connect the 4 ranks");
	assert_says("rates peer=5", "", 64, "for how many ranks?");
	assert_says("rates links=dgx2:5", "", 1, "rates=links=dgx2:5: expected");
	assert_says("rates /nowhere.xml,devices=0", "", 1, "/nowhere.xml: ");
	assert_says("rates links=mesh:5 -n 2 --fabric peer", "", 64, "--fabric is an option of synth");
}

static void synth_writes_pushes_over_the_links_named_and_how_long_they_take(void **state)
{
	(void)state;
	assert_says("synth allgather --fabric peer --links links=nvswitch:450,devices=4,7", "", 0,
	            "program allgather  ranks 2  domains 1  chunks 1\n"
	            "rank 0\n"
	            "  PUT    gpu[0] -> gpu@1[0]\n"
	            "rank 1\n"
	            "  PUT    gpu[0] -> gpu@0[1]\n"
	            "# its PUTs take at least 0.002222 ns per byte of a block\n");
}

static void show_prints_instructions_and_bytes_per_link(void **state)
{
	(void)state;
	char *text;
	assert_says("show - --count 1024", figure3, 0, "rank 0        up 4096  down 4096");
	assert_says("show - --count 1024", figure3, 0, "domain 0       REDUCE reads 8192  writes 4096");
	assert_says("show - --count 1024 --slice 1024 --window 3", figure3, 0,
	            "slices of 1024 bytes; a version of a chunk of the host has a window\nof 3 slots, a slice each.\n"
	            "Staging in domain 0: 18432 bytes, 6 windows of 3072.\n");
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

static void show_has_the_authors_names_and_lines(void **state)
{
	(void)state;
	char *text;
	assert_says("show - --count 1024", figure3, 0, "REDUCE host[0] + host[2]:1 -> host[2]:2");
	assert_says("show - --count 1024", figure3, 0,
	            "    0      2  rank   0          2048      1  D2H    gpu[0] -> host[0] ");
	assert_says("show -", figure3, 0,
	            "allreduce of 1048576 elements of f32, sum: 2 ranks in 1 domain, a block is 2 chunks");
	assert_int_equal(ferryprog("synth allreduce -n 4 -d 2", "", &text), 0);
	assert_says("show -", text, 0, "host[0] + host[1] + host[3] -> host[4]:2  (on the way: host[2]:2)");
	free(text);
}

static const char relay[] = "program broadcast ranks 3 domains 1 chunks 1 root 0\n"
                            "rank 0\nPUT gpu[0] -> gpu@1[0]\n"
                            "rank 1\nPUT gpu[0] -> gpu@2[0] deps: gpu[0]>=1\n";

static void show_has_puts_and_what_waits_for_them(void **state)
{
	(void)state;
	assert_says("show - --count 256K", relay, 0,
	            "    0      3  rank   0       1048576     64  PUT    gpu[0] -> gpu@1[0]   -\n"
	            "    1      3  rank   1       1048576     64  WAIT_PUT gpu[0], from rank 0  0\n"
	            "    2      5  rank   1       1048576     64  PUT    gpu[0] -> gpu@2[0]   0\n"
	            "    3      5  rank   2       1048576     64  WAIT_PUT gpu[0], from rank 1  2\n");
	assert_says("show - --count 256K", relay, 0, "  rank 0 -> 1  PUT 1048576\n  rank 1 -> 2  PUT 1048576\n");
	assert_says("check -", relay, 0, "<stdin>: right: broadcast of 3 ranks in 1 domain, 1 chunk, 2 statements");
	assert_says("check -", "program broadcast ranks 2 domains 1 chunks 1\nrank 1\nPUT gpu[0] -> gpu@0[0]\n", 1,
	            "<stdin>:3: gpu[0]: the send buffer of rank 1 has 0 chunks");
}

/* ---- pictures ---- */

/* One tag, from behind its '<': its name, where it ends, and whether it opens, closes or does both. */
struct tag {
	char name[32];
	bool closes, opens;
};

static const char *read_tag(const char *at, struct tag *tag)
{
	size_t length;
	tag->closes = *at == '/';
	at += tag->closes;
	length = strspn(at, "abcdefghijklmnopqrstuvwxyz");
	if (!length || length >= sizeof tag->name)
		return NULL;
	snprintf(tag->name, sizeof tag->name, "%.*s", (int)length, at);
	for (at += length; *at && *at != '>' && *at != '/';) {
		at += strspn(at, " ");
		size_t name = strspn(at, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-");
		if (!name)
			break;
		at += name;
		size_t value = !strncmp(at, "=\"", 2) ? strcspn(at + 2, "\"<") : 0;
		if (strncmp(at, "=\"", 2) || at[2 + value] != '"')
			return NULL;
		at += 3 + value;
	}
	tag->opens = !tag->closes && *at != '/';
	tag->closes |= *at == '/';
	at += *at == '/';
	return *at == '>' ? at + 1 : NULL;
}

/* Tags that close what was opened last, quoted attributes, no bare '&': enough for what a printf can get wrong. */
static const char *why_not_xml(const char *text)
{
	static char open[16][32];
	int depth = 0, roots = 0;
	struct tag tag;
	for (const char *at = text; *at;) {
		if (*at == '&' && strspn(at + 2, "0123456789") && at[2 + strspn(at + 2, "0123456789")] != ';')
			return at;
		if (*at != '<') {
			if (*at == '&' && at[1] != '#')
				return at;
			if (!depth && !strchr(" \n", *at))
				return at;
			at++;
			continue;
		}
		const char *end = read_tag(at + 1, &tag);
		if (!end || (tag.opens && depth == 16))
			return at;
		roots += !depth;
		if (tag.opens)
			strcpy(open[depth++], tag.name);
		else if (at[1] == '/' && (!depth || strcmp(open[--depth], tag.name)))
			return at;
		at = end;
	}
	return depth || roots != 1 ? "what was opened is not closed, or more than one thing was" : NULL;
}

/* Whether every place that the program's text names is in what a command made of it. */
static void assert_named(const char *text, const char *output)
{
	for (const char *at = text; (at = strpbrk(at, "gh#"));) {
		size_t length = strcspn(at, "]") + 1;
		char name[32];
		if (*at == '#') { /* the text is a comment */
			at += strcspn(at, "\n");
			continue;
		}
		if (strncmp(at, "gpu[", 4) && strncmp(at, "host[", 5) && strncmp(at, "host@", 5)) {
			at++;
			continue;
		}
		snprintf(name, sizeof name, "%.*s", (int)length, at);
		if (!strstr(output, name))
			fail_msg("%s is not in\n%s\nwhich was made of\n%s", name, output, text);
		at += length;
	}
}

static void assert_drawn(const char *text)
{
	char *picture, *shown;
	if (ferryprog("draw -", text, &picture))
		fail_msg("draw fails: %s\n%s", picture, text);
	const char *wrong = why_not_xml(picture);
	if (wrong)
		fail_msg("no XML at \"%.60s\":\n%s", wrong, text);
	assert_named(text, picture);
	assert_int_equal(ferryprog("show -", text, &shown), 0);
	assert_named(text, shown);
	free(picture);
	free(shown);
}

static void draw_the_manuals(const char *text, void *context)
{
	(void)context;
	assert_drawn(text);
}

static void every_program_is_drawn_and_shown_with_its_authors_names(void **state)
{
	(void)state;
	static const char *const topologies[] = {"-n 1", "-n 2", "-n 8 -d 2", "--place 0,2,2,0,1"};
	for (int collective = 0; collective < FERRY_NUM_COLLECTIVES; collective++)
		for (size_t i = 0; i < sizeof topologies / sizeof *topologies; i++) {
			char arguments[128], *text;
			if (collective == FERRY_SENDRECV && i != 1)
				continue;
			snprintf(arguments, sizeof arguments, "synth %s %s",
			         ferry_collective_name((enum ferry_collective)collective), topologies[i]);
			assert_int_equal(ferryprog(arguments, "", &text), 0);
			assert_drawn(text);
			free(text);
		}
	assert_drawn(figure3);
	assert_true(for_each_manual_program(draw_the_manuals, NULL) > 3);
}

static int lines_with(const char *text, const char *words)
{
	int count = 0;
	for (; (text = strstr(text, words)); text++)
		count++;
	return count;
}

static void a_picture_has_lanes_domains_versions_and_the_repeat(void **state)
{
	(void)state;
	char *text, *picture;
	assert_int_equal(ferryprog("draw -", figure3, &picture), 0);
	assert_int_equal(lines_with(picture, ">domain 0<"), 1);
	assert_int_equal(lines_with(picture, ">domain "), 1);
	assert_int_equal(lines_with(picture, ">rank "), 4); /* two ranks, up and down */
	assert_int_equal(lines_with(picture, ">router "), 1);
	assert_int_equal(lines_with(picture, ">host[2]:1 + host[0]<"), 1);
	assert_int_equal(lines_with(picture, "\342\206\222 host[2]:2<"), 1);
	assert_int_equal(lines_with(picture, "class=\"arrow\""), 8); /* two for each sum, one for each H2D */
	assert_int_equal(lines_with(picture, "again for each slice"), 1);
	free(picture);
	assert_int_equal(ferryprog("draw -", relay, &picture), 0);
	assert_int_equal(lines_with(picture, "class=\"arrow\""), 1); /* from what brings to what passes on */
	assert_int_equal(lines_with(picture, "\342\206\221 PUT<"), 2);
	assert_int_equal(lines_with(picture, ">gpu[0] \342\206\222 gpu@2[0]<"), 1);
	free(picture);
	assert_int_equal(ferryprog("synth allreduce -n 8 -d 2", "", &text), 0);
	assert_int_equal(ferryprog("draw -", text, &picture), 0);
	assert_int_equal(lines_with(picture, ">domain "), 2);
	assert_int_equal(lines_with(picture, ">rank "), 16);
	assert_int_equal(lines_with(picture, ">router "), 2);
	assert_int_equal(lines_with(picture, ">REDUCE<"), 6); /* a chain is one */
	free(picture);
	free(text);
}

/* Exit code, message, and what is in the file then. */
static void a_picture_goes_into_a_file_that_a_wrong_program_leaves_alone(void **state)
{
	(void)state;
	char arguments[256], file[] = "/tmp/ferryprog <&\"draw-XXXXXX", text[64] = "";
	int descriptor = mkstemp(file);
	assert_true(descriptor >= 0);
	assert_int_equal(write(descriptor, "before", 6), 6);
	snprintf(arguments, sizeof arguments, "draw - -o '%s'", file);
	assert_says(arguments, "rank 0\nD2H gpu[0] -> host[0]\nH2D host[3] -> gpu[0]\n", 1,
	            "<stdin>:3: reads host[3] but names no version");
	assert_int_equal(pread(descriptor, text, sizeof text - 1, 0), 6);
	assert_string_equal(text, "before");
	assert_says(arguments, figure3, 0, "");
	assert_true(pread(descriptor, text, sizeof text - 1, 0) > 5);
	assert_int_equal(strncmp(text, "<svg ", 5), 0);
	snprintf(arguments, sizeof arguments, "draw '%s'", file); /* a picture is no program, and its name no markup */
	assert_says(arguments, "", 1, "expected program, rank, D2H");
	assert_int_equal(ftruncate(descriptor, 0), 0);
	assert_int_equal(pwrite(descriptor, figure3, strlen(figure3), 0), strlen(figure3));
	assert_says(arguments, "", 0, "&#60;&#38;&#34;draw-");
	assert_says("draw - --output /nonexistent/x.svg", figure3, 1, "/nonexistent/x.svg: No such file");
	assert_says("draw - -o a --output b", figure3, 64, "one output, not both \"b\" and \"a\"");
	assert_says("show - --output b", figure3, 64, "show: --output is an option of draw");
	assert_says("draw - --count 5", figure3, 64, "draw: --count is an option of show");
	close(descriptor);
	unlink(file);
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
	        cmocka_unit_test(rates_are_printed_beside_the_optimum),
	        cmocka_unit_test(synth_writes_pushes_over_the_links_named_and_how_long_they_take),
	        cmocka_unit_test(show_prints_instructions_and_bytes_per_link),
	        cmocka_unit_test(show_has_the_authors_names_and_lines),
	        cmocka_unit_test(show_has_puts_and_what_waits_for_them),
	        cmocka_unit_test(every_program_is_drawn_and_shown_with_its_authors_names),
	        cmocka_unit_test(a_picture_has_lanes_domains_versions_and_the_repeat),
	        cmocka_unit_test(a_picture_goes_into_a_file_that_a_wrong_program_leaves_alone),
	        cmocka_unit_test(help_shows_examples),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
