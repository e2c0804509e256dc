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
#define MOST  2 /* that stand by */

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

static void ask_stat(const char *option, char *said, size_t bytes)
{
	char command[512];
	snprintf(command, sizeof command, "%s %s", FERRY_STAT_EXE, option);
	FILE *stat = popen(command, "r");
	assert_non_null(stat);
	said[fread(said, 1, bytes - 1, stat)] = '\0';
	assert_int_equal(pclose(stat), 0);
}

/* What ferry-stat has of the router that serves, once the spare has told that one, which it does when it is ready. */
static void stat_says(const char *option, const char *words)
{
	char said[4096];
	for (int looks = 0; looks < 100; looks++) {
		ask_stat(option, said, sizeof said);
		if (strstr(said, words))
			return;
	}
	fail_msg("\"%s\", expected \"%s\"", said, words);
}

static void made(pid_t process, unsigned expected)
{
	unsigned which;
	assert_int_equal(contexts_of(process, &which), __builtin_popcount(expected));
	assert_int_equal(which, expected);
}

static void stand_by(int count, unsigned ahead)
{
	char said[40];
	snprintf(said, sizeof said, "spares=%d spare_gpus=%d", count, count * __builtin_popcount(ahead));
	if (count)
		stat_says("--routers", said);
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

/* The one that runs is killed under calls. `left` others stand by then, with the contexts that they had. */
static void kill_one(struct place *places, struct gang *gang, pid_t *spares, int left, unsigned ahead)
{
	const unsigned used = 1u << devices[0] | 1u << devices[1];
	uint32_t rounds = places[0].round;
	for (int round = 0; round < 20; round++)
		places_round(places, gang);
	routers_kill(0);
	places_settle(places, gang, rounds + 20);
	routers_follow(0, who_serves(spares));
	made(routers_pid(0), ahead | used);
	stand_by(left, ahead);
	for (int i = 0; i < MOST; i++)
		if (spares[i])
			made(spares[i], ahead);
}

/*
 * The router is killed, and then each of `count` spares with `setting` but the last, which nobody replaces: each has
 * made contexts on `ahead` before, and on all that the ranks are on behind its turn.
 */
static void replaced(const char *setting, unsigned ahead, int count)
{
	struct gang gang;
	struct place places[MOST_PLACES];
	pid_t spares[MOST] = {0};
	char said[64];
	if (setting)
		setenv("FERRY_SPARE_GPUS", setting, 1);
	setenv("FAKE_CUDA_TOLD", told, 1);
	gang_open(&gang, 2, devices, 1);
	for (int i = 0; i < count; i++)
		spares[i] = routers_open_spare(0);
	unsetenv("FERRY_SPARE_GPUS");
	unsetenv("FAKE_CUDA_TOLD");
	places_open(places, &gang, COUNT);
	made(routers_pid(0), 1u << devices[0] | 1u << devices[1]); /* the one that serves makes none ahead */
	for (int i = 0; i < count; i++)
		made(spares[i], ahead);
	stand_by(count, ahead);
	for (int left = count; left > 0; left--)
		kill_one(places, &gang, spares, left - 1, ahead);
	snprintf(said, sizeof said, "router replaced %d time%s, the last in ", count, count > 1 ? "s" : "");
	stat_says("--once", said);
	places_close(places, &gang);
	gang_close(&gang);
	routers_close();
}

static void a_spare_makes_its_contexts_when_it_takes_over(void **state)
{
	(void)state;
	replaced(NULL, 0, 1);
}

static void a_spare_has_made_its_contexts_ahead_where_it_is_told_to(void **state)
{
	(void)state;
	replaced("all", (1u << GPUS) - 1, 1);
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
	replaced(setting, 1u << 1 | 1u << 3, 1);
}

/* Nobody starts another here: whom the first kill leaves stands by for the next one, with what it has. */
static void two_kills_are_served_by_two_spares_whose_contexts_were_made_once(void **state)
{
	(void)state;
	replaced("all", (1u << GPUS) - 1, 2);
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
	replaced("all", (1u << GPUS) - 1, 1);
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
	        TEST(two_kills_are_served_by_two_spares_whose_contexts_were_made_once),
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
