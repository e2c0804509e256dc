/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of a router about how its threads are scheduled: those that move data, and no others. */
#include "tests/fake_cuda/rank_process.h"
#include "tests/router/router_fixture.h"
#include "tests/status_line.h"

#include "ipc/endpoint.h"
#include "router/copy/host.h"
#include "router/daemon/priority.h"
#include "router/engine/lanes.h"

#include <dirent.h>
#include <grp.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define WORKERS 3
#define ODD     7 /* a nice value that no thread has by itself, and that everybody may take */

static bool everybody_may; /* what a router asks for is granted, as ODD */
static _Atomic uint32_t asked; /* so many threads have */

/* The C library's, for this program. Without a right its own would refuse what routers ask for. */
int setpriority(__priority_which_t which, id_t who, int nice)
{
	bool granted = everybody_may && nice == FERRY_PRIORITY_OF_ROUTERS;
	atomic_fetch_add(&asked, granted && which == PRIO_PROCESS && who == (id_t)gettid());
	return (int)syscall(SYS_setpriority, which, who, granted ? ODD : nice);
}

/* How many threads of this process have that nice value. */
static uint32_t threads_at(int nice)
{
	uint32_t count = 0;
	DIR *threads = opendir("/proc/self/task");
	assert_non_null(threads);
	for (struct dirent *entry; (entry = readdir(threads));)
		count += entry->d_name[0] != '.' && getpriority(PRIO_PROCESS, (id_t)atoi(entry->d_name)) == nice;
	closedir(threads);
	return count;
}

/* Threads ask by themselves, some time after they were made; ctest's timeout tells of those that do not. */
static void await_threads(int nice, uint32_t count)
{
	while (threads_at(nice) != count)
		sched_yield();
}

/* In a child, which becomes a user that may not better itself. */
static void take_without_a_right(void)
{
	struct ferry_priority priority;
	const struct rlimit none = {0, 0};
	if (setrlimit(RLIMIT_NICE, &none) || (!getuid() && (setgroups(0, NULL) || setgid(65534) || setuid(65534))))
		_exit(2);
	ferry_priority_open(&priority, -10);
	ferry_priority_need(&priority);
	setpriority(PRIO_PROCESS, 0, 0); /* from a lower one -10 would be none that needs a right */
	int before = getpriority(PRIO_PROCESS, 0);
	ferry_priority_take(&priority, &(bool){false});
	_exit(getpriority(PRIO_PROCESS, 0) == before && ferry_priority_got(&priority) == before ? 0 : 1);
}

static void a_refusal_is_no_error_and_changes_nothing(void **state)
{
	(void)state;
	int status = -1;
	pid_t child = fork();
	if (!child)
		take_without_a_right();
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	if (WEXITSTATUS(status) == 2)
		skip();
	assert_int_equal(WEXITSTATUS(status), 0);
}

static void *take(void *priority)
{
	ferry_priority_take(priority, &(bool){false});
	return getpriority(PRIO_PROCESS, 0) == ferry_priority_got(priority) ? priority : NULL;
}

static void a_thread_asks_for_itself_alone(void **state)
{
	(void)state;
	static const int values[] = {ODD, -10};
	int before = getpriority(PRIO_PROCESS, 0);
	for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
		struct ferry_priority priority;
		pthread_t thread;
		void *right;
		ferry_priority_open(&priority, values[i]);
		ferry_priority_need(&priority);
		assert_int_equal(pthread_create(&thread, NULL, take, &priority), 0);
		pthread_join(thread, &right);
		assert_non_null(right);
		assert_int_equal(getpriority(PRIO_PROCESS, 0), before);
	}
}

/* A job of one rank: its job thread is there once READY is answered. */
static int attach_alone(const char *to)
{
	struct ferry_attach_message rank = {.kind = FERRY_ATTACH_RANK, .nranks = 1, .ndomains = 1, .staging = 1 << 20},
	                            ready = {.kind = FERRY_ATTACH_READY};
	int connection, descriptor;
	assert_int_equal(ferry_endpoint_connect(to, &connection), ferrySuccess);
	assert_int_equal(ferry_attach_call(connection, &rank, NULL, &descriptor), ferrySuccess);
	close(descriptor);
	assert_int_equal(ferry_attach_call(connection, &ready, NULL, NULL), ferrySuccess);
	return connection;
}

