/* SPDX-License-Identifier: Apache-2.0 */
/*
 * However a run ends, nothing of it is left: no process, shared memory or socket. Given "loop" or
 * "abort" this program is a rank that calls until its communicator has an error; "abort": rank 0 aborts it.
 */
#include "tests/commands.h"

#include "ferry.h"

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#define COUNT (256u << 10)

/* ---- a rank ---- */

static void tell_pid(int rank)
{
	char path[128], text[160];
	snprintf(path, sizeof path, "%s/rank.%d", getenv("TEST_DIRECTORY"), rank);
	snprintf(text, sizeof text, "%s.new", path);
	FILE *file = fopen(text, "w");
	if (!file)
		exit(4);
	fprintf(file, "%d\n", (int)getpid());
	fclose(file);
	rename(text, path);
}

static int rank_main(bool aborts)
{
	static uint32_t values[COUNT];
	ferryComm_t comm;
	int rank;
	if (ferryCommInitEnv(&comm, NULL) || ferryCommUserRank(comm, &rank))
		return 4;
	for (int i = 0;; i++) {
		ferryResult_t result = ferryAllReduce(values, values, COUNT, ferryUint32, ferrySum, comm, NULL);
		if (i == 20)
			tell_pid(rank);
		if (aborts && i == 40 && rank == 0)
			break;
		if (!result)
			result = ferryStreamSynchronize(NULL);
		if (result)
			break;
	}
	return ferryCommAbort(comm) ? 5 : 3;
}

/* ---- what is left ---- */

static char self[256];

static int begin(void **state)
{
	int failed = make_directory(state);
	return failed || setenv("TEST_DIRECTORY", directory, 1);
}

static int count_lines(const char *command)
{
	char text[256];
	assert_int_equal(run(command, text, sizeof text), 0);
	return atoi(text);
}

/* Of memory that everybody sees; Ferry's has no name, but while it is made. */
static int shared_objects(void)
{
	return count_lines("ls /dev/shm | grep -c ferry; true");
}

/* Beside other suites under a sanitizer what takes a second takes more than 20: so long is a hang. */
#define HANG_S 100

/* Everything that was started here, whatever its parents were, has ended. */
static void all_have_ended(void)
{
	for (int i = 0; i < HANG_S * 100; i++) {
		pid_t ended;
		while ((ended = waitpid(-1, NULL, WNOHANG)) > 0)
			;
		if (ended < 0)
			return;
		nanosleep(&(struct timespec){0, 10000000}, NULL);
	}
	char text[4096];
	run("ps -eo pid,ppid,stat,args | grep ferry | grep -v grep", text, sizeof text);
	fail_msg("something lives still after %d s:\n%s", HANG_S, text);
}

static pid_t pid_of_rank(int rank)
{
	char path[128];
	int pid = 0;
	snprintf(path, sizeof path, "%s/rank.%d", directory, rank);
	for (int i = 0; i < 3000 && access(path, F_OK); i++)
		nanosleep(&(struct timespec){0, 10000000}, NULL);
	FILE *file = fopen(path, "r");
	assert_non_null(file);
	assert_int_equal(fscanf(file, "%d", &pid), 1);
	fclose(file);
	unlink(path);
	return pid;
}

static void no_ranks_are_told(void)
{
	char text[16];
	run("rm -f $TEST_DIRECTORY/rank.*", text, sizeof text);
}

static pid_t child_of(pid_t parent, const char *name)
{
	char command[128], text[64];
	snprintf(command, sizeof command, "pgrep -P %d -x %s | head -1", (int)parent, name);
	run(command, text, sizeof text);
	assert_true(atoi(text) > 0);
	return atoi(text);
}

/* ---- runs ---- */

/* Three ranks, two routers of their own. */
static pid_t start_run(const char *variables, const char *options, const char *mode)
{
	char command[512];
	snprintf(command, sizeof command,
	         "%s exec $B/ferryrun -n 3 --domains 2 --fork --grace 2 %s -- %s %s 2>/dev/null", variables, options,
	         self, mode);
	pid_t child = start(command);
	assert_true(child > 0);
	return child;
}

