/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises to the user of a program under ferryrun while its routers are killed: every call ends, with the bits that it
 * has when none is killed; no rank dies, and nothing is left.
 */
#include "tests/commands.h"

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
	char command[1024];
	snprintf(command, sizeof command,
	         "exec $B/ferryrun %s --fork --timeout 120 -- " TAKEOVER_RANK " %s >$FERRY_SOCKET_DIR/out 2>&1",
	         options, arguments);
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

/* One of the launcher's children of that name, or 0. */
static pid_t find_child(pid_t launcher, const char *wanted)
{
	char path[64], name[32];
	int pids[64], count = 0;
	snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)launcher, (int)launcher);
	FILE *file = fopen(path, "r");
	for (int pid; file && count < 64 && fscanf(file, "%d", &pid) == 1;) {
		snprintf(path, sizeof path, "/proc/%d/comm", pid);
		FILE *comm = fopen(path, "r");
		if (comm && fgets(name, sizeof name, comm) && !strncmp(name, wanted, strlen(wanted)))
			pids[count++] = pid;
		if (comm)
			fclose(comm);
	}
	if (file)
		fclose(file);
	return count ? pids[random_below((uint32_t)count)] : 0;
}

static void await_beginning(pid_t launcher, int ranks)
{
	char text[64];
	while (run("grep -c begins $FERRY_SOCKET_DIR/out", text, sizeof text) || atoi(text) < ranks)
		if (waitpid(launcher, NULL, WNOHANG))
			fail_msg("the run has ended");
}

static pid_t find_router(pid_t launcher)
{
	return find_child(launcher, "ferry-router");
}

/* When and how often routers are killed. */
struct killing {
	bool begun;                 /* not before the ranks have begun */
	uint32_t least_us, most_us; /* in peace between two */
	uint32_t again; /* of each that is killed, at most so many successors are killed as soon as they are there */
};

static bool kill_one(pid_t launcher)
{
	pid_t router = find_router(launcher);
	return router && !kill(router, SIGKILL);
}

/* On a busy machine the run would go on for as long as it is killed. */
#define MOST_KILLS 24

