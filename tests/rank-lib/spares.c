/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Routers that stand by: one that is killed is replaced by one of them. Over the double of CUDA, which tells of each
 * context that is made: a router that stands by has none.
 */
#include "tests/fake_cuda/places.h"
#include "tests/fake_cuda/routers.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define COUNT 30011
#define MOST  2         /* that stand by */
#define USED  (1u | 2u) /* bit g: a rank is on GPU g */

static const int devices[] = {0, 1};
static char logged[] = "/tmp/ferry-tests-contexts-XXXXXX";

/* Contexts that the process has made; *which: bit g: on GPU g. */
static int contexts_of(pid_t process, unsigned *which)
{
	FILE *file = fopen(logged, "r");
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

static void ask_stat(const char *option, char *said, size_t bytes)
{
	char command[512];
	snprintf(command, sizeof command, "%s %s", FERRY_STAT_EXE, option);
	FILE *stat = popen(command, "r");
	assert_non_null(stat);
	said[fread(said, 1, bytes - 1, stat)] = '\0';
	assert_int_equal(pclose(stat), 0);
}

static void stat_says(const char *option, const char *flags)
{
	char said[4096];
	for (int looks = 0; looks < 100; looks++) {
		ask_stat(option, said, sizeof said);
		if (strstr(said, flags))
			return;
	}
	fail_msg("\"%s\", expected \"%s\"", said, flags);
}

static void made(pid_t process, unsigned expected)
{
	unsigned which;
	assert_int_equal(contexts_of(process, &which), __builtin_popcount(expected));
	assert_int_equal(which, expected);
}

/* It is one of the spares, which is none any more. */
static pid_t who_serves(pid_t *spares)
{
	char said[4096];
	ask_stat("--routers", said, sizeof said);
	const char *at = strstr(said, " pid=");
	pid_t process = at ? (pid_t)atoi(at + strlen(" pid=")) : 0;
	for (int i = 0; i < MOST; i++)
		if (process && spares[i] == process) {
			spares[i] = 0;
			return process;
		}
	fail_msg("none of the spares serves: \"%s\"", said);
	return 0;
}

/* The one that runs is killed under calls. */
static void kill_one(struct place *places, struct gang *gang, pid_t *spares)
{
	uint32_t rounds = places[0].round;
	for (int round = 0; round < 20; round++)
		places_round(places, gang);
	routers_kill(0);
	places_settle(places, gang, rounds + 20);
	routers_follow(0, who_serves(spares));
	made(routers_pid(0), USED);
	for (int i = 0; i < MOST; i++)
		if (spares[i])
			made(spares[i], 0);
}

/* The router is killed, and then each of `count` spares but the last. */
static void replaced(int count)
{
	struct gang gang;
	struct place places[MOST_PLACES];
	pid_t spares[MOST] = {0};
	char said[64];
	setenv("FAKE_CUDA_TOLD", logged, 1);
	gang_open(&gang, 2, devices, 1);
	for (int i = 0; i < count; i++)
		spares[i] = routers_open_spare(0);
	unsetenv("FAKE_CUDA_TOLD");
	places_open(places, &gang, COUNT);
	made(routers_pid(0), USED);
	for (int killed = 0; killed < count; killed++)
		kill_one(places, &gang, spares);
	snprintf(said, sizeof said, "router replaced %d time%s, the last in ", count, count > 1 ? "s" : "");
	stat_says("--once", said);
	places_close(places, &gang);
	gang_close(&gang);
	routers_close();
}

static void a_spare_makes_its_contexts_when_it_takes_over(void **state)
{
	(void)state;
	replaced(1);
}

/* Nothing starts another here: the spare that the first kill leaves stands by for the next one. */
static void two_kills_are_served_by_two_spares(void **state)
{
	(void)state;
	replaced(2);
}

#define TEST(name) cmocka_unit_test_teardown(name, no_misuse)

int main(void)
{
	const struct CMUnitTest tests[] = {
	        TEST(a_spare_makes_its_contexts_when_it_takes_over),
	        TEST(two_kills_are_served_by_two_spares),
	};
	int file = mkstemp(logged);
	if (file < 0)
		return 1;
	close(file);
	fake_is_the_driver();
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	unlink(logged);
	return failed;
}
