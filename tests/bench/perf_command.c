/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of the ferry-perf command: its JSON, nccl-tests' sizes and bandwidths, checked results. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/bench/perf_rows.h"
#include "tests/hosted.h"

#include <cjson/cJSON.h>
#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void every_collective_gives_right_rows_with_all_fields(void **state)
{
	(void)state;
	/* The bus factor for three ranks, and whether there is an in-place half. */
	static const struct {
		const char *argument, *name;
		double factor;
		bool in_place;
		const char *options; /* those that the collective has a meaning for */
	} collectives[] = {
	        {"allreduce", "allreduce", 4.0 / 3, true, "-o max"},
	        {"allgather", "allgather", 2.0 / 3, true, ""},
	        {"reducescatter", "reducescatter", 2.0 / 3, true, "-o max"},
	        {"broadcast", "broadcast", 1, true, "--root 1"},
	        {"reduce", "reduce", 1, true, "-o max --root 1"},
	        {"gather", "gather", 2.0 / 3, true, "--root 1"},
	        {"scatter", "scatter", 2.0 / 3, true, "--root 1"},
	        {"alltoall", "alltoall", 2.0 / 3, true, ""},
	        {"alltoallv", "alltoallv", 2.0 / 3, false, ""},
	        {"sendrecv", "sendrecv", 1, false, ""},
	};
	for (size_t i = 0; i < sizeof collectives / sizeof *collectives; i++) {
		char arguments[256];
		snprintf(arguments, sizeof arguments,
		         "%s -b 3000 -e 96000 -f 32 -n 3 -w 1 --ranks 3 --domains 2 -d i32 %s", collectives[i].argument,
		         collectives[i].options);
		cJSON *rows = rows_of(arguments);
		assert_int_equal(cJSON_GetArraySize(rows), collectives[i].in_place ? 4 : 2);
		for (const cJSON *row = rows->child; row; row = row->next) {
			bool in_place = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(row, "in_place"));
			assert_string_equal(string(row, "collective"), collectives[i].name);
			assert_string_equal(string(row, "type"), "i32");
			assert_true(number(row, "wrong") == 0);
			assert_true(number(row, "time_us") > 0);
			assert_true(number(row, "bytes") > 1800 && number(row, "bytes") <= 96000);
			assert_true(fabs(number(row, "algbw") * number(row, "time_us") * 1e3 / number(row, "bytes") -
			                 1) < 1e-6);
			assert_true(fabs(number(row, "busbw") / number(row, "algbw") / collectives[i].factor - 1) <
			            1e-6);
			assert_true(!in_place || collectives[i].in_place);
		}
		cJSON_Delete(rows);
	}
}

static void the_smallest_sizes_have_an_element_for_each_rank(void **state)
{
	(void)state;
	static const char *const arguments[] = {"sendrecv -b 8 -e 8 -d f64", "scatter -b 16 -e 16 -d f64",
	                                        "alltoall -b 32 -e 32 -d f64", "alltoallv -b 32 -e 32 -d f64",
	                                        "alltoallv -b 32 -e 32 -d i8"};
	for (size_t i = 0; i < sizeof arguments / sizeof *arguments; i++) {
		char all[128];
		snprintf(all, sizeof all, "%s -n 1 -w 1 --ranks 2", arguments[i]);
		cJSON *rows = rows_of(all);
		assert_true(number(rows->child, "bytes") > 0);
		cJSON_Delete(rows);
	}
}

static void sizes_are_those_of_nccl_tests(void **state)
{
	(void)state;
	/* 1000 bytes of float over 3 ranks: blocks of 83 floats, aligned down to 80 where nccl-tests aligns to 16
	 * bytes. */
	static const struct {
		const char *collective;
		double bytes;
	} cases[] = {
	        {"allreduce", 1000}, {"allgather", 960}, {"reducescatter", 960}, {"gather", 996}, {"alltoall", 960}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char arguments[128];
		snprintf(arguments, sizeof arguments, "%s -b 1000 -e 1000 -n 1 -w 1 --ranks 3", cases[i].collective);
		cJSON *rows = rows_of(arguments);
		if (number(rows->child, "bytes") != cases[i].bytes)
			fail_msg("%s: %g bytes instead of %g", cases[i].collective, number(rows->child, "bytes"),
			         cases[i].bytes);
		cJSON_Delete(rows);
	}
}

