/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of what ferryrun --nccl measures before it starts its command, over the doubles of CUDA and NCCL: once, and
 * whatever becomes of it, the command runs. A copy of ferryrun stands beside a script that is ferry-perf.
 */
#include "tests/commands.h"

#include <stdbool.h>

static char output[1 << 16];

/* The script's lines; each call of it leaves a line in $X/asked. NULL: there is no ferry-perf. */
static void put_ferry_perf(const char *lines)
{
	char path[128];
	snprintf(path, sizeof path, "%s/bin/ferry-perf", getenv("X"));
	unlink(path);
	if (!lines)
		return;
	FILE *file = fopen(path, "w");
	assert_non_null(file);
	fprintf(file, "#!/bin/sh\necho \"$@\" >> $X/asked\n%s\n", lines);
	fclose(file);
	assert_int_equal(chmod(path, 0755), 0);
}

/* Runs a command that says "ran" under ferryrun --nccl; exit code, and all that was printed is in `output`. */
static int start_with(const char *environment)
{
	char command[1024];
	snprintf(command, sizeof command, "%s $X/bin/ferryrun --nccl -- echo ran 2>&1", environment);
	return run(command, output, sizeof output);
}

static void must_run(const char *environment, const char *besides)
{
	int code = start_with(environment);
	if (code || !strstr(output, "ran\n") || (besides && !strstr(output, besides)))
		fail_msg("%s: exit code %d, or without \"%s\":\n%s", environment, code, besides ? besides : "ran",
		         output);
	if (!besides)
		assert_string_equal(output, "ran\n");
}

static bool was_asked(void)
{
	return !system("test -e $X/asked");
}

static void it_measures_once_for_a_machine_and_settings(void **state)
{
	(void)state;
	put_ferry_perf("exec $B/ferry-perf \"$@\" -e 1M");
	must_run("", "ferryrun: measuring NCCL and Ferry on 2 GPUs, once");
	assert_null(strstr(output, "written to")); /* the table is for nobody */
	assert_int_equal(system("grep -q allreduce $FERRY_LIMITS"), 0);
	must_run("", NULL);
	must_run("NCCL_P2P_DISABLE=1", "measuring NCCL and Ferry on 2 GPUs, once");
	must_run("NCCL_P2P_DISABLE=1", NULL);
	must_run("CUDA_VISIBLE_DEVICES=1 NCCL_ALGO=Ring", NULL); /* one GPU */
}

static void where_nothing_would_come_of_it_nothing_is_measured_or_said(void **state)
{
	static const char *const unasked[] = {"FERRY_TUNE=off", "FERRY_NCCL=off", "FERRY_SHARES=nccl:0.5,host:0.5"};
	(void)state;
	put_ferry_perf("exec $B/ferry-perf \"$@\" -e 1M");
	for (size_t i = 0; i < sizeof unasked / sizeof *unasked; i++)
		must_run(unasked[i], NULL);
	assert_false(was_asked());
	must_run("FERRY_CUDA_LIBRARY=/none", NULL);
	must_run("FERRY_NCCL_LIBRARY=/none", NULL);
	assert_true(was_asked());
	assert_int_equal(system("test -e $FERRY_LIMITS") != 0, 1);
	assert_int_equal(start_with("FERRY_TUNE=maybe"), 125);
	assert_non_null(strstr(output, "FERRY_TUNE=maybe: on or off"));
	put_ferry_perf(NULL);
	must_run("", NULL);
}

static void a_broken_measurement_does_not_stop_the_command(void **state)
{
	(void)state;
	put_ferry_perf("exit 3");
	must_run("", "(ferry-perf tune) ended with exit code 3; the command starts without\n");
	put_ferry_perf("kill -9 $$");
	must_run("", "(ferry-perf tune) was ended by signal 9; the command starts without\n");
	put_ferry_perf("exec $B/ferry-perf \"$@\" -e 1M");
	must_run("NCCL_PROTO=LL128", "(ferry-perf tune) ended with exit code 1; the command starts without\n");
}

static void a_measurement_that_hangs_is_ended(void **state)
{
	(void)state;
	put_ferry_perf("sleep 1000; echo never >&2");
	must_run("", "(ferry-perf tune) took more than 30 s; the command starts without\n");
	await_no_children();
}

static void told_to_end_meanwhile_it_ends_with_all_that_it_has_started(void **state)
{
	char fifo[96];
	int status;
	(void)state;
	snprintf(fifo, sizeof fifo, "%s/begun", getenv("X"));
	assert_int_equal(mkfifo(fifo, 0600), 0);
	put_ferry_perf("echo begun > $X/begun; sleep 1000");
	pid_t ferryrun = start("exec $X/bin/ferryrun --nccl -- touch $X/ran 2>/dev/null");
	await_line(fifo);
	assert_int_equal(kill(ferryrun, SIGTERM), 0);
	assert_int_equal(waitpid(ferryrun, &status, 0), ferryrun);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGTERM);
	await_no_children();
	assert_int_not_equal(system("test -e $X/ran"), 0);
}

/* $X: a folder with a ferryrun, whose libraries are the build's. */
static int make_commands(void **state)
{
	static char folder[64], limits[96];
	snprintf(folder, sizeof folder, "/tmp/ferry-once-test-XXXXXX");
	if (make_directory(state) || !mkdtemp(folder))
		return 1;
	snprintf(limits, sizeof limits, "%s/limits.json", folder);
	setenv("X", folder, 1);
	setenv("FERRY_LIMITS", limits, 1);
	setenv("FAKE_CUDA_MACHINE", directory, 1);
	return system("mkdir $X/bin && ln -s $LIB $X/lib && cp $B/ferryrun $X/bin");
}

static int remove_commands(void **state)
{
	return system("rm -rf $X") || remove_directory(state);
}

#define ONCE(name) cmocka_unit_test_setup_teardown(name, make_commands, remove_commands)

int main(int argc, char **argv)
{
	char router[4096];
	if (argc < 5)
		return 1;
	snprintf(router, sizeof router, "%s/ferry-router", argv[1]);
	setenv("B", argv[1], 1);
	setenv("LIB", argv[2], 1);
	setenv("FERRY_CUDA_LIBRARY", argv[3], 1);
	setenv("FERRY_NCCL_LIBRARY", argv[4], 1);
	setenv("FERRY_ROUTER_EXE", router, 1);
	setenv("FAKE_CUDA_DEVICES", "2", 1);
	setenv("FAKE_CUDA_CONTEXT_MEMORY", "1048576", 1);
	const struct CMUnitTest tests[] = {
	        ONCE(it_measures_once_for_a_machine_and_settings),
	        ONCE(where_nothing_would_come_of_it_nothing_is_measured_or_said),
	        ONCE(a_broken_measurement_does_not_stop_the_command),
	        ONCE(a_measurement_that_hangs_is_ended),
	        ONCE(told_to_end_meanwhile_it_ends_with_all_that_it_has_started),
	};
	return cmocka_run_group_tests_name("measure_once", tests, NULL, NULL);
}
