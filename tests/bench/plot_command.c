/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of the ferry-plot command: what ferry-perf measured beside Ferry is drawn beside it. Skipped where Python
 * has no matplotlib. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char directory[] = "/tmp/ferry-plot-test-XXXXXX";

/* Draws rows of two sizes, each with `peer` among its fields; the exit code, and the figure (or the complaint) in text.
 */
static int draw(const char *peer, char *text, size_t bytes)
{
	char command[512], name[64];
	snprintf(name, sizeof name, "%s/rows.json", directory);
	FILE *file = fopen(name, "w");
	assert_non_null(file);
	fprintf(file, "[{\"bytes\": 1024, \"algbw\": 1, %s}, {\"bytes\": 4096, \"algbw\": 2, %s}]", peer, peer);
	fclose(file);
	snprintf(command, sizeof command, "cd %s && { %s rows.json 2>&1 >/dev/null && cat rows.svg; }", directory,
	         FERRY_PLOT);
	FILE *pipe = popen(command, "r");
	assert_non_null(pipe);
	size_t got = 0;
	for (size_t part = 1; part && got < bytes - 1; got += part)
		part = fread(text + got, 1, bytes - 1 - got, pipe);
	text[got] = '\0';
	int status = pclose(pipe);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void mpi_is_drawn_like_nccl(void **state)
{
	(void)state;
	static char figure[1 << 20];
	if (system("python3 -c 'import matplotlib' 2>/dev/null"))
		skip();
	assert_int_equal(draw("\"peer\": \"mpi\", \"peer_time_us\": 2, \"ratio\": 1", figure, sizeof figure), 0);
	assert_non_null(strstr(figure, ">MPI<"));
	assert_null(strstr(figure, ">NCCL"));
	assert_null(strstr(figure, "PolyCollection_")); /* no bands */
	assert_int_equal(draw("\"peer\": \"mpi\", \"peer_time_us\": 2, \"peer_time_us_low_quartile\": 1, "
	                      "\"peer_time_us_high_quartile\": 3",
	                      figure, sizeof figure),
	                 0);
	assert_non_null(strstr(figure, "PolyCollection_"));
	assert_int_equal(draw("\"nccl\": {\"algbw\": 1, \"settings\": []}", figure, sizeof figure), 0);
	assert_null(strstr(figure, ">MPI<"));
	assert_non_null(strstr(figure, ">NCCL, best"));
	assert_int_equal(draw("\"peer\": \"mpi\", \"peer_time_us\": 0", figure, sizeof figure), 1);
	assert_non_null(strstr(figure, "row 1: \"peer_time_us\" is 0"));
}

static void the_time_of_a_call_is_drawn_too_and_the_legend_names_ranks_and_machine(void **state)
{
	(void)state;
	static char figure[1 << 20];
	if (system("python3 -c 'import matplotlib' 2>/dev/null"))
		skip();
	/* An array of rows says nothing of the machine; what ferry-perf writes around it does. */
	assert_int_equal(draw("\"ranks\": 4, \"time_us\": 3, \"time_us_low_quartile\": 2, \"time_us_high_quartile\": 5",
	                      figure, sizeof figure),
	                 0);
	assert_non_null(strstr(figure, ">time of a call (µs)<"));
	assert_non_null(strstr(figure, ">4 ranks, machine not named<"));
	char command[512];
	snprintf(command, sizeof command,
	         "cd %s && printf '{\"about\": {\"ranks\": 2, \"gpus\": 2, \"gpu\": \"G1\", \"command\": \"c --json "
	         "x\"}, \"rows\": %%s}' \"$(cat rows.json)\" >two.json && %s rows.json two.json -o both >/dev/null && "
	         "grep -q '>Ferry, two (2 ranks, 2 × G1)<' both.svg && %s two.json >/dev/null && "
	         "grep -q '>2 ranks, 2 × G1<' two.svg && grep -q '>c<' two.svg && ls two.png two.pdf >/dev/null",
	         directory, FERRY_PLOT, FERRY_PLOT);
	assert_int_equal(system(command), 0);
}

static void what_another_run_has_measured_is_drawn_under_its_name(void **state)
{
	(void)state;
	static char figure[1 << 20];
	if (system("python3 -c 'import matplotlib' 2>/dev/null"))
		skip();
	assert_int_equal(draw("\"nccl\": {\"algbw\": 1, \"settings\": [{\"name\": \"X=1\", \"algbw\": 2, "
	                      "\"another_run\": true}]}",
	                      figure, sizeof figure),
	                 0);
	assert_non_null(strstr(figure, ">NCCL, X=1 (another run)<"));
	assert_null(strstr(figure, "NCCL, each "));
}

static void settings_that_nccl_does_not_support_are_left_out(void **state)
{
	(void)state;
	static char figure[1 << 20];
	if (system("python3 -c 'import matplotlib' 2>/dev/null"))
		skip();
	int code = draw("\"nccl\": {\"algbw\": 1, \"settings\": [{\"name\": \"default\", \"algbw\": 1}, {\"name\": "
	                "\"NCCL_PROTO=LL128\", "
	                "\"algbw\": null, \"unsupported\": \"why\"}]}",
	                figure, sizeof figure);
	if (code)
		fail_msg("%s", figure);
	assert_non_null(strstr(figure, ">NCCL<"));
	assert_null(strstr(figure, "NCCL, each ")); /* one that is left is no sweep */
}

static void a_sweep_is_named_once_whatever_it_has_at_each_size(void **state)
{
	(void)state;
	static char figure[1 << 20];
	if (system("python3 -c 'import matplotlib' 2>/dev/null"))
		skip();
	assert_int_equal(draw("\"nccl\": {\"algbw\": 1, \"settings\": [{\"name\": \"default\", \"algbw\": 1}, "
	                      "{\"name\": \"NCCL_ALGO=Tree\", \"algbw\": 0.5}]}",
	                      figure, sizeof figure),
	                 0);
	assert_non_null(strstr(figure, ">NCCL, best of its sweep at each size<"));
	assert_non_null(strstr(figure, ">NCCL, each setting of its sweep<"));
}

/* What ferry-perf tune has written into the file of limits: of several settings and numbers of ranks the last ones. */
static void the_file_of_limits_is_drawn_as_what_was_measured_last(void **state)
{
	(void)state;
	char command[1200];
	if (system("python3 -c 'import matplotlib' 2>/dev/null"))
		skip();
	snprintf(command, sizeof command,
	         "cd %s && printf '{\"gpus\": [{\"name\": \"G1\"}], \"collectives\": [%%s, %%s, %%s]}' '"
	         "{\"settings\": \"x\", \"ranks\": 4, \"collective\": \"gather\", \"bytes\": 1024, \"ferry_us\": 2}' "
	         "'{\"settings\": \"y\", \"ranks\": 2, \"collective\": \"alltoall\", \"bytes\": 1024, \"nccl_us\": 3, "
	         "\"ferry_us\": 2}' '{\"settings\": \"y\", \"ranks\": 2, \"collective\": \"allreduce\", "
	         "\"bytes\": 4096, \"nccl_us\": 3, \"nccl_16_channels_us\": 2, \"ferry_us\": 2}' >limits.json && "
	         "%s limits.json >/dev/null && grep -q '>allreduce<' limits.svg && grep -q '>alltoall<' limits.svg && "
	         "! grep -q '>gather<' limits.svg && grep -q '>2 ranks, 1 × G1<' limits.svg && "
	         "grep -q '>NCCL, each setting of its sweep<' limits.svg",
	         directory, FERRY_PLOT);
	assert_int_equal(system(command), 0);
}

/* Debian's and Ubuntu's Python refuses pip. */
static void a_python_without_matplotlib_is_told_the_name_of_the_package(void **state)
{
	(void)state;
	char command[512], text[1024] = "";
	snprintf(command, sizeof command,
	         "cd %s && mkdir -p none/matplotlib && echo 'raise ImportError' >none/matplotlib/__init__.py && "
	         "echo '[{\"bytes\": 1024, \"algbw\": 1}]' >rows.json && PYTHONPATH=none %s rows.json 2>&1",
	         directory, FERRY_PLOT);
	if (system("python3 -c pass 2>/dev/null"))
		skip();
	FILE *pipe = popen(command, "r");
	assert_non_null(pipe);
	assert_true(fread(text, 1, sizeof text - 1, pipe) > 0);
	assert_int_equal(WEXITSTATUS(pclose(pipe)), 1);
	assert_non_null(strstr(text, "apt install python3-matplotlib"));
}

/* ferry-perf writes such a row where a size is below an element for each rank. */
static void rows_of_no_bytes_are_left_out(void **state)
{
	(void)state;
	static char figure[1 << 20];
	if (system("python3 -c 'import matplotlib' 2>/dev/null"))
		skip();
	assert_int_equal(draw("\"in_place\": false}, {\"bytes\": 0, \"algbw\": 0", figure, sizeof figure), 0);
}

/* What FERRY_SHARES_LOG has, a column for each size; a line that is being written is left out. */
static void shares_are_drawn_call_by_call(void **state)
{
	(void)state;
	char command[1024];
	if (system("python3 -c 'import matplotlib' 2>/dev/null"))
		skip();
	snprintf(command, sizeof command,
	         "cd %s && for n in 0 1 2; do echo '{\"call\":'$n',\"collective\":\"allreduce\",\"type\":\"f32\","
	         "\"bytes\":1048576,\"host\":0.25,\"peer\":0,\"nccl\":0.75,\"tuning\":2,\"us\":10}'; done >log && "
	         "printf '{\"call' >>log && %s --shares log -o shares >/dev/null && "
	         "grep -q '>allreduce, f32, 1 MiB<' shares.svg && grep -q '>NCCL<' shares.svg && "
	         "grep -q '>with a tuning' shares.svg && "
	         "! grep -q '>peers<' shares.svg && ! %s --shares rows.json 2>/dev/null",
	         directory, FERRY_PLOT, FERRY_PLOT);
	assert_int_equal(system(command), 0);
}

/* What ferry-stat prints: of a size that was never carried by Ferry there is no such time. */
static void shares_are_drawn_over_seconds(void **state)
{
	(void)state;
	char command[1024];
	if (system("python3 -c 'import matplotlib' 2>/dev/null"))
		skip();
	snprintf(command, sizeof command,
	         "cd %s && for n in 0 1 2; do echo '{\"time\":'$n',\"job\":\"a1\",\"collective\":\"allgather\","
	         "\"type\":\"f32\",\"bytes\":1048576,\"nccl_us\":20,\"ferry_us\":'$n',\"tuning\":0,\"host\":0,"
	         "\"peer\":1,\"nccl\":0}'; done >looks && %s --shares looks -o looks >/dev/null && "
	         "grep -q '>NCCL alone<' looks.svg && grep -q '>with Ferry<' looks.svg && "
	         "grep -q '>seconds<' looks.svg && ! grep -q '>the call<' looks.svg",
	         directory, FERRY_PLOT);
	assert_int_equal(system(command), 0);
}

static void version_is_told_as_by_the_other_commands(void **state)
{
	(void)state;
	if (system("python3 -c pass 2>/dev/null"))
		skip();
	char text[64];
	FILE *pipe = popen(FERRY_PLOT " --version", "r");
	assert_non_null(pipe);
	assert_non_null(fgets(text, sizeof text, pipe));
	assert_int_equal(pclose(pipe), 0);
	assert_string_equal(text, "ferry-plot " FERRY_VERSION "\n");
}

static int make_directory(void **state)
{
	(void)state;
	return !mkdtemp(directory);
}

static int remove_directory(void **state)
{
	(void)state;
	char command[64];
	snprintf(command, sizeof command, "rm -r %s", directory);
	return system(command);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(mpi_is_drawn_like_nccl),
	        cmocka_unit_test(the_time_of_a_call_is_drawn_too_and_the_legend_names_ranks_and_machine),
	        cmocka_unit_test(what_another_run_has_measured_is_drawn_under_its_name),
	        cmocka_unit_test(settings_that_nccl_does_not_support_are_left_out),
	        cmocka_unit_test(a_sweep_is_named_once_whatever_it_has_at_each_size),
	        cmocka_unit_test(the_file_of_limits_is_drawn_as_what_was_measured_last),
	        cmocka_unit_test(a_python_without_matplotlib_is_told_the_name_of_the_package),
	        cmocka_unit_test(rows_of_no_bytes_are_left_out),
	        cmocka_unit_test(shares_are_drawn_call_by_call),
	        cmocka_unit_test(shares_are_drawn_over_seconds),
	        cmocka_unit_test(version_is_told_as_by_the_other_commands),
	};
	return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