static void uneven_traffic_comes_with_a_picture_of_its_load(void **state)
{
	(void)state;
	char output[8192];
	setenv("FERRY_HOST_LINK", "links=mesh:4", 1);
	int code = run("alltoallv --skew own:0.9 --ranks 3 -b 8M -e 8M -n 1 -w 1", output, sizeof output);
	unsetenv("FERRY_HOST_LINK");
	if (code || !strstr(output, "all results right") || !strstr(output, "\n      8388576 ") ||
	    !strstr(output, "# own:0.9, 8388608 bytes at the busiest rank:\n") ||
	    !strstr(output, "# at least 1887 us by direct paths, 1347 us") || !strstr(output, "# 2 to 0  ") ||
	    !strstr(output, "100% ########################  "))
		fail_msg("exit code %d:\n%s", code, output);
}

static void unchecked_rows_say_so(void **state)
{
	(void)state;
	cJSON *rows = rows_of("allreduce -b 64 -e 64 -n 1 -w 1 --ranks 2 -c 0");
	assert_true(cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(rows->child, "wrong")));
	cJSON_Delete(rows);
}

static double seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void a_pause_goes_before_each_sample_and_is_not_timed(void **state)
{
	(void)state;
	double before = seconds();
	cJSON *rows = rows_of("broadcast -b 1K -e 1K -n 4 -w 1 --ranks 2 --pause 600 -c 0"), *row;
	assert_true(seconds() - before > 4 * 0.6);
	cJSON_ArrayForEach(row, rows)
	{
		assert_true(number(row, "pause_us") == 600000);
		assert_true(number(row, "calls_per_sample") == 1);
		assert_true(number(row, "time_us") < 600000);
	}
	cJSON_Delete(rows);
}

static void a_program_from_a_file_is_measured(void **state)
{
	(void)state;
	cJSON *rows = rows_of("allreduce -b 64 -e 6400 -f 10 -n 1 -w 1 --ranks 2 --program " FERRY_FIGURE3);
	assert_int_equal(cJSON_GetArraySize(rows), 6);
	for (const cJSON *row = rows->child; row; row = row->next)
		assert_true(number(row, "wrong") == 0);
	cJSON_Delete(rows);
}

/* Writes a program into a file of a test's; one at a time. */
static const char *program_file(const char *text)
{
	static char name[] = "/tmp/ferry-perf-program.XXXXXX";
	strcpy(name + sizeof name - 7, "XXXXXX");
	int descriptor = mkstemp(name);
	assert_true(descriptor >= 0);
	assert_int_equal(write(descriptor, text, strlen(text)), strlen(text));
	close(descriptor);
	return name;
}

/* Before any rank starts: it would give wrong data, or wait for ever for a rank that has no part in it. */
static void a_program_of_other_calls_is_refused(void **state)
{
	(void)state;
	static const struct {
		const char *arguments, *text, *words;
		int code;
	} cases[] = {
	        {"allgather", "program allreduce ranks 1 domains 1 chunks 1\nrank 0\nD2H gpu[0] -> host[0]\n"
	                      "H2D host[0] -> gpu[0]\n",
	         "it is of allreduce, not of allgather", 64},
	        {"scatter", "program allgather ranks 1 domains 1 chunks 1\n", "it is of allgather, not of scatter", 64},
	        {"allgather", "program allgather ranks 1 domains 2 chunks 1\n",
	         "it is for 1 rank in 2 domains, not for 1 in 1", 64},
	        {"broadcast --ranks 2",
	         "program broadcast ranks 2 domains 1 chunks 1 root 1\nrank 0\nH2D host[0] -> gpu[0] deps: host[0]>=1\n"
	         "rank 1\nD2H gpu[0] -> host[0]\n",
	         "its root is 1, not 0: --root 1", 64},
	        {"allreduce --ranks 2", "program allreduce ranks 2 domains 1 chunks 1\n",
	         "output chunk 0 is never written", 1},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char arguments[512], output[8192];
		const char *file = program_file(cases[i].text);
		snprintf(arguments, sizeof arguments, "--ranks 1 --domains 1 -b 1K -e 1K -n 1 --program %s %s", file,
		         cases[i].arguments);
		int code = run(arguments, output, sizeof output);
		unlink(file);
		char *found = strstr(output, cases[i].words);
		if (code != cases[i].code || !found || strstr(found + 1, cases[i].words))
			fail_msg("%s ends with %d, or does not say \"%s\" once:\n%s", arguments, code, cases[i].words,
			         output);
	}
}

