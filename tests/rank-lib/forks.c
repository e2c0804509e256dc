/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors: of forked children and of routers that start by themselves, that others wait for the end of; and of
 * programs without standard output.
 */
#include "tests/api_ranks.h"
#include "tests/status_line.h"

#include "ipc/attach.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DOMAINS 4 /* at most */

static char directory[] = "/tmp/ferry-forks-XXXXXX", socket_paths[DOMAINS][64];

static int make_directory(void **state)
{
	(void)state;
	strcpy(strrchr(directory, '-'), "-XXXXXX");
	if (!mkdtemp(directory))
		return -1;
	for (int domain = 0; domain < DOMAINS; domain++)
		snprintf(socket_paths[domain], sizeof socket_paths[domain], "%s/router-%d.sock", directory, domain);
	setenv("FERRY_SOCKET_DIR", directory, 1);
	setenv("FERRY_ROUTER", "auto", 1);
	setenv("FERRY_DOMAINS", "1", 1);
	setenv("FERRY_DEVICE", "host", 1);
	return 0;
}

/* A number that the router tells of itself; 0: none answers. */
static long router_says(int domain, const char *name)
{
	char text[512] = "";
	const char *found = status_line(socket_paths[domain], text, sizeof text) ? NULL : strstr(text, name);
	return found ? strtol(found + strlen(name), NULL, 10) : 0;
}

static int end_routers(void **state)
{
	char lock[300];
	(void)state;
	for (int domain = 0; domain < DOMAINS; domain++) {
		/* told once: the second time it ends without removing its socket */
		for (pid_t pid, logged = 0; (pid = (pid_t)router_says(domain, "pid=")) != 0; logged = pid) {
			if (pid != logged && kill(pid, SIGTERM))
				break;
			poll(NULL, 0, 10); /* it is no child, so there is nothing to wait on */
		}
		snprintf(lock, sizeof lock, "%s.lock", socket_paths[domain]);
		unlink(lock);
		unlink(socket_paths[domain]); /* the second SIGTERM ends a router at once: it stays then */
	}
	return rmdir(directory);
}

