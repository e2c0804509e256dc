/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of the ferry-perf command where it cannot do what it is asked for: what is wrong is said by value, once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/hosted.h"
#include "tests/bench/perf_run.h"

#include <stdlib.h>
#include <string.h>

static void bad_arguments_are_refused_by_value(void **state)
{
	(void)state;
	static const struct {
		const char *arguments, *says;
		int code;
	} cases[] = {
	        {"", "which collective", 64},
	        {"allreduc", "\"allreduc\"", 64},
	        {"allreduce -b 5X", "\"5X\"", 64},
	        {"allreduce -b 8K -e 4K", "8192", 64},
	        {"allreduce -f 1", "\"1\"", 64},
	        {"allreduce -d f12", "\"f12\"", 64},
	        {"allreduce -d f12", "none of i8 u8", 64},
	        {"--help", "next, 2 to 1024", 0},
	        {"--help", "row, 1 to 1000", 0},
	        {"limits --program x", "--program x: limits runs no program", 64},
	        {"allreduce -c 2", "-c: \"2\" is neither 0 nor 1", 64},
	        {"allreduce -cyes", "-c: \"yes\" is neither 0 nor 1", 64},
	        {"allreduce -o mean", "\"mean\"", 64},
	        {"allreduce -n 0", "\"0\"", 64},
	        {"allreduce --vs nvshmem", "\"nvshmem\"", 64},
	        {"allreduce --vs nccl --nccl-sweep all", "\"all\"", 64},
	        {"allreduce --vs nccl --device host", "CUDA device", 1},
	        {"allreduce --ranks 65", "\"65\"", 64},
	        {"allreduce --program /nonexistent", "/nonexistent", 64},
	        {"allreduce alltoall", "\"alltoall\"", 64},
	        {"allreduce --json /nonexistent/file", "/nonexistent/file", 64},
	        {"allreduce --json /", "Is a directory", 64},
	        {"allreduce --nccl-sweep none", "--vs nccl", 64},
	        {"allreduce --program /dev/null", "--program /dev/null: No data", 64},
	        {"limits --devices 4294967297", "--devices: \"4294967297\"", 64},
	        {"limits --json /nonexistent/file", "/nonexistent/file", 1},
	        {"broadcast --root 2 --ranks 2", "--root 2: the last of 2 ranks is 1", 64},
	        {"allreduce --ranks 4 -b 3 -e 3", "-b 3: allreduce of f32 among 4 ranks takes 4 bytes",
	         64},
	        {"gather -b 15 --ranks 2 -d f64", "-b 15: gather of f64 among 2 ranks takes 16 bytes", 64},
	        {"allgather -b 31 --ranks 2 -d i8", "-b 31: allgather of i8 among 2 ranks takes 32 bytes", 64},
	        {"broadcast -o max", "-o max: broadcast reduces nothing", 64},
	        {"alltoall -o sum", "-o sum: alltoall reduces nothing", 64},
	        {"allgather --root 0", "--root 0: allgather has no root", 64},
	        {"--root 1 allreduce", "--root 1: allreduce has no root", 64},
	        {"allreduce --device tpu --ranks 1", "tpu", 64},
	        {"alltoall --skew pair", "--skew pair: alltoall has the same lengths for all", 64},
	        {"alltoallv --skew pair --ranks 1", "--skew uneven traffic takes 2 ranks at least, not 1", 64},
	        {"alltoallv --skew hot:1.5 --ranks 4", "--skew \"hot:1.5\": a number from 0 to 1", 64},
	        {"alltoallv --skew /dev/null --ranks 2", "--skew /dev/null: lines of 0 ranks, and there are 2", 64},
	};
	char output[8192];
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		int code = run(cases[i].arguments, output, sizeof output);
		if (code != cases[i].code || !strstr(output, cases[i].says))
			fail_msg("ferry-perf %s: exit code %d instead of %d, or no %s in:\n%s", cases[i].arguments,
			         code, cases[i].code, cases[i].says, output);
	}
}

static int times(const char *text, const char *word)
{
	int count = 0;
	for (; (text = strstr(text, word)); text++)
		count++;
	return count;
}