/* Kills routers at random instants until the run has ended; how many. */
static int kill_routers(pid_t launcher, const struct killing *killing, int *status)
{
	int kills = 0;
	while (!waitpid(launcher, status, WNOHANG)) {
		sleep_us(killing->least_us + random_below(killing->most_us - killing->least_us));
		if (kills >= MOST_KILLS)
			continue;
		kills += kill_one(launcher);
		for (uint32_t left = random_below(killing->again + 1); left > 0; left--) {
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

/* Each of so many runs, of at least so many kills together, is what it is without kills. */
static void survive(const char *options, const char *arguments, const struct killing *killing, int runs,
                    int least_kills)
{
	static struct outcome undisturbed, killed;
	const char *times = getenv("FERRY_TEST_TIMES"); /* of `make soak` */
	int status, kills = 0;
	pid_t launcher = start_run(options, arguments);
	assert_int_equal(waitpid(launcher, &status, 0), launcher);
	read_outcome(&undisturbed);
	if (status || !undisturbed.ranks)
		fail_msg("undisturbed: %s", undisturbed.text);
	for (runs *= times ? atoi(times) : 1; runs > 0; runs--) {
		launcher = start_run(options, arguments);
		if (killing->begun)
			await_beginning(launcher, 1);
		kills += kill_routers(launcher, killing, &status);
		read_outcome(&killed);
		print_message("%d kills, longest call %.1f ms, %.1f without\n", kills, killed.longest_ms,
		              undisturbed.longest_ms);
		compare(&undisturbed, &killed, status);
	}
	assert_true(kills >= least_kills);
}

static void sums_of_16_mib_have_the_same_bits_however_often_their_router_is_killed(void **state)
{
	(void)state;
	static const struct killing killing = {.begun = true, .least_us = 20000, .most_us = 90000};
	survive("-n 4 --domains 1", "14 16777216 0 0", &killing, 1, 3);
}

static void calls_of_all_kinds_and_messages_survive_their_router(void **state)
{
	(void)state;
	static const struct killing killing = {.begun = true, .least_us = 5000, .most_us = 60000};
	survive("-n 4 --domains 1", "400 1048576 -1 0", &killing, 1, 5);
}

static void each_of_two_domains_loses_its_router_by_itself(void **state)
{
	(void)state;
	static const struct killing killing = {.begun = true, .least_us = 5000, .most_us = 60000};
	survive("-n 4 --domains 2", "150 2097152 -1 0", &killing, 1, 5);
}

static void successors_that_are_killed_as_they_adopt_are_the_same_case_again(void **state)
{
	(void)state;
	static const struct killing killing = {.begun = true, .least_us = 10000, .most_us = 60000, .again = 3};
	survive("-n 4 --domains 1", "150 1048576 -1 2", &killing, 1, 5);
}

/* Also while they attach: those that run are so short that they do little else. */
static void ranks_attach_while_their_routers_die(void **state)
{
	(void)state;
	static const struct killing killing = {.least_us = 1000, .most_us = 30000};
	survive("-n 4 --domains 2", "3 65536 -1 0", &killing, 12, 0);
}

static void a_spare_router_takes_the_place_of_one_that_dies(void **state)
{
	(void)state;
	static const struct killing killing = {.begun = true, .least_us = 20000, .most_us = 90000};
	survive("-n 4 --domains 1 --spare", "150 1048576 -1 2", &killing, 1, 5);
}

/* Runs that go on until they are ended. */
#define ENDLESS "1000000 65536 0 1"

static pid_t another_router(pid_t launcher, pid_t before)
{
	pid_t router;
	while ((router = find_router(launcher)) == 0 || router == before)
		sleep_us(1000);
	return router;
}

/* The text that the command prints, once it has those words. */
static void await_words(const char *command, const char *words, char *text, size_t bytes)
{
	for (int looks = 0; looks < 500; looks++) {
		run(command, text, bytes);
		if (strstr(text, words))
			return;
		sleep_us(10000);
	}
	fail_msg("\"%s\" never says \"%s\": %s", command, words, text);
}

static void how_often_routers_were_replaced_and_how_long_it_took_is_told(void **state)
{
	(void)state;
	char text[1 << 16];
	int status;
	pid_t launcher = start_run("-n 2 --domains 1", ENDLESS);
	await_beginning(launcher, 1);
	for (int kills = 0; kills < 2; kills++) {
		pid_t router = find_router(launcher);
		kill(router, SIGKILL);
		another_router(launcher, router);
		await_words("$B/ferry-stat --json", kills ? "\"takeovers\":2" : "\"takeovers\":1", text,
		            sizeof text);
	}
	assert_non_null(strstr(text, "\"takeover_ms\":"));
	await_words("$B/ferry-stat --prometheus", "job_takeovers_total", text, sizeof text);
	kill(launcher, SIGTERM);
	sleep_us(300000);
	kill(launcher, SIGTERM); /* a second time: its ranks are deaf */
	assert_int_equal(waitpid(launcher, &status, 0), launcher);
	run("rm $FERRY_SOCKET_DIR/out", text, sizeof text);
}

/* It is stopped when its router dies, so that it does not come to the next one, and is killed then. */
static void a_rank_that_dies_while_its_router_is_replaced_ends_the_others_who_hear_its_number(void **state)
{
	(void)state;
	static struct outcome outcome;
	int status;
	pid_t launcher = start_run("-n 3 --domains 1", ENDLESS);
	await_beginning(launcher, 3); /* a rank says in the arena which process it is only as it begins */
	pid_t rank = find_child(launcher, "takeover_rank"), router = find_router(launcher);
	kill(rank, SIGSTOP);
	kill(router, SIGKILL);
	another_router(launcher, router);
	sleep_us(100000); /* the others come to it, or are on their way */
	kill(rank, SIGKILL);
	assert_int_equal(waitpid(launcher, &status, 0), launcher);
	read_outcome(&outcome);
	assert_int_not_equal(WEXITSTATUS(status), 0); /* of the rank that ended first */
	if (!strstr(outcome.text, "of 3 died while the router of domain 0 was being replaced"))
		fail_msg("%s", outcome.text);
}

/* One that crashes with all that it is given would be started for ever. */
static void a_router_that_crashes_again_and_again_is_not_started_for_ever(void **state)
{
	(void)state;
	static struct outcome outcome;
	int status;
	setenv("FERRY_ATTACH_TIMEOUT", "2", 1);
	pid_t launcher = start_run("-n 2 --domains 1", ENDLESS);
	unsetenv("FERRY_ATTACH_TIMEOUT");
	await_beginning(launcher, 1);
	/* on a busy machine one or the other lives for more than a second, and the count begins again */
	for (pid_t crashed = 0; !waitpid(launcher, &status, WNOHANG); sleep_us(1000)) {
		pid_t router = find_router(launcher);
		if (router && router != crashed)
			kill(crashed = router, SIGSEGV);
	}
	read_outcome(&outcome);
	assert_int_equal(WEXITSTATUS(status), 1);
	assert_non_null(strstr(outcome.text, "65 routers of domain 0 in a row crashed within a second: it is not"));
	assert_non_null(strstr(outcome.text, "the router of domain 0 died, and no other has taken its place for 2 s"));
}

/* Two ranks without a launcher. */
static pid_t start_ranks(const char *variables, const char *arguments)
{
	char command[1024];
	snprintf(command, sizeof command,
	         "exec >$FERRY_SOCKET_DIR/out 2>&1; export FERRY_SIZE=2 FERRY_DOMAINS=1 "
	         "FERRY_ROUTER_EXE=$B/ferry-router %s; "
	         "FERRY_RANK=1 " TAKEOVER_RANK " %s & FERRY_RANK=0 " TAKEOVER_RANK " %s; "
	         "first=$?; wait $! && exit $first",
	         variables, arguments, arguments);
	return start(command);
}

/* The one that answers; 0: none. ferry-stat tells of routers in other processes, too: those are not ours to kill. */
static pid_t find_shared_router(void)
{
	char text[4096];
	run("$B/ferry-stat --routers 2>/dev/null | grep \"^$FERRY_SOCKET_DIR/\"", text, sizeof text);
	const char *pid = strstr(text, " pid=");
	return pid ? atoi(pid + strlen(" pid=")) : 0;
}

static void end_shared_router(void)
{
	char text[64];
	pid_t router = find_shared_router();
	if (router) {
		kill(router, SIGKILL);
		waitpid(router, NULL, 0);
	}
	run("rm -f $FERRY_SOCKET_DIR/router-0.sock*", text, sizeof text);
}

/* Nobody else does: FERRY_ROUTER=auto. */
static void ranks_that_start_routers_start_the_next_one(void **state)
{
	(void)state;
	static struct outcome outcome;
	int status, kills = 0;
	pid_t ranks = start_ranks("FERRY_ROUTER=auto", "600 1048576 -1 2");
	await_beginning(ranks, 1);
	while (!waitpid(ranks, &status, WNOHANG)) {
		pid_t router = find_shared_router();
		sleep_us(random_below(100000));
		if (kills < MOST_KILLS / 2)
			kills += router && !kill(router, SIGKILL) && waitpid(router, NULL, 0) == router;
	}
	read_outcome(&outcome);
	end_shared_router();
	if (status || outcome.ranks != 2)
		fail_msg("status %x, %d kills: %s", status, kills, outcome.text);
	assert_true(kills >= 3);
}

static void ended_alone(const char *how)
{
	char command[64], text[4096];
	int status;
	pid_t router = start("exec $B/ferry-router --layout '0: cpus=0'");
	while (!find_shared_router())
		sleep_us(1000);
	snprintf(command, sizeof command, "3 65536 0 0 %s", how);
	pid_t ranks = start_ranks("FERRY_ROUTER=required FERRY_ATTACH_TIMEOUT=600 GO=$FERRY_SOCKET_DIR/go", command);
	await_words("cat $FERRY_SOCKET_DIR/out", "rank 0 begins", text, sizeof text);
	await_words("cat $FERRY_SOCKET_DIR/out", "rank 1 begins", text, sizeof text);
	sleep_us(200000); /* their calls are over */
	kill(router, SIGKILL);
	waitpid(router, NULL, 0);
	run("touch $FERRY_SOCKET_DIR/go", text, sizeof text);
	assert_int_equal(waitpid(ranks, &status, 0), ranks); /* else they wait for a router for longer than ctest */
	run("cat $FERRY_SOCKET_DIR/out; cd $FERRY_SOCKET_DIR && rm -f out go router-0.sock*", text, sizeof text);
	for (int rank = 0; rank < 2; rank++) {
		char words[32];
		snprintf(words, sizeof words, "rank %d ended\n", rank);
		if (status || !strstr(text, words) || strstr(text, "has not ended for"))
			fail_msg("%s, status %x: %s", how, status, text);
	}
}

static void communicators_end_though_no_router_takes_the_place_of_theirs(void **state)
{
	(void)state;
	ended_alone("destroy");
	ended_alone("abort");
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
	        TEST(a_spare_router_takes_the_place_of_one_that_dies),
	        TEST(how_often_routers_were_replaced_and_how_long_it_took_is_told),
	        TEST(a_rank_that_dies_while_its_router_is_replaced_ends_the_others_who_hear_its_number),
	        TEST(ranks_that_start_routers_start_the_next_one),
	        TEST(communicators_end_though_no_router_takes_the_place_of_theirs),
	        TEST(a_router_that_crashes_again_and_again_is_not_started_for_ever),
	};
	if (argc != 2 && argc != 3)
		return 64;
	setenv("B", argv[1], 1);
	if (argc == 3)
		cmocka_set_test_filter(argv[2]);
	seed = (uint64_t)getpid();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