static void expect_exit_0(pid_t child)
{
	int status;
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

static void a_communicator_is_of_no_use_to_a_forked_child_and_says_so(void **state)
{
	struct ranks ranks;
	float value = 1;
	int status;
	(void)state;
	OK(ferryCommInitAll(ranks.comms, ranks.count = 2, NULL));
	fflush(NULL);
	pid_t child = fork();
	if (!child) {
		ferryResult_t result = ferryAllReduce(&value, &value, 1, ferryFloat32, ferrySum, ranks.comms[0], NULL);
		bool logged = result == ferryInvalidUsage && strstr(ferryGetLastError(NULL), "forked");
		_exit(!logged + 2 * (ferryCommDestroy(ranks.comms[0]) != ferryInvalidUsage));
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	float values[2] = {1, 2};
	for (int rank = 0; rank < 2; rank++)
		OK(ferryAllReduce(&values[rank], &values[rank], 1, ferryFloat32, ferrySum, ranks.comms[rank], NULL));
	OK(ferryStreamSynchronize(NULL));
	assert_true(values[0] == 3 && values[1] == 3);
	close_ranks(&ranks);
}

static void a_group_that_a_child_ends_leaves_the_parents_communicator_alone(void **state)
{
	struct ranks ranks;
	float values[2] = {1, 2};
	(void)state;
	OK(ferryCommInitAll(ranks.comms, ranks.count = 2, NULL));
	OK(ferryGroupStart());
	for (int rank = 0; rank < 2; rank++)
		OK(ferryAllReduce(&values[rank], &values[rank], 1, ferryFloat32, ferrySum, ranks.comms[rank], NULL));
	fflush(NULL);
	pid_t child = fork();
	if (!child) {
		alarm(30);
		_exit(ferryGroupEnd() != ferryInvalidUsage || !strstr(ferryGetLastError(NULL), "forked"));
	}
	expect_exit_0(child);
	OK(ferryGroupEnd());
	OK(ferryStreamSynchronize(NULL));
	assert_true(values[0] == 3 && values[1] == 3);
	close_ranks(&ranks);
}

static int sum_alone(void)
{
	ferryUniqueId id;
	ferryComm_t comm;
	float value = 1;
	if (ferryGetUniqueId(&id) || ferryCommInitRank(&comm, 1, id, 0))
		return 2;
	for (int call = 0; call < 3; call++)
		if (ferryAllReduce(&value, &value, 1, ferryFloat32, ferrySum, comm, NULL))
			return 3;
	return ferryStreamSynchronize(NULL) ? 4 : ferryCommDestroy(comm) ? 5 : 0;
}

/*
 * A sanitizer's allocator does not look after forks: a thread may hold its lock, and the child's first allocation waits
 * for ever.
 */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CHILD_MAY_ALLOCATE false
#else
#define CHILD_MAY_ALLOCATE true
#endif

static void skip_unless_a_child_may_allocate(void)
{
	if (!CHILD_MAY_ALLOCATE) {
		print_message("under a sanitizer a child of a process with threads may not allocate: skipped\n");
		skip();
	}
}

/* The parent's default streams have threads, and its own stream and event are waited for. */
static void a_child_has_streams_of_its_own_and_is_refused_the_parents(void **state)
{
	struct ranks ranks;
	ferryStream_t stream;
	ferryEvent_t event;
	float values[2][2] = {{1, 2}, {3, 4}};
	(void)state;
	skip_unless_a_child_may_allocate();
	OK(ferryCommInitAll(ranks.comms, ranks.count = 2, NULL));
	OK(ferryStreamCreate(&stream, 0));
	OK(ferryEventCreate(&event));
	for (int rank = 0; rank < 2; rank++)
		for (int call = 0; call < 2; call++)
			OK(ferryAllReduce(&values[rank][call], &values[rank][call], 1, ferryFloat32, ferrySum,
			                  ranks.comms[rank], NULL));
	OK(ferryAllReduce(&values[0][0], &values[0][0], 1, ferryFloat32, ferrySum, ranks.comms[0], stream));
	OK(ferryEventRecord(event, stream));
	fflush(NULL);
	pid_t child = fork();
	if (!child) {
		alarm(30);
		if (ferryStreamSynchronize(stream) != ferryInvalidUsage || !strstr(ferryGetLastError(NULL), "forked") ||
		    ferryEventSynchronize(event) != ferryInvalidUsage || ferryStreamSynchronize(NULL))
			_exit(1);
		_exit(sum_alone());
	}
	expect_exit_0(child);
	OK(ferryAllReduce(&values[1][0], &values[1][0], 1, ferryFloat32, ferrySum, ranks.comms[1], NULL));
	OK(ferryStreamSynchronize(NULL));
	OK(ferryStreamDestroy(stream));
	OK(ferryEventDestroy(event));
	assert_true(values[0][0] == 8 && values[1][0] == 8 && values[0][1] == 6 && values[1][1] == 6);
	close_ranks(&ranks);
}

static _Atomic bool enough;

/* Opens a device and closes it, as there is no domain 1. */
static void *ask_in_vain(void *unused)
{
	ferryUniqueId id;
	ferryComm_t comm;
	ferryConfig_t config = FERRY_CONFIG_INITIALIZER;
	config.domain = 1;
	ferryGetUniqueId(&id);
	while (!enough && ferryCommInitRankConfig(&comm, 1, id, 0, &config) == ferryInvalidArgument)
		;
	return unused;
}

static void a_child_finds_no_lock_held_by_a_thread_that_it_has_not(void **state)
{
	pthread_t thread;
	(void)state;
	skip_unless_a_child_may_allocate();
	setenv("FERRY_LAYOUT", "0: cpus=0", 1); /* quick to read */
	setenv("FERRY_HOST_LINK", "d2h=1000,h2d=1000", 1); /* slow */
	assert_int_equal(sum_alone(), 0); /* there is a router */
	assert_int_equal(pthread_create(&thread, NULL, ask_in_vain, NULL), 0);
	fflush(NULL);
	for (int i = 0; i < 200; i++) {
		pid_t child = fork();
		if (!child) {
			alarm(10);
			_exit(sum_alone());
		}
		expect_exit_0(child);
	}
	enough = true;
	pthread_join(thread, NULL);
	unsetenv("FERRY_LAYOUT");
	unsetenv("FERRY_HOST_LINK");
}

/* The lanes' threads sleep, and have looked before there was a call. */
static void a_call_that_was_made_while_a_rank_died_ends(void **state)
{
	ferryUniqueId id;
	ferryComm_t comm;
	int hold[2];
	float value = 1;
	char byte;
	(void)state;
	OK(ferryGetUniqueId(&id));
	assert_int_equal(pipe(hold), 0);
	fflush(NULL);
	pid_t rank = fork();
	if (!rank) {
		close(hold[1]);
		_exit(ferryCommInitRank(&comm, 2, id, 1) || read(hold[0], &byte, 1));
	}
	close(hold[0]);
	OK(ferryCommInitRank(&comm, 2, id, 0));
	OK(ferryGroupStart());
	OK(ferryAllReduce(&value, &value, 1, ferryFloat32, ferrySum, comm, NULL));
	close(hold[1]);
	expect_exit_0(rank);
	while (!router_says(0, "failed="))
		poll(NULL, 0, 10);
	poll(NULL, 0, 100); /* both lanes have been woken, and sleep */
	alarm(30);
	ferryResult_t result = ferryGroupEnd();
	if (!result)
		result = ferryStreamSynchronize(NULL);
	alarm(0);
	assert_int_equal(result, ferryRemoteError);
	ferryCommDestroy(comm);
}

static void *destroy(void *comm)
{
	ferryCommDestroy(comm);
	return NULL;
}

/* The router is stopped, so that the rank is between "no more calls" and closing its socket when it forks. */
static void a_child_forked_while_a_rank_leaves_keeps_no_job_alive(void **state)
{
	ferryUniqueId id;
	ferryComm_t comm;
	pthread_t thread;
	int hold[2];
	(void)state;
	OK(ferryGetUniqueId(&id));
	OK(ferryCommInitRank(&comm, 1, id, 0));
	assert_int_equal(pipe(hold), 0);
	pid_t router = (pid_t)router_says(0, "pid=");
	assert_int_equal(router_says(0, "jobs="), 1);
	assert_int_equal(kill(router, SIGSTOP), 0);
	assert_int_equal(pthread_create(&thread, NULL, destroy, comm), 0);
	poll(NULL, 0, 300);
	fflush(NULL);
	pid_t child = fork();
	if (!child) {
		char byte;
		close(hold[1]);
		_exit(read(hold[0], &byte, 1) != 0); /* until the test lets go */
	}
	close(hold[0]);
	assert_int_equal(kill(router, SIGCONT), 0);
	pthread_join(thread, NULL);
	for (int i = 0; i < 300 && router_says(0, "jobs="); i++)
		poll(NULL, 0, 10);
	assert_int_equal(router_says(0, "jobs="), 0);
	close(hold[1]);
	expect_exit_0(child);
}

static void a_rank_that_leaves_waits_for_one_silent_router_alone(void **state)
{
	ferryUniqueId id;
	ferryComm_t comm;
	pid_t routers[DOMAINS];
	struct timespec before, after;
	(void)state;
	setenv("FERRY_DOMAINS", "4", 1);
	setenv("FERRY_LOG", "error", 1);
	OK(ferryGetUniqueId(&id));
	OK(ferryCommInitRank(&comm, 1, id, 0));
	setenv("FERRY_ATTACH_TIMEOUT", "5", 1);
	for (int domain = 0; domain < DOMAINS; domain++) {
		routers[domain] = (pid_t)router_says(domain, "pid=");
		assert_true(routers[domain] > 0);
		kill(routers[domain], SIGSTOP);
	}
	clock_gettime(CLOCK_MONOTONIC, &before);
	ferryResult_t result = ferryCommDestroy(comm);
	clock_gettime(CLOCK_MONOTONIC, &after);
	for (int domain = 0; domain < DOMAINS; domain++)
		kill(routers[domain], SIGCONT);
	unsetenv("FERRY_ATTACH_TIMEOUT");
	unsetenv("FERRY_LOG");
	assert_int_equal(result, ferrySuccess);
	assert_in_range(after.tv_sec - before.tv_sec, 4, 14); /* else 20 s */
}

static void the_death_of_a_rank_is_seen_while_a_child_that_it_forked_lives(void **state)
{
	ferryUniqueId id;
	ferryComm_t comm;
	int hold[2], status;
	float value = 1;
	(void)state;
	OK(ferryGetUniqueId(&id));
	assert_int_equal(pipe(hold), 0);
	fflush(NULL);
	pid_t rank = fork();
	if (!rank) {
		char byte;
		close(hold[1]);
		if (ferryCommInitRank(&comm, 2, id, 0) || read(hold[0], &byte, 1) != 1) /* the other has its own, too */
			_exit(1);
		if (!fork())
			_exit(read(hold[0], &byte, 1) != 0); /* until the test lets go */
		raise(SIGKILL);
	}
	close(hold[0]);
	OK(ferryCommInitRank(&comm, 2, id, 1));
	assert_int_equal(write(hold[1], "", 1), 1);
	alarm(30); /* it would wait for ever */
	ferryResult_t result = ferryAllReduce(&value, &value, 1, ferryFloat32, ferrySum, comm, NULL);
	if (!result)
		result = ferryStreamSynchronize(NULL);
	if (!result)
		result = ferryCommGetAsyncError(comm, &result) ? ferryInternalError : result;
	alarm(0);
	assert_int_equal(result, ferryRemoteError);
	assert_int_equal(waitpid(rank, &status, 0), rank);
	ferryCommDestroy(comm);
	close(hold[1]);
}

/* As mpiexec needs it, which waits until its ranks' pipes are closed. */
static void a_router_that_starts_by_itself_keeps_nothing_of_its_rank_open(void **state)
{
	struct ranks ranks;
	int pipe_ends[2];
	(void)state;
	assert_int_equal(pipe(pipe_ends), 0);
	OK(ferryCommInitAll(ranks.comms, ranks.count = 1, NULL));
	close_ranks(&ranks);
	close(pipe_ends[1]);
	struct pollfd end = {pipe_ends[0], POLLIN, 0};
	assert_int_equal(poll(&end, 1, 0), 1);
	assert_true(end.revents & POLLHUP);
	assert_true(router_says(0, "pid=") > 0);
	close(pipe_ends[0]);
}

/* It had to look first whether there is a router; that there was none is no failure of anything. */
static void success_leaves_no_message_of_a_failure(void **state)
{
	ferryUniqueId id;
	ferryComm_t comm;
	(void)state;
	OK(ferryGetUniqueId(&id));
	OK(ferryCommInitRank(&comm, 1, id, 0));
	assert_string_equal(ferryGetLastError(comm), "");
	OK(ferryCommDestroy(comm));
}

/* A program started without standard output prints into whatever gets its number. */
static void descriptors_of_ferry_stay_above_the_standard_ones(void **state)
{
	ferryUniqueId id;
	ferryComm_t comm;
	int status;
	(void)state;
	OK(ferryGetUniqueId(&id));
	fflush(NULL);
	pid_t child = fork();
	if (!child) {
		float value = 1;
		for (int standard = 0; standard <= 2; standard++)
			close(standard);
		int failed = ferryCommInitRank(&comm, 1, id, 0) ? 1 : 0;
		for (int standard = 0; standard <= 2 && !failed; standard++)
			failed = fcntl(standard, F_GETFD) < 0 ? 0 : 2;
		if (!failed &&
		    (ferryAllReduce(&value, &value, 1, ferryFloat32, ferrySum, comm, NULL) || ferryCommDestroy(comm)))
			failed = 3;
		_exit(failed);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_directory, end_routers)

int main(void)
{
	const struct CMUnitTest tests[] = {
	        TEST(success_leaves_no_message_of_a_failure), /* first: of this thread nothing has failed */
	        TEST(a_communicator_is_of_no_use_to_a_forked_child_and_says_so),
	        TEST(a_group_that_a_child_ends_leaves_the_parents_communicator_alone),
	        TEST(a_child_has_streams_of_its_own_and_is_refused_the_parents),
	        TEST(a_child_finds_no_lock_held_by_a_thread_that_it_has_not),
	        TEST(a_call_that_was_made_while_a_rank_died_ends),
	        TEST(a_child_forked_while_a_rank_leaves_keeps_no_job_alive),
	        TEST(a_rank_that_leaves_waits_for_one_silent_router_alone),
	        TEST(the_death_of_a_rank_is_seen_while_a_child_that_it_forked_lives),
	        TEST(descriptors_of_ferry_stay_above_the_standard_ones),
	        TEST(a_router_that_starts_by_itself_keeps_nothing_of_its_rank_open),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