static void nothing_is_left(int before)
{
	all_have_ended();
	no_ranks_are_told();
	assert_int_equal(shared_objects(), before);
	assert_int_equal(entries_left(), 0);
}

static void of_a_run_whose_rank_is_killed(void **state)
{
	(void)state;
	int before = shared_objects();
	start_run("", "", "loop");
	kill(pid_of_rank(1), SIGKILL);
	nothing_is_left(before);
}

static void of_a_run_whose_rank_aborts(void **state)
{
	(void)state;
	int before = shared_objects();
	start_run("", "", "abort");
	nothing_is_left(before);
}

static void of_a_run_whose_rank_stands_still_for_too_long(void **state)
{
	(void)state;
	int before = shared_objects();
	start_run("FERRY_TIMEOUT=1 FERRY_ON_TIMEOUT=fail", "", "loop");
	kill(pid_of_rank(2), SIGSTOP);
	nothing_is_left(before);
}

static void of_a_run_whose_router_is_killed_for_good(void **state)
{
	(void)state;
	int before = shared_objects();
	pid_t launcher = start_run("FERRY_TAKEOVER=off", "", "loop");
	pid_of_rank(0);
	kill(child_of(launcher, "ferry-router"), SIGKILL);
	nothing_is_left(before);
}

static void of_a_run_whose_router_is_replaced(void **state)
{
	(void)state;
	int before = shared_objects();
	pid_t launcher = start_run("", "--spare", "loop");
	pid_of_rank(0);
	kill(child_of(launcher, "ferry-router"), SIGKILL);
	nanosleep(&(struct timespec){0, 300000000}, NULL);
	kill(pid_of_rank(1), SIGKILL);
	nothing_is_left(before);
}

static void of_a_run_whose_launcher_is_killed(void **state)
{
	(void)state;
	int before = shared_objects();
	pid_t launcher = start_run("", "", "loop");
	pid_of_rank(0);
	kill(launcher, SIGKILL);
	nothing_is_left(before);
}

/* ---- routers that live on ---- */

static pid_t router; /* 0: none; a test that fails leaves it to its teardown */

/* What a router has of jobs: memory without a name, threads, connections. */
struct holdings {
	int memory, threads, sockets;
};

static struct holdings holdings(void)
{
	char command[256];
	struct holdings held;
	snprintf(command, sizeof command, "ls -l /proc/%d/fd | grep -c memfd; true", (int)router);
	held.memory = count_lines(command);
	snprintf(command, sizeof command, "ls -l /proc/%d/fd | grep -c socket; true", (int)router);
	held.sockets = count_lines(command);
	snprintf(command, sizeof command, "awk '/^Threads/{print $2}' /proc/%d/status", (int)router);
	held.threads = count_lines(command);
	return held;
}

static void comes_back_to(struct holdings before)
{
	struct holdings now = {0};
	for (int i = 0; i < 500; i++) {
		now = holdings();
		if (!memcmp(&now, &before, sizeof now))
			return;
		nanosleep(&(struct timespec){0, 20000000}, NULL);
	}
	fail_msg("the router has %d files of memory, %d threads, %d sockets; it had %d, %d, %d", now.memory,
	         now.threads, now.sockets, before.memory, before.threads, before.sockets);
}

/* Once all of a job but threads is given back, which may stay. The job's own thread ends before its memory does. */
static struct holdings without_jobs(struct holdings before)
{
	struct holdings now = holdings();
	for (int i = 0; i < 500 && now.memory + now.sockets > before.memory + before.sockets; i++) {
		nanosleep(&(struct timespec){0, 20000000}, NULL);
		now = holdings();
	}
	assert_int_equal(now.memory, before.memory);
	assert_int_equal(now.sockets, before.sockets);
	return now;
}

static int end_router(void **state)
{
	if (router > 0)
		kill(router, SIGKILL);
	router = 0;
	return remove_directory(state);
}

