/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of a router about how its threads are scheduled: those that move data, and no others. */
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
#include <sys/wait.h>

#define ODD 7 /* a nice value that no thread has by itself, and that everybody may take */

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

static void what_is_no_nice_value_is_refused_and_named(void **state)
{
	(void)state;
	static const char *const refused[] = {"-21", "20", "fast", "", "5x", "rt1", "99999999999999999999"};
	static const char *const taken[] = {"-20", "19", "0", "rt", "gpu"};
	struct ferry_priority priority;
	for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
		char named[64];
		snprintf(named, sizeof named, "FERRY_NICE=%s:", refused[i]);
		assert_int_equal(ferry_priority_read(&priority, "FERRY_NICE", refused[i]), ferryInvalidArgument);
		assert_non_null(strstr(ferry_last_message(), named));
	}
	for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
		assert_int_equal(ferry_priority_read(&priority, "FERRY_NICE", taken[i]), ferrySuccess);
	struct ferry_router_options options = {.layout = &layout,
	                                       .directory = "@ferry",
	                                       .prefix = prefix,
	                                       .nice = "20"};
	struct ferry_router *none;
	assert_int_equal(ferry_router_start(&options, &none), ferryInvalidArgument);
}

/* In a child, which becomes a user that may not better itself. */
static void take_without_a_right_to(const char *text)
{
	struct ferry_priority priority;
	const struct rlimit none = {0, 0};
	char got[8];
	if (setrlimit(RLIMIT_NICE, &none) || setrlimit(RLIMIT_RTPRIO, &none) ||
	    (!getuid() && (setgroups(0, NULL) || setgid(65534) || setuid(65534))))
		_exit(2);
	if (ferry_priority_read(&priority, "FERRY_NICE", text))
		_exit(3);
	setpriority(PRIO_PROCESS, 0, 0); /* from a lower one -10 would be none that needs a right */
	int before = getpriority(PRIO_PROCESS, 0);
	ferry_priority_take(&priority, &(bool){false});
	ferry_priority_print(&priority, got, sizeof got);
	_exit(getpriority(PRIO_PROCESS, 0) == before && sched_getscheduler(0) == SCHED_OTHER && atoi(got) == before
	              ? 0
	              : 1);
}

static void a_refusal_is_no_error_and_changes_nothing(void **state)
{
	(void)state;
	static const char *const texts[] = {"-10", "-20", "rt"};
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
		int status = -1;
		pid_t child = fork();
		if (!child)
			take_without_a_right_to(texts[i]);
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_true(WIFEXITED(status));
		if (WEXITSTATUS(status) == 2)
			skip();
		assert_int_equal(WEXITSTATUS(status), 0);
	}
}

static void *take(void *priority)
{
	char got[8];
	ferry_priority_take(priority, &(bool){false});
	ferry_priority_print(priority, got, sizeof got);
	int policy = sched_getscheduler(0) & ~SCHED_RESET_ON_FORK;
	bool right = !strcmp(got, "rt") ? policy == SCHED_RR
	                                : policy == SCHED_OTHER && getpriority(PRIO_PROCESS, 0) == atoi(got);
	return right ? priority : NULL;
}

static void a_thread_asks_for_itself_alone(void **state)
{
	(void)state;
	static const char *const texts[] = {"7", "-10", "rt"};
	int before = getpriority(PRIO_PROCESS, 0);
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
		struct ferry_priority priority;
		pthread_t thread;
		void *right;
		assert_int_equal(ferry_priority_read(&priority, "FERRY_NICE", texts[i]), ferrySuccess);
		assert_int_equal(pthread_create(&thread, NULL, take, &priority), 0);
		pthread_join(thread, &right);
		assert_non_null(right);
		assert_int_equal(getpriority(PRIO_PROCESS, 0), before);
		assert_int_equal(sched_getscheduler(0), SCHED_OTHER);
	}
}

static void the_default_asks_for_nothing_until_the_router_has_lanes_for_gpus(void **state)
{
	(void)state;
	struct ferry_priority priority;
	bool asked = false;
	assert_int_equal(ferry_priority_read(&priority, "FERRY_NICE", FERRY_PRIORITY_DEFAULT), ferrySuccess);
	priority.nice = getpriority(PRIO_PROCESS, 0); /* this thread is to stay as it is */
	ferry_priority_take(&priority, &asked);
	assert_false(asked);
	ferry_priority_need(&priority);
	ferry_priority_take(&priority, &asked);
	assert_true(asked);
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

static void a_routers_workers_have_its_nice_value_and_its_other_threads_do_not(void **state)
{
	(void)state;
	struct ferry_router *nice;
	char nice_prefix[48], nice_path[100], text[480];
	snprintf(nice_prefix, sizeof nice_prefix, "%s-n", prefix);
	snprintf(nice_path, sizeof nice_path, "@ferry/%s-0.sock", nice_prefix);
	struct ferry_router_options options = {.layout = &layout,
	                                       .directory = "@ferry",
	                                       .prefix = nice_prefix,
	                                       .workers = 3,
	                                       .nice = "7"};
	assert_int_equal(threads_at(ODD), 0);
	assert_int_equal(ferry_router_start(&options, &nice), ferrySuccess);
	await_threads(ODD, 2); /* the first worker is a job's own thread */
	int connection = attach_alone(nice_path);
	await_threads(ODD, 3);
	assert_int_equal(status_line(nice_path, text, sizeof text), ferrySuccess);
	assert_non_null(strstr(text, " nice=7 "));
	close(connection);
	ferry_router_stop(nice);
	await_threads(ODD, 0); /* a joined thread may be listed for a moment */
}

/* As a rank hosts one: the fixture's router names no nice value. */
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

static void lanes_have_the_nice_value_that_they_are_opened_with(void **state)
{
	(void)state;
	struct ferry_priority priority;
	struct ferry_host_copier copier;
	static struct ferry_lanes lanes;
	assert_int_equal(ferry_host_copier_open(&copier), ferrySuccess);
	struct ferry_lanes_options options = {.copier = &copier.base};
	assert_int_equal(ferry_lanes_open(&lanes, &options), ferrySuccess);
	await_threads(ODD, 0);
	ferry_lanes_close(&lanes);
	assert_int_equal(ferry_priority_read(&priority, "FERRY_NICE", "7"), ferrySuccess);
	options.priority = &priority;
	assert_int_equal(ferry_lanes_open(&lanes, &options), ferrySuccess);
	await_threads(ODD, 2);
	ferry_lanes_close(&lanes);
	await_threads(ODD, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        TEST(what_is_no_nice_value_is_refused_and_named),
	        cmocka_unit_test(a_refusal_is_no_error_and_changes_nothing),
	        cmocka_unit_test(a_thread_asks_for_itself_alone),
	        cmocka_unit_test(the_default_asks_for_nothing_until_the_router_has_lanes_for_gpus),
	        TEST(a_routers_workers_have_its_nice_value_and_its_other_threads_do_not),
	        TEST(a_router_that_another_process_hosts_leaves_its_threads_as_they_are),
	        cmocka_unit_test(lanes_have_the_nice_value_that_they_are_opened_with),
	};
	return cmocka_run_group_tests_name("priority", tests, NULL, NULL);
}