/* Its own calls, of f64, are Ferry's business. */
static void programs_that_the_environment_names_are_measured_and_not_met_in(void **state)
{
	(void)state;
	char output[65536];
	const char *file = program_file("program allreduce ranks 2 domains 1 chunks 1\n"
	                                "rank 0\nD2H gpu[0] -> host[0]\nREDUCE host[0] -> host[1] deps: host[1]>=1\n"
	                                "H2D host[1] -> gpu[0] deps: host[1]>=2\n"
	                                "rank 1\nD2H gpu[0] -> host[1]\nH2D host[1] -> gpu[0] deps: host[1]>=2\n");
	setenv("FERRY_PROGRAM_PATH", file, 1);
	setenv("FERRY_DEBUG", "plan", 1);
	int code = run("allreduce --ranks 2 --domains 1 -b 4K -e 4K -n 1 -d i32", output, sizeof output), mine = 0;
	unsetenv("FERRY_PROGRAM_PATH");
	unsetenv("FERRY_DEBUG");
	unlink(file);
	assert_int_equal(code, 0);
	for (char *line = strtok(output, "\n"); line; line = strtok(NULL, "\n")) {
		bool measured = strstr(line, "ferry plan: allreduce of 1024 i32");
		if (strstr(line, "ferry plan: ") && measured != (strstr(line, "user's program") != NULL))
			fail_msg("%s", line);
		if (measured) /* what was chosen, and from what */
			assert_non_null(strstr(line, "slice 4096 bytes, window 1 slot, guard 0, advance 0, workers 0"));
		mine += measured;
	}
	assert_true(mine > 0);
}

/* How many rows the file has; it never has half of one. */
static int rows_written(bool *complete)
{
	cJSON *whole = read_json(), *about = cJSON_GetObjectItemCaseSensitive(whole, "about");
	int count = cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(whole, "rows"));
	*complete = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(about, "complete"));
	cJSON_Delete(whole);
	return count;
}

static void a_run_that_is_broken_off_leaves_the_rows_that_it_has_finished(void **state)
{
	(void)state;
	static const int signals[] = {SIGINT, SIGTERM, SIGKILL};
	for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
		bool complete;
		int rows = 0, first = -1, status;
		struct stat found;
		unlink(json_file);
		pid_t child = fork();
		assert_true(child >= 0);
		if (!child) {
			if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr))
				_exit(126);
			execl(FERRY_PERF, "ferry-perf", "allreduce", "-b", "1K", "-f", "2", "-n", "20", "--ranks",
			      "2", "--json", json_file, (char *)NULL);
			_exit(127);
		}
		while (rows < 4 && !waitpid(child, &status, WNOHANG)) {
			rows = rows_written(&complete);
			if (rows && first < 0)
				first = open(json_file, O_RDONLY);
			usleep(1000);
		}
		kill(child, signals[i]);
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_true(rows_written(&complete) >= 4);
		assert_false(complete);
		assert_int_equal(fstat(first, &found), 0);
		assert_int_equal(found.st_nlink,
		                 0); /* each file took the place of the one before: nobody ever finds half a file */
		close(first);
	}
}