static void start_router(void)
{
	char text[128];
	router = start("exec $B/ferry-router --domain 0 --socket-dir $FERRY_SOCKET_DIR 2>/dev/null");
	for (int i = 0; i < 1000; i++) {
		if (!run("FERRY_DOMAINS=1 $B/ferry-stat --routers 2>/dev/null | grep -q 'domain\\|router' && ls "
		         "$FERRY_SOCKET_DIR/router-0.sock 2>/dev/null",
		         text, sizeof text))
			return;
		nanosleep(&(struct timespec){0, 10000000}, NULL);
	}
	fail_msg("the router does not listen");
}

/* Two ranks by hand, as another launcher starts them. */
static void start_ranks(pid_t ranks[2], const char *variables, const char *mode)
{
	for (int rank = 0; rank < 2; rank++) {
		char command[512];
		snprintf(command, sizeof command,
		         "%s FERRY_DOMAINS=1 FERRY_ROUTER=required FERRY_SIZE=2 FERRY_RANK=%d "
		         "FERRY_JOB_KEY=00112233445566778899aabbccddeeff exec %s %s 2>/dev/null",
		         variables, rank, self, mode);
		ranks[rank] = start(command);
	}
}

static void ended(const pid_t ranks[2])
{
	for (int rank = 0; rank < 2; rank++) {
		kill(ranks[rank], SIGCONT);
		assert_int_equal(waitpid(ranks[rank], NULL, 0), ranks[rank]);
	}
	no_ranks_are_told();
}

static void of_jobs_in_a_router_that_lives_on(void **state)
{
	static const char fails[] = "FERRY_TIMEOUT=1 FERRY_ON_TIMEOUT=fail";
	pid_t ranks[2];
	(void)state;
	setenv("FERRY_STAGING", "1M", 1);
	int before = shared_objects();
	start_router();
	struct holdings fresh = holdings();
	start_ranks(ranks, "", "abort"); /* the first job brings threads that stay */
	ended(ranks);
	struct holdings idle = without_jobs(fresh);
	start_ranks(ranks, "", "loop");
	pid_t victim = pid_of_rank(1);
	struct holdings busy = holdings();
	assert_true(busy.memory > idle.memory && busy.sockets > idle.sockets);
	kill(victim, SIGKILL);
	ended(ranks);
	comes_back_to(idle);
	start_ranks(ranks, fails, "loop");
	kill(pid_of_rank(1), SIGSTOP);
	assert_int_equal(waitpid(ranks[0], NULL, 0), ranks[0]);
	kill(ranks[1], SIGCONT);
	assert_int_equal(waitpid(ranks[1], NULL, 0), ranks[1]);
	no_ranks_are_told();
	comes_back_to(idle);
	/* the router itself, without a successor: its ranks remove its socket; the lock stays for the next router */
	start_ranks(ranks, "FERRY_TAKEOVER=off", "loop");
	pid_of_rank(0);
	kill(router, SIGKILL);
	assert_int_equal(waitpid(router, NULL, 0), router);
	router = 0;
	ended(ranks);
	all_have_ended();
	char text[256];
	run("cd $FERRY_SOCKET_DIR && ls && rm -f *.lock", text, sizeof text);
	assert_string_equal(text, "router-0.sock.lock\n");
	assert_int_equal(shared_objects(), before);
	unsetenv("FERRY_STAGING");
}

#undef TEST
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, remove_directory)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        TEST(of_a_run_whose_rank_is_killed),
	        TEST(of_a_run_whose_rank_aborts),
	        TEST(of_a_run_whose_rank_stands_still_for_too_long),
	        TEST(of_a_run_whose_router_is_killed_for_good),
	        TEST(of_a_run_whose_router_is_replaced),
	        TEST(of_a_run_whose_launcher_is_killed),
	        cmocka_unit_test_setup_teardown(of_jobs_in_a_router_that_lives_on, begin, end_router),
	};
	ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
	if (length < 0)
		return 1;
	setenv("FERRY_DEVICE", "host", 1);
	setenv("FERRY_SHORT", "0", 1); /* short calls go on without a router */
	if (argc == 2 && (!strcmp(argv[1], "loop") || !strcmp(argv[1], "abort")))
		return rank_main(argv[1][0] == 'a');
	if (argc == 2)
		setenv("B", argv[1], 1); /* the directory of the commands */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
