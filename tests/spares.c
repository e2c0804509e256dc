/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Routers that stand by: the one that is killed is replaced without anybody's doing, by one whose contexts are there
 * already where FERRY_SPARE_GPUS says so. Over the double of CUDA, which tells of each context that is made.
 */
#include "tests/fake_cuda/places.h"
#include "tests/fake_cuda/routers.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT 30011
#define GPUS  4 /* that the double has */

static const int devices[] = {0, 1};
static char told[] = "/tmp/ferry-tests-contexts-XXXXXX";

/* Contexts that the process has made; *which: bit g: on GPU g. */
static int contexts_of(pid_t process, unsigned *which)
{
	FILE *file = fopen(told, "r");
	int pid, gpu, count = 0;
	assert_non_null(file);
	*which = 0;
	while (fscanf(file, "%d %d", &pid, &gpu) == 2)
		if (pid == process) {
			*which |= 1u << gpu;
			count++;
		}
	fclose(file);
	return count;
}

/* What ferry-stat has of the router that serves, once the spare has told that one, which it does when it is ready. */
static void stat_says(const char *option, const char *words)
{
	char said[4096], command[512];
	snprintf(command, sizeof command, "%s %s", FERRY_STAT_EXE, option);
	for (int looks = 0; looks < 100; looks++) {
		FILE *stat = popen(command, "r");
		assert_non_null(stat);
		said[fread(said, 1, sizeof said - 1, stat)] = '\0';
		assert_int_equal(pclose(stat), 0);
		if (strstr(said, words))
			return;
	}
	fail_msg("\"%s\", expected \"%s\"", said, words);
}

/*
 * A router is killed under calls beside a spare with `setting`: that one has made contexts on `ahead` before, and on
 * all that the ranks are on behind it.
 */
static void replaced(const char *setting, unsigned ahead)
{
	const unsigned used = 1u << devices[0] | 1u << devices[1];
	struct gang gang;
	struct place places[MOST_PLACES];
	unsigned which;
	char said[40];
	if (setting)
		setenv("FERRY_SPARE_GPUS", setting, 1);
	setenv("FAKE_CUDA_TOLD", told, 1);
	gang_open(&gang, 2, devices, 1);
	pid_t spare = routers_open_spare(0);
	unsetenv("FERRY_SPARE_GPUS");
	unsetenv("FAKE_CUDA_TOLD");
	places_open(places, &gang, COUNT);
	assert_int_equal(contexts_of(routers_pid(0), &which), 2); /* the one that serves makes none ahead */
	assert_int_equal(contexts_of(spare, &which), __builtin_popcount(ahead));
	assert_int_equal(which, ahead);
	snprintf(said, sizeof said, "spares=1 spare_gpus=%d", __builtin_popcount(ahead));
	stat_says("--routers", said);
	for (int round = 0; round < 20; round++)
		places_round(places, &gang);
	routers_replace(0);
	places_settle(places, &gang, 20);
	assert_int_equal(contexts_of(spare, &which), __builtin_popcount(ahead | used));
	assert_int_equal(which, ahead | used);
	stat_says("--once", "router replaced 1 time, the last in ");
	places_close(places, &gang);
	gang_close(&gang);
	routers_close();
}

static void a_spare_makes_its_contexts_when_it_takes_over(void **state)
{
	(void)state;
	replaced(NULL, 0);
}

static void a_spare_has_made_its_contexts_ahead_where_it_is_told_to(void **state)
{
	(void)state;
	replaced("all", (1u << GPUS) - 1);
}

static void a_spare_is_told_of_gpus_by_number_and_uuid(void **state)
{
	CUuuid uuid;
	char setting[64];
	int length = snprintf(setting, sizeof setting, "3,GPU-");
	(void)state;
	CU(cuDeviceGetUuid(&uuid, 1));
	for (int i = 0; i < 16; i++)
		length += snprintf(setting + length, sizeof setting - (size_t)length,
		                   i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x",
		                   (unsigned char)uuid.bytes[i]);
	replaced(setting, 1u << 1 | 1u << 3);
}

/* Until the end of `test`. */
static void hear(char *said, size_t bytes, void (*test)(void))
{
	FILE *file = tmpfile();
	int before = dup(STDERR_FILENO);
	assert_true(file && before >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
	test();
	assert_true(dup2(before, STDERR_FILENO) >= 0);
	close(before);
	rewind(file);
	said[fread(said, 1, bytes - 1, file)] = '\0';
	fclose(file);
}

static void replace_one(void)
{
	replaced("all", (1u << GPUS) - 1);
}

static void each_step_of_a_takeover_is_told(void **state)
{
	static const char *const of_rank[] = {"rank 0, domain 0: the connection to the router has closed\n",
	                                      "rank 0, domain 0: the process of the router has ended\n",
	                                      "rank 0, domain 0: a router listens\n",
	                                      "rank 0, domain 0: handed over: 1 plans, 2 exports, ",
	                                      "rank 0, domain 0: that router serves\n", NULL};
	static const char *const of_router[] = {"router 0: rank 0 is here\n", "router 0: rank 0 has handed over all\n",
	                                        "router 0: its attendant is ready to move data\n",
	                                        "router 0: serves the job of 2 ranks\n", NULL};
	static const char *const *const steps[] = {of_rank, of_router};
	char said[16384];
	(void)state;
	setenv("FERRY_DEBUG", "takeover", 1);
	hear(said, sizeof said, replace_one);
	unsetenv("FERRY_DEBUG");
	for (int who = 0; who < 2; who++) {
		const char *at = said;
		for (const char *const *step = steps[who]; *step; step++)
			if (!(at = strstr(at, *step)))
				fail_msg("no \"%s\" where it belongs in:\n%s", *step, said);
	}
}

static void gpus_that_a_spare_cannot_know_are_refused_by_name(void **state)
{
	static const char *const settings[] = {"every", "0,,1", "GPU-0011", "64", "1x"};
	char command[512], said[512];
	(void)state;
	for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
		snprintf(command, sizeof command, "FERRY_SPARE_GPUS=%s %s --spare 2>&1", settings[i], FERRY_ROUTER_EXE);
		FILE *router = popen(command, "r");
		assert_non_null(router);
		said[fread(said, 1, sizeof said - 1, router)] = '\0';
		int status = pclose(router);
		if (!WIFEXITED(status) || WEXITSTATUS(status) != 1 || !strstr(said, "FERRY_SPARE_GPUS="))
			fail_msg("%s: status %d, \"%s\"", settings[i], status, said);
	}
}

#define TEST(name) cmocka_unit_test_teardown(name, no_misuse)

int main(void)
{
	const struct CMUnitTest tests[] = {
	        TEST(a_spare_makes_its_contexts_when_it_takes_over),
	        TEST(a_spare_has_made_its_contexts_ahead_where_it_is_told_to),
	        TEST(a_spare_is_told_of_gpus_by_number_and_uuid),
	        TEST(each_step_of_a_takeover_is_told),
	        TEST(gpus_that_a_spare_cannot_know_are_refused_by_name),
	};
	int file = mkstemp(told);
	if (file < 0)
		return 1;
	close(file);
	fake_is_the_driver();
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	unlink(told);
	return failed;
}