static void a_pipe_gets_the_record_once(void **state)
{
	(void)state;
	static char output[65536];
	assert_int_equal(run("allreduce -b 64 -e 256 -n 1 -w 1 --ranks 1 --json /dev/fd/3 3>&1", output, sizeof output),
	                 0);
	const char *first = strstr(output, "\"about\"");
	assert_non_null(first);
	assert_null(strstr(first + 1, "\"about\""));
}

static void a_record_for_standard_output_has_it_to_itself(void **state)
{
	(void)state;
	static char output[65536];
	char command[512];
	snprintf(command, sizeof command, "%s allreduce -b 64 -e 256 -n 1 -w 1 --ranks 2 --json - 2>%s", FERRY_PERF,
	         json_file);
	assert_int_equal(run_command(command, output, sizeof output), 0);
	cJSON *whole = cJSON_Parse(output);
	if (!whole)
		fail_msg("%s: no JSON: \"%s\"", command, output);
	cJSON_Delete(whole);
	snprintf(command, sizeof command, "grep '# ferry-perf' %s", json_file);
	assert_int_equal(run_command(command, output, sizeof output), 0);
	snprintf(command, sizeof command, "%s allreduce -b 64 -e 256 -n 1 -w 1 --ranks 2 --json - 2>&1 >/dev/full",
	         FERRY_PERF);
	assert_int_equal(run_command(command, output, sizeof output), 1);
	assert_non_null(strstr(output, "writing -: No space left on device"));
	assert_int_equal(access("-", F_OK), -1);
}

static void what_the_launcher_has_decided_is_not_asked_of_ferry_perf(void **state)
{
	(void)state;
	static char output[8192];
	setenv("FERRY_RANK", "0", 1);
	setenv("FERRY_SIZE", "1", 1);
	hosted_routers(1);
	assert_int_equal(run("allreduce -e 1K --ranks 2", output, sizeof output), 1);
	assert_non_null(strstr(output, "1 ranks in 1 domains"));
	assert_int_equal(run("allreduce -e 1K -n 1 --ranks 1 --domains 1", output, sizeof output), 0);
	unsetenv("FERRY_RANK");
	unsetenv("FERRY_SIZE");
	hosted_end();
	unsetenv("FERRY_ROUTER");
	unsetenv("FERRY_DOMAINS");
}

/* How often it tells of ranks and routers that share CPUs. */
static int tells_of_a_crowd(const char *arguments, const char *words)
{
	static char output[8192];
	int count = 0;
	if (run(arguments, output, sizeof output))
		fail_msg("ferry-perf %s failed:\n%s", arguments, output);
	for (const char *found = output; (found = strstr(found, "they take turns")); found++)
		count++;
	if (count && !strstr(output, words))
		fail_msg("no \"%s\" in:\n%s", words, output);
	return count;
}

static void fewer_cpus_than_ranks_and_routers_are_told_of_once(void **state)
{
	(void)state;
	cpu_set_t all, one;
	assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
	CPU_ZERO(&one);
	for (int cpu = 0; cpu < CPU_SETSIZE && !CPU_COUNT(&one); cpu++)
		if (CPU_ISSET(cpu, &all))
			CPU_SET(cpu, &one);
	assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
	int both = tells_of_a_crowd("broadcast -b 1K -e 4K -n 1 -w 1 --ranks 2 --domains 1",
	                            "2 ranks and 1 router on 1 CPU:");
	int router = tells_of_a_crowd("broadcast -b 1K -e 1K -n 1 -w 1 --ranks 1 --domains 1",
	                              "1 rank and 1 router on 1 CPU:");
	assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
	assert_int_equal(both, 1);
	assert_int_equal(router, 1);
}

