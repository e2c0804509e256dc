/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A small harness for programs that need GPUs and may hang or crash on them. Included by one file each.
 *
 * A test is a function named after its promise; it returns 0 (kept), 1 (broken) or 2 (skipped). The macros below return
 * from it at the first thing that is not so, having printed the values. Tests run in a child process: when one fails,
 * crashes or does not end within CHECK_SECONDS (environment, default 60), the next one starts in a fresh child, because
 * a GPU context that has failed once tells nothing any more. Under ferryrun there is no child: a failed test ends the
 * whole job.
 *
 * Exit code: 0, 1, or 77 where there is no GPU. Arguments: only tests whose names contain one of these words.
 */
#ifndef FERRY_TESTS_GPU_CHECK_H
#define FERRY_TESTS_GPU_CHECK_H

#include "ferry.h"

#include <cuda_runtime.h>

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK_SKIP_EXIT 77

struct check_test {
	const char *name;
	int (*run)(void);
	bool hidden; /* runs only if named in full: another test starts it */
};
#define TEST(name) {#name, name, false}
#define HIDDEN(name) {#name, name, true}

/* In shared memory: what the child has done, for the parent that outlives it. */
struct check_record {
	int next, running, passed, failed, skipped;
	char notes[4096]; /* lines for the end */
};

static struct check_record *check_record;
static const char *check_name = "before the first test";
static const char *volatile check_call = "nothing yet"; /* what the watchdog says it hung in */
static volatile int check_line;
static char check_reason[256]; /* of the last skip */

static inline bool check_in_job(void)
{
	return getenv("FERRY_RANK") != NULL;
}

static inline bool check_is_first(void)
{
	return !check_in_job() || !strcmp(getenv("FERRY_RANK"), "0");
}

static inline double check_seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static inline int check_device(void)
{
	int device = -1;
	return cudaGetDevice(&device) ? -1 : device;
}

/** Keeps a figure for the lines at the end; rank 0's alone. */
__attribute__((format(printf, 1, 2))) static inline void check_note(const char *format, ...)
{
	size_t length = strlen(check_record->notes), room = sizeof check_record->notes - length;
	va_list values;
	if (!check_is_first() || room < 3)
		return;
	va_start(values, format);
	vsnprintf(check_record->notes + length, room - 1, format, values);
	va_end(values);
	strcat(check_record->notes, "\n");
}

static inline void check_print_notes(void)
{
	for (char *line = strtok(check_record->notes, "\n"); line; line = strtok(NULL, "\n"))
		printf("# %s\n", line);
	fflush(stdout);
}

#define BROKEN(...)                                                                                                    \
	do {                                                                                                           \
		printf("# %s%s%s:%d: ", check_in_job() ? "rank " : "", check_in_job() ? getenv("FERRY_RANK") : "",     \
		       check_in_job() ? ": " __FILE__ : __FILE__, __LINE__);                                           \
		printf(__VA_ARGS__);                                                                                   \
		printf("\n");                                                                                          \
		return 1;                                                                                              \
	} while (0)

#define REQUIRE(condition, ...)                                                                                        \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			printf("# not so: %s\n", #condition);                                                          \
			BROKEN(__VA_ARGS__);                                                                           \
		}                                                                                                      \
	} while (0)

#define SKIP(...)                                                                                                      \
	do {                                                                                                           \
		snprintf(check_reason, sizeof check_reason, __VA_ARGS__);                                              \
		return 2;                                                                                              \
	} while (0)

#define TRY(call)                                                                                                      \
	do {                                                                                                           \
		int tried_ = (call);                                                                                   \
		if (tried_)                                                                                            \
			return tried_;                                                                                 \
	} while (0)

