/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises to who runs a program under ferryrun while its routers are killed: every call ends, with the bits that it
 * has when nobody is killed; no rank dies, and nothing is left.
 */
#include "commands.h"

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#define MOST_RANKS 8

static uint64_t seed = 1;

static uint32_t random_below(uint32_t limit)
{
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(seed >> 33) % limit;
}

static void sleep_us(uint32_t us)
{
	const struct timespec time = {us / 1000000, us % 1000000 * 1000};
	nanosleep(&time, NULL);
}

/* What the ranks of a run have printed. */
struct outcome {
	int code;
	unsigned long long sums[MOST_RANKS];
	int ranks; /* that have */
	double longest_ms;
	char text[1 << 16];
};

static pid_t start_run(const char *options, const char *arguments)
{
	char command[512];
	snprintf(command, sizeof command,
	         "exec $B/ferryrun %s --fork --timeout 120 -- $B/takeover_rank %s >$FERRY_SOCKET_DIR/out 2>&1", options,
	         arguments);
	return start(command);
}

static void read_outcome(struct outcome *outcome)
{
	char text[256];
	*outcome = (struct outcome){0};
	run("grep -v 'another takes its place' $FERRY_SOCKET_DIR/out", outcome->text, sizeof outcome->text);
	run("rm $FERRY_SOCKET_DIR/out", text, sizeof text);
	for (char *line = outcome->text; (line = strstr(line, "rank ")); line++) {
		int rank;
		unsigned long long sum;
		double longest;
		if (sscanf(line, "rank %d sum %llx longest %lf", &rank, &sum, &longest) != 3 || rank >= MOST_RANKS)
			continue;
		outcome->sums[rank] = sum;
		outcome->ranks++;
		outcome->longest_ms = longest > outcome->longest_ms ? longest : outcome->longest_ms;
	}
}

/* Of the ferryrun: that one of its routers, or 0. */
static pid_t find_router(pid_t launcher)
{
	char path[64], name[32];
	int pids[64], count = 0;
	snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)launcher, (int)launcher);
	FILE *file = fopen(path, "r");
	for (int pid; file && count < 64 && fscanf(file, "%d", &pid) == 1;) {
		snprintf(path, sizeof path, "/proc/%d/comm", pid);
		FILE *comm = fopen(path, "r");
		if (comm && fgets(name, sizeof name, comm) && !strcmp(name, "ferry-router\n"))
			pids[count++] = pid;
		if (comm)
			fclose(comm);
	}
	if (file)
		fclose(file);
	return count ? pids[random_below((uint32_t)count)] : 0;
}

static void await_beginning(pid_t launcher)
{
	char text[64];
	while (run("grep -c begins $FERRY_SOCKET_DIR/out", text, sizeof text) || atoi(text) == 0)
		if (waitpid(launcher, NULL, WNOHANG))
			fail_msg("the run has ended");
}

/* When and how often routers are killed. */
struct killing {
	bool begun;                 /* not before the ranks have begun */
	uint32_t least_us, most_us; /* in peace between two */
	int again;                  /* of each that is killed, so many successors are killed as soon as they are there, at most */
};

static bool kill_one(pid_t launcher)
{
	pid_t router = find_router(launcher);
	return router && !kill(router, SIGKILL);
}

/* Kills routers at random instants until the run has ended; how many. */
static int kill_routers(pid_t launcher, const struct killing *killing, int *status)
{
	int kills = 0;
	while (!waitpid(launcher, status, WNOHANG)) {
		sleep_us(killing->least_us + random_below(killing->most_us - killing->least_us));
		kills += kill_one(launcher);
		for (int left = killing->again ? (int)random_below((uint32_t)killing->again + 1) : 0; left > 0; left--) {
			for (int looks = 0; looks < 1000 && !find_router(launcher); looks++)
				sleep_us(100);
			sleep_us(random_below(12000)); /* it listens after 2 to 6 ms */
			kills += kill_one(launcher);
		}
	}
	return kills;
}

static void compare(const struct outcome *undisturbed, const struct outcome *killed, int status)
{
	if (status || killed->ranks != undisturbed->ranks)
		fail_msg("status %x, %d ranks of %d: %s", status, killed->ranks, undisturbed->ranks, killed->text);
	for (int rank = 0; rank < killed->ranks; rank++)
		if (killed->sums[rank] != undisturbed->sums[rank])
			fail_msg("rank %d has other bits: %s", rank, killed->text);
}

/* The run is what it is without kills. */
static void survive(const char *options, const char *arguments, const struct killing *killing, int least_kills)
{
	static struct outcome undisturbed, killed;
	int status;
	pid_t launcher = start_run(options, arguments);
	assert_int_equal(waitpid(launcher, &status, 0), launcher);
	read_outcome(&undisturbed);
	if (status || !undisturbed.ranks)
		fail_msg("undisturbed: %s", undisturbed.text);
	launcher = start_run(options, arguments);
	if (killing->begun)
		await_beginning(launcher);
	int kills = kill_routers(launcher, killing, &status);
	read_outcome(&killed);
	print_message("%d kills, longest call %.1f ms, %.1f without\n", kills, killed.longest_ms,
	              undisturbed.longest_ms);
	compare(&undisturbed, &killed, status);
	assert_true(kills >= least_kills);
}

static void sums_of_16_mib_have_the_same_bits_however_often_their_router_is_killed(void **state)
{
	(void)state;
	static const struct killing killing = {.begun = true, .least_us = 20000, .most_us = 120000};
	survive("-n 4 --domains 1", "60 16777216 0 0", &killing, 10);
}

static void calls_of_all_kinds_and_messages_survive_their_router(void **state)
{
	(void)state;
	static const struct killing killing = {.begun = true, .least_us = 5000, .most_us = 90000};
	survive("-n 4 --domains 1", "400 1048576 -1 0", &killing, 10);
}

static void each_of_two_domains_loses_its_router_by_itself(void **state)
{
	(void)state;
	static const struct killing killing = {.begun = true, .least_us = 5000, .most_us = 90000};
	survive("-n 4 --domains 2", "300 2097152 -1 0", &killing, 10);
}

static void successors_that_are_killed_as_they_adopt_are_the_same_case_again(void **state)
{
	(void)state;
	static const struct killing killing = {.begun = true, .least_us = 10000, .most_us = 60000, .again = 3};
	survive("-n 4 --domains 1", "300 1048576 -1 2", &killing, 10);
}

/* Also while they attach: those that run are so short that they do little else. */
static void ranks_attach_while_their_routers_die(void **state)
{
	(void)state;
	static const struct killing killing = {.least_us = 1000, .most_us = 60000};
	for (int run = 0; run < 20; run++)
		survive("-n 4 --domains 2", "3 65536 -1 0", &killing, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_directory, remove_directory)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        TEST(sums_of_16_mib_have_the_same_bits_however_often_their_router_is_killed),
	        TEST(calls_of_all_kinds_and_messages_survive_their_router),
	        TEST(each_of_two_domains_loses_its_router_by_itself),
	        TEST(successors_that_are_killed_as_they_adopt_are_the_same_case_again),
	        TEST(ranks_attach_while_their_routers_die),
	};
	if (argc != 2 && argc != 3)
		return 64;
	setenv("B", argv[1], 1);
	if (argc == 3)
		cmocka_set_test_filter(argv[2]);
	seed = (uint64_t)getpid();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