/* The fixture's router is in another's process, and names no better priority. */
static void a_router_that_another_process_hosts_leaves_its_threads_as_they_are(void **state)
{
	(void)state;
	char text[480], own[24];
	int connection = attach_alone(path), now = getpriority(PRIO_PROCESS, 0);
	uint32_t threads = 0;
	for (int nice = -20; nice < 20; nice++)
		threads += threads_at(nice);
	assert_true(threads > 3);
	assert_int_equal(threads_at(now), threads);
	snprintf(own, sizeof own, " nice=%d ", now);
	assert_int_equal(status_line(path, text, sizeof text), ferrySuccess);
	assert_non_null(strstr(text, own));
	close(connection);
}

/* As ferry-router starts one, on the socket where ranks look for it. */
static int start_better_router(void **state)
{
	(void)state;
	struct ferry_router_options options = {.layout = &layout,
	                                       .directory = getenv("FERRY_SOCKET_DIR"),
	                                       .workers = WORKERS,
	                                       .better = true};
	everybody_may = true;
	setenv("FERRY_DOMAINS", "1", 1);
	snprintf(path, sizeof path, "%s/router-0.sock", options.directory);
	return ferry_layout_load(&layout) || ferry_router_start(&options, &router);
}

static int stop_better_router(void **state)
{
	ferry_router_stop(router);
	everybody_may = false;
	await_threads(ODD, 0); /* a joined thread may be listed for a moment */
	return no_misuse(state);
}

/* A worker asks when it has work the next time. Threads of the driver have the nice value of lanes that made them. */
static void threads_that_move_data_of_gpus_ask_and_no_others(void **state)
{
	enum { RANKS = 2, LANES = 2, MOVE_DATA = LANES + WORKERS }; /* the first worker is the job's own thread */
	enum { OTHERS = 4 }; /* this one, those of connections and of jobs that end, the mapper */
	static const int one_device[RANKS] = {0, 0};
	struct rank_process ranks[RANKS];
	char text[480];
	uint32_t rounds = 0;
	(void)state;
	assert_int_equal(threads_at(ODD), 0);
	for (int rank = 0; rank < RANKS; rank++)
		ranks[rank] = rank_start(NULL);
	ranks_join(ranks, RANKS, one_device, 300011);
	while (rounds < 1000 && atomic_load(&asked) < MOVE_DATA)
		ranks_round(ranks, RANKS, 1, ++rounds);
	ranks_round(ranks, RANKS, 5, rounds + 5);
	assert_int_equal(atomic_load(&asked), MOVE_DATA);
	assert_true(threads_at(ODD) >= MOVE_DATA);
	assert_true(threads_at(getpriority(PRIO_PROCESS, 0)) >= OTHERS);
	assert_int_equal(status_line(path, text, sizeof text), ferrySuccess);
	assert_non_null(strstr(text, " nice=7 "));
	ranks_tell(ranks, RANKS, (struct rank_ordered){.order = RANK_DESTROY}, NULL);
	for (int rank = 0; rank < RANKS; rank++)
		rank_finish(&ranks[rank]);
}

static void threads_of_lanes_ask_once_they_are_of_gpus(void **state)
{
	(void)state;
	struct ferry_priority priority;
	struct ferry_host_copier copier;
	static struct ferry_lanes lanes;
	assert_int_equal(ferry_host_copier_open(&copier), ferrySuccess);
	struct ferry_lanes_options options = {.copier = &copier.base, .priority = &priority};
	for (uint32_t needed = 0; needed < 2; needed++) {
		ferry_priority_open(&priority, ODD);
		if (needed)
			ferry_priority_need(&priority);
		assert_int_equal(ferry_lanes_open(&lanes, &options), ferrySuccess);
		await_threads(ODD, 2 * needed);
		ferry_lanes_close(&lanes);
		await_threads(ODD, 0); /* a joined thread may be listed for a moment */
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(a_refusal_is_no_error_and_changes_nothing),
	        cmocka_unit_test(a_thread_asks_for_itself_alone),
	        TEST(a_router_that_another_process_hosts_leaves_its_threads_as_they_are),
	        cmocka_unit_test(threads_of_lanes_ask_once_they_are_of_gpus),
	        cmocka_unit_test_setup_teardown(threads_that_move_data_of_gpus_ask_and_no_others,
	                                        start_better_router, stop_better_router),
	};
	if (argc > 1)
		return rank_process_main(atoi(argv[1]));
	fake_is_the_driver();
	return cmocka_run_group_tests_name("priority", tests, NULL, NULL);
}