static void what_is_wrong_with_the_arguments_of_all_ranks_is_said_once(void **state)
{
	(void)state;
	static const struct {
		const char *arguments, *says;
	} cases[] = {{"allreduce --json /nonexistent/file", "/nonexistent/file"}, {"allreduce --device tpu", "\"tpu\""},
	             {"allreduce --nonsense", "nonsense"}, {"broadcast --root 3", "--root 3: the last of 3"}};
	char command[512], output[8192];
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		snprintf(command, sizeof command, "%s -n 3 --fork -- %s %s 2>&1", FERRYRUN, FERRY_PERF,
		         cases[i].arguments);
		int code = run_command(command, output, sizeof output);
		if (code != 64 || times(output, cases[i].says) != 1 || !strstr(output, "rank 0 ended with code 64"))
			fail_msg("%s: exit code %d instead of 64, or not once, or not by rank 0:\n%s", command, code,
			         output);
	}
	snprintf(command, sizeof command, "%s -n 3 --fork -- %s --version 2>&1", FERRYRUN, FERRY_PERF);
	assert_int_equal(run_command(command, output, sizeof output), 0);
}

static void memory_that_is_not_there_is_told_of_once(void **state)
{
	(void)state;
	char output[8192];
#if defined(__SANITIZE_ADDRESS__)
	skip(); /* its malloc ends the process */
#endif
	assert_int_equal(run("allreduce -b 1000G -e 1000G --ranks 3", output, sizeof output), 1);
	if (times(output, "no memory for two buffers of 1024000 MiB on 3 of 3 ranks: lower -e (1073741824000)") != 1 ||
	    times(output, "no memory") != 1)
		fail_msg("%s", output);
}

/* Else the first sockets of a rank are its standard output and error, and what it prints goes to the router. */
static void without_standard_descriptors_nothing_else_takes_their_numbers(void **state)
{
	(void)state;
	static const char *const closed[] = {"2>&1 >&-", "<&- >&- 2>&-"};
	char command[512], output[8192];
	setenv("FERRY_RANK", "0", 1); /* no ferryrun, which would see to it */
	setenv("FERRY_SIZE", "1", 1);
	hosted_routers(1);
	for (size_t i = 0; i < sizeof closed / sizeof *closed; i++) {
		snprintf(command, sizeof command, "%s allreduce -b 16K -e 64K -n 1 -w 1 %s", FERRY_PERF, closed[i]);
		int code = run_command(command, output, sizeof output);
		if (code)
			fail_msg("%s: exit code %d:\n%s", command, code, output);
	}
	unsetenv("FERRY_RANK");
	unsetenv("FERRY_SIZE");
	hosted_end();
	unsetenv("FERRY_ROUTER");
	unsetenv("FERRY_DOMAINS");
}

static void output_that_is_lost_is_an_error(void **state)
{
	(void)state;
	char command[512], output[8192];
	snprintf(command, sizeof command, "%s allreduce -b 1K -e 4K -n 1 -w 1 --ranks 2 2>&1 >/dev/full", FERRY_PERF);
	assert_int_equal(run_command(command, output, sizeof output), 1);
	if (!strstr(output, ": standard output: No space left on device\n"))
		fail_msg("%s:\n%s", command, output);
}

#ifdef FERRY_HAS_MPI
static void against_mpi_what_it_cannot_do_is_refused(void **state)
{
	(void)state;
	char output[8192];
	assert_int_equal(run("allreduce -d f16 --ranks 2 --vs mpi", output, sizeof output), 64);
	assert_string_equal(output, "ferry-perf: --vs mpi: -d f16: MPI reduces i8 u8 i32 u32 i64 u64 f32 f64\n");
	assert_int_equal(run("allreduce -o avg --ranks 2 --vs mpi", output, sizeof output), 64);
	assert_string_equal(output, "ferry-perf: --vs mpi: -o avg: MPI reduces by sum prod min max\n");
}
#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(bad_arguments_are_refused_by_value),
	        cmocka_unit_test(what_is_wrong_with_the_arguments_of_all_ranks_is_said_once),
	        cmocka_unit_test(memory_that_is_not_there_is_told_of_once),
	        cmocka_unit_test(without_standard_descriptors_nothing_else_takes_their_numbers),
	        cmocka_unit_test(output_that_is_lost_is_an_error),
#ifdef FERRY_HAS_MPI
	        cmocka_unit_test(against_mpi_what_it_cannot_do_is_refused),
#endif
	};
	setenv("FERRY_DEVICE", "host", 0); /* with a GPU in the machine too, unless the caller wants it measured */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
