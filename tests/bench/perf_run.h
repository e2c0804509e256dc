/* SPDX-License-Identifier: Apache-2.0 */
/** Commands as a shell runs them, and ferry-perf among them; for suites of cmocka. */
#ifndef FERRY_TESTS_BENCH_PERF_RUN_H
#define FERRY_TESTS_BENCH_PERF_RUN_H

#include <stdio.h>
#include <sys/wait.h>

/** Runs a shell command and keeps what it prints; returns the exit code. */
static inline int run_command(const char *command, char *output, size_t bytes)
{
	size_t got = 0;
	int status;
	FILE *pipe = popen(command, "r");
	assert_non_null(pipe);
	for (size_t part = 1; part && got < bytes - 1; got += part)
		part = fread(output + got, 1, bytes - 1 - got, pipe);
	output[got] = '\0';
	status = pclose(pipe);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

/** Runs ferry-perf with these arguments. */
static inline int run(const char *arguments, char *output, size_t bytes)
{
	char command[1024];
	snprintf(command, sizeof command, "%s %s 2>&1", FERRY_PERF, arguments);
	return run_command(command, output, bytes);
}

#endif