/* As launchers do: a look at one rank's CPUs alone would find two ranks on one. */
static void ranks_that_have_a_cpu_each_are_no_crowd(void **state)
{
	(void)state;
	cpu_set_t all;
	int cpus[2], found = 0;
	char command[1024], output[8192];
	assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
	for (int cpu = 0; cpu < CPU_SETSIZE && found < 2; cpu++)
		if (CPU_ISSET(cpu, &all))
			cpus[found++] = cpu;
	if (found < 2)
		skip();
	snprintf(command, sizeof command,
	         "%s -n 2 --fork --domains 1 -- sh -c '[ $FERRY_RANK = 0 ] && cpu=%d || cpu=%d; "
	         "exec taskset -c $cpu %s broadcast -b 1K -e 1K -n 1 -w 1' 2>&1",
	         FERRYRUN, cpus[0], cpus[1], FERRY_PERF);
	assert_int_equal(run_command(command, output, sizeof output), 0);
	assert_non_null(strstr(output, "all results right"));
	assert_null(strstr(output, "they take turns"));
}

static void the_largest_size_is_measured_where_the_steps_do_not_hit_it(void **state)
{
	(void)state;
	static const double sizes[] = {1024, 4096, 6144};
	cJSON *rows = rows_of("sendrecv -b 1K -e 6K -n 1 -w 1 --ranks 2");
	assert_int_equal(cJSON_GetArraySize(rows), 3);
	for (int i = 0; i < 3; i++)
		assert_true(number(cJSON_GetArrayItem(rows, i), "bytes") == sizes[i]);
	cJSON_Delete(rows);
}

/* Ranks take turns otherwise; and one alone has nobody to call with. */
static void by_itself_it_starts_a_rank_per_cpu_two_at_least_and_four_at_most(void **state)
{
	(void)state;
	cpu_set_t all, one;
	assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
	int cpus = CPU_COUNT(&all);
	cJSON *rows = rows_of("broadcast -b 1K -e 1K -n 1 -w 1");
	assert_true(number(rows->child, "ranks") == (cpus < 2 ? 2 : cpus > 4 ? 4 : cpus));
	cJSON_Delete(rows);
	CPU_ZERO(&one);
	for (int cpu = 0; cpu < CPU_SETSIZE && !CPU_COUNT(&one); cpu++)
		if (CPU_ISSET(cpu, &all))
			CPU_SET(cpu, &one);
	assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
	rows = rows_of("broadcast -b 1K -e 1K -n 1 -w 1");
	assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
	assert_true(number(rows->child, "ranks") == 2);
	cJSON_Delete(rows);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(every_collective_gives_right_rows_with_all_fields),
	        cmocka_unit_test(the_smallest_sizes_have_an_element_for_each_rank),
	        cmocka_unit_test(sizes_are_those_of_nccl_tests),
	        cmocka_unit_test(uneven_traffic_comes_with_a_picture_of_its_load),
	        cmocka_unit_test(unchecked_rows_say_so),
	        cmocka_unit_test(a_pause_goes_before_each_sample_and_is_not_timed),
	        cmocka_unit_test(a_program_from_a_file_is_measured),
	        cmocka_unit_test(a_program_of_other_calls_is_refused),
	        cmocka_unit_test(programs_that_the_environment_names_are_measured_and_not_met_in),
	        cmocka_unit_test(a_run_that_is_broken_off_leaves_the_rows_that_it_has_finished),
	        cmocka_unit_test(a_pipe_gets_the_record_once),
	        cmocka_unit_test(a_record_for_standard_output_has_it_to_itself),
	        cmocka_unit_test(what_the_launcher_has_decided_is_not_asked_of_ferry_perf),
	        cmocka_unit_test(fewer_cpus_than_ranks_and_routers_are_told_of_once),
	        cmocka_unit_test(ranks_that_have_a_cpu_each_are_no_crowd),
	        cmocka_unit_test(the_largest_size_is_measured_where_the_steps_do_not_hit_it),
	        cmocka_unit_test(by_itself_it_starts_a_rank_per_cpu_two_at_least_and_four_at_most),
	};
	return cmocka_run_group_tests(tests, name_file, remove_file);
}