#define CUDA(call)                                                                                                     \
	do {                                                                                                           \
		check_call = #call;                                                                                    \
		check_line = __LINE__;                                                                                 \
		cudaError_t error_ = (call);                                                                           \
		if (error_)                                                                                            \
			BROKEN("%s: %s: %s", #call, cudaGetErrorName(error_), cudaGetErrorString(error_));             \
	} while (0)

/* Every call of Ferry must leave the thread on the device it was on. */
#define FERRY_RETURNS(expected, call)                                                                                  \
	do {                                                                                                           \
		int before_ = check_device();                                                                          \
		check_call = #call;                                                                                    \
		check_line = __LINE__;                                                                                 \
		ferryResult_t result_ = (call);                                                                        \
		if (result_ != (expected))                                                                             \
			BROKEN("%s: %s instead of %s; last message: %s", #call, ferryGetErrorString(result_),          \
			       ferryGetErrorString(expected), ferryGetLastError(NULL));                                \
		if (check_device() != before_)                                                                         \
			BROKEN("%s: the current device was %d and is %d", #call, before_, check_device());             \
	} while (0)
#define FERRY(call) FERRY_RETURNS(ferrySuccess, call)

/* The call fails with this code, and its message has the word. */
#define REFUSED(expected, word, call)                                                                                  \
	do {                                                                                                           \
		FERRY_RETURNS(expected, call);                                                                         \
		if (!strstr(ferryGetLastError(NULL), word))                                                            \
			BROKEN("%s: the message \"%s\" does not say \"%s\"", #call, ferryGetLastError(NULL), word);    \
	} while (0)

static inline void check_hung(int signal_number)
{
	char text[768];
	(void)signal_number;
	int length = snprintf(text, sizeof text, "# %s: not ended in time; at line %d: %s\n", check_name, check_line,
	                      check_call);
	if (write(STDOUT_FILENO, text, (size_t)length) < 0)
		_exit(2);
	_exit(1);
}

static inline bool check_wanted(const struct check_test *test, int argc, char **argv)
{
	bool wanted = argc < 2 && !test->hidden;
	for (int i = 1; i < argc; i++)
		wanted = wanted || (test->hidden ? !strcmp(test->name, argv[i]) : strstr(test->name, argv[i]) != NULL);
	return wanted;
}

static inline void check_say(const char *verdict, int index, const struct check_test *test, double seconds,
                             const char *more)
{
	if (check_is_first())
		printf("%s %d %s (%.1f s)%s%s\n", verdict, index + 1, test->name, seconds, more[0] ? " # " : "", more);
	fflush(stdout);
}

/*
 * Whether there is a GPU; otherwise says why not, at once: CUDA calls a missing driver an old one.
 */
static inline bool check_gpu(void)
{
	int devices = 0, driver = 0;
	char why[128] = "0 devices";
	cudaError_t error = cudaGetDeviceCount(&devices);
	if (!error && devices)
		return true;
	if (error)
		snprintf(why, sizeof why, "%s", cudaGetErrorString(error));
	if (!cudaDriverGetVersion(&driver) && !driver)
		snprintf(why, sizeof why, "no driver: libcuda.so.1 not found");
	if (check_is_first())
		printf("skipped: no GPU here (%s)\n", why);
	fflush(stdout);
	return false;
}

/* Returns at the first failure, or after the last test. */
static inline int check_child(int argc, char **argv, const struct check_test *tests, int ntests)
{
	unsigned limit = getenv("CHECK_SECONDS") ? (unsigned)atoi(getenv("CHECK_SECONDS")) : 60;
	signal(SIGALRM, check_hung);
	alarm(limit);
	if (!check_gpu())
		return CHECK_SKIP_EXIT;
	while (check_record->next < ntests) {
		const struct check_test *test = &tests[check_record->next];
		if (check_wanted(test, argc, argv)) {
			double start = check_seconds();
			check_name = test->name;
			check_record->running = 1;
			alarm(limit);
			int result = test->run();
			check_record->running = 0;
			check_say(result == 1 ? "not ok" : "ok", check_record->next, test, check_seconds() - start,
			          result == 2 ? check_reason : "");
			check_record->passed += result == 0;
			check_record->failed += result == 1;
			check_record->skipped += result == 2;
			if (result == 1) {
				check_record->next++;
				return 1;
			}
		}
		check_record->next++;
	}
	alarm(0);
	return 0;
}

/* Whether there is something left to do in another child. */
static inline bool check_parent(int status, const struct check_test *tests, int ntests)
{
	char how[64];
	if (check_record->running) {
		snprintf(how, sizeof how,
		         WIFSIGNALED(status) ? "killed by signal %d" : "ended the process, exit code %d",
		         WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
		check_say("not ok", check_record->next, &tests[check_record->next], 0, how);
		check_record->running = 0;
		check_record->failed++;
		check_record->next++;
	} else if (status && check_record->next < ntests && !check_record->failed) {
		printf("# the process ended with status 0x%x before any test\n", (unsigned)status);
		check_record->failed++;
		return false;
	}
	return check_record->next < ntests;
}

/* How many GPUs there are, found out by a child: a process that initializes CUDA has read its variables. */
static inline int check_devices(void)
{
	int status = 0, devices = 0;
	pid_t child = fork();
	if (child == 0)
		_exit(cudaGetDeviceCount(&devices) ? 0 : devices > 100 ? 100 : devices);
	return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

/*
 * Ranks of this process that share a GPU share its context, too. There a kernel's first launch behind a call that waits
 * holds up what other streams get after it, among it the other rank's call, which the first one waits for: CUDA's lazy
 * loading, and docs/design/waiting.md ("How a stream waits").
 */
static inline void check_load_early(void)
{
	int devices = check_devices(), ranks = getenv("FERRY_GPU_RANKS") ? atoi(getenv("FERRY_GPU_RANKS")) : 2;
	if (devices && ranks > devices)
		setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

static inline int check_main(int argc, char **argv, const struct check_test *tests, int ntests)
{
	int status = 0;
	setvbuf(stdout, NULL, _IOLBF, 0);
	check_record = (struct check_record *)mmap(NULL, sizeof *check_record, PROT_READ | PROT_WRITE,
	                                           MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (check_record == MAP_FAILED) {
		perror("mmap");
		return 1;
	}
	if (check_in_job()) {
		int code = check_child(argc, argv, tests, ntests);
		check_print_notes();
		if (code != CHECK_SKIP_EXIT && check_is_first())
			printf("# %d kept, %d broken, %d skipped\n", check_record->passed, check_record->failed,
			       check_record->skipped);
		return code;
	}
	check_load_early();
	do {
		fflush(stdout);
		pid_t child = fork();
		if (child == 0) {
			int code = check_child(argc, argv, tests, ntests);
			fflush(stdout);
			_exit(code); /* what a failed test has left behind is not worth waiting for */
		}
		if (child < 0 || waitpid(child, &status, 0) != child) {
			perror("fork");
			return 1;
		}
		if (WIFEXITED(status) && WEXITSTATUS(status) == CHECK_SKIP_EXIT)
			return CHECK_SKIP_EXIT;
	} while (check_parent(status, tests, ntests));
	check_print_notes();
	printf("# %d kept, %d broken, %d skipped\n", check_record->passed, check_record->failed, check_record->skipped);
	return check_record->failed > 0;
}

#endif
