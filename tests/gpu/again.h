/* SPDX-License-Identifier: Apache-2.0 */
/**
 * This program started again for one hidden test: with variables that CUDA reads but once, or as ranks of a job of
 * their own, of which one may die. What is started ends with the process that has started it, and by itself after
 * AGAIN_SECONDS. Included after gang.h, by one file each.
 */
#ifndef FERRY_TESTS_GPU_AGAIN_H
#define FERRY_TESTS_GPU_AGAIN_H

#include "tests/gpu/gang.h"

#include <errno.h>
#include <sys/prctl.h>

#define AGAIN_SECONDS    "25"
#define AGAIN_KEY_DIGITS 32

/** Set where the program has been started again: then its environment is as it shall be. */
#define AGAIN_MARK "CHECK_AGAIN"

/** In the child, which this call turns into the program. `variables`: pairs of name and value, NULL behind the last. */
static inline void again_become(const char *test, const char *const *variables)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	setenv(AGAIN_MARK, "1", 1);
	setenv("CHECK_SECONDS", AGAIN_SECONDS, 1);
	for (; *variables; variables += 2)
		setenv(variables[0], variables[1], 1);
	execl("/proc/self/exe", check_name, test, (char *)NULL);
	_exit(127);
}

/** A key that the job has not had yet, the same on all its ranks: each makes its nth one the nth time. */
static inline void again_key(char key[AGAIN_KEY_DIGITS + 1])
{
	static const char digits[] = "0123456789abcdef";
	static unsigned times;
	const char *given = getenv("FERRY_JOB_KEY");
	memset(key, 'f', AGAIN_KEY_DIGITS);
	key[AGAIN_KEY_DIGITS] = '\0';
	if (given && strlen(given) == AGAIN_KEY_DIGITS)
		memcpy(key, given, AGAIN_KEY_DIGITS);
	const char *digit = strchr(digits, key[0]);
	key[0] = digits[((digit ? digit - digits : 0) + ++times) % 16];
}

/* A test that starts its own name again would never end. */
static inline int again_once(const char *test)
{
	REQUIRE(!getenv(AGAIN_MARK), "%s within what has been started again", test);
	return 0;
}

/** Runs the hidden test once more: in a job, by each of its ranks, as a job of the same shape. */
static inline int again(const char *test, const char *const *variables)
{
	char key[AGAIN_KEY_DIGITS + 1];
	int status;
	TRY(again_once(test));
	again_key(key);
	fflush(stdout);
	pid_t child = fork();
	REQUIRE(child >= 0, "fork: %s", strerror(errno));
	if (!child) {
		if (check_in_job())
			setenv("FERRY_JOB_KEY", key, 1);
		again_become(test, variables);
	}
	REQUIRE(waitpid(child, &status, 0) == child, "waitpid: %s", strerror(errno));
	REQUIRE(WIFEXITED(status) && !WEXITSTATUS(status), "%s ended with status 0x%x, %s=%s", test, (unsigned)status,
	        variables[0] ? variables[0] : "", variables[0] ? variables[1] : "");
	return 0;
}

/** Runs the hidden test as so many ranks of one job; statuses: how each has ended. Not within a job. */
static inline int again_as_ranks(const char *test, int nranks, int *statuses)
{
	char key[AGAIN_KEY_DIGITS + 1], rank[12], size[12];
	unsigned long long random[2];
	pid_t children[GANG_MOST];
	TRY(again_once(test));
	FILE *source = fopen("/dev/urandom", "r");
	REQUIRE(source && fread(random, sizeof random, 1, source) == 1, "/dev/urandom: %s", strerror(errno));
	fclose(source);
	snprintf(key, sizeof key, "%016llx%016llx", random[0], random[1]);
	snprintf(size, sizeof size, "%d", nranks);
	fflush(stdout);
	for (int i = 0; i < nranks; i++) {
		snprintf(rank, sizeof rank, "%d", i);
		const char *const variables[] =
		        {"FERRY_RANK",    rank, "FERRY_SIZE", size, "FERRY_LOCAL_RANK", rank, "FERRY_LOCAL_SIZE", size,
		         "FERRY_JOB_KEY", key,  NULL};
		children[i] = fork();
		REQUIRE(children[i] >= 0, "fork: %s", strerror(errno));
		if (!children[i])
			again_become(test, variables);
	}
	for (int i = 0; i < nranks; i++)
		REQUIRE(waitpid(children[i], &statuses[i], 0) == children[i], "waitpid: %s", strerror(errno));
	return 0;
}

#endif
