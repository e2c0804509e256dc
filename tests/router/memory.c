/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises about the memory of jobs: what is left is read from everything that limits it, a job takes no more than that
 * or hears the numbers, and nobody waits while a large arena is allocated.
 */
#include "tests/router/router_fixture.h"
#include "tests/status_line.h"

#include "ipc/arena.h"
#include "ipc/endpoint.h"
#include "ipc/wait.h"
#include "router/daemon/memory.h"
#include "router/daemon/quota.h"

#include <errno.h>
#include <ftw.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

#define MIB (1ull << 20)
#define GIB (1ull << 30)

/* ---- a machine made of files ---- */

static char root[64];

static int make_root(void **state)
{
	(void)state;
	snprintf(root, sizeof root, "/tmp/ferry-memory-XXXXXX");
	return !mkdtemp(root);
}

static int remove_one(const char *name, const struct stat *status, int type, struct FTW *place)
{
	(void)status, (void)type, (void)place;
	return remove(name);
}

static int remove_root(void **state)
{
	(void)state;
	return nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

#define ROOT_TEST(name) cmocka_unit_test_setup_teardown(name, make_root, remove_root)

static void put(const char *name, const char *text)
{
	char whole[512];
	snprintf(whole, sizeof whole, "%s%s", root, name);
	for (char *slash = whole + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
		*slash = '\0';
		assert_true(!mkdir(whole, 0700) || errno == EEXIST);
		*slash = '/';
	}
	FILE *file = fopen(whole, "w");
	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

/* 8 GiB, of which 6 are available. */
static void put_machine(void)
{
	put("/proc/meminfo",
	    "MemTotal:        8388608 kB\nMemFree:         1048576 kB\nMemAvailable:    6291456 kB\n");
}

static void assert_left(int node, uint32_t sharers, uint64_t left, uint64_t whole, const char *holder)
{
	struct ferry_memory memory;
	struct ferry_memory_question question = {.root = root, .sharers = sharers, .node = node};
	ferry_memory_read(&question, &memory, NULL);
	if (strcmp(memory.holder, holder))
		fail_msg("\"%s\" should be \"%s\"", memory.holder, holder);
	assert_int_equal(memory.left, left);
	assert_int_equal(memory.whole, whole);
}

static void nothing_to_read_limits_nothing(void **state)
{
	(void)state;
	assert_left(0, 1, UINT64_MAX, UINT64_MAX, "nobody");
}

static void a_machines_memory_is_shared_by_its_routers(void **state)
{
	(void)state;
	put_machine();
	assert_left(-1, 1, 6 * GIB, 8 * GIB, "this machine");
	assert_left(-1, 2, 3 * GIB, 4 * GIB, "this machine");
}

/* Its own page cache can be had, its shared memory cannot. */
static void a_nodes_memory_is_its_routers_alone(void **state)
{
	(void)state;
	put_machine();
	put("/sys/devices/system/node/node1/meminfo",
	    "Node 1 MemTotal:        4194304 kB\nNode 1 MemFree:          524288 kB\n"
	    "Node 1 Active(file):     262144 kB\nNode 1 Inactive(file):   262144 kB\n"
	    "Node 1 Shmem:           1048576 kB\n");
	assert_left(1, 2, GIB, 4 * GIB, "NUMA node 1");
	assert_left(0, 2, 3 * GIB, 4 * GIB, "this machine");
}

static void put_v2(void)
{
	put_machine();
	put("/proc/self/cgroup", "0::/a/b\n");
	put("/proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n");
	put("/sys/fs/cgroup/a/b/memory.max", "max\n");
	put("/sys/fs/cgroup/a/b/memory.high", "max\n");
	put("/sys/fs/cgroup/a/b/memory.current", "0\n");
	put("/sys/fs/cgroup/a/memory.max", "536870912\n");
	put("/sys/fs/cgroup/a/memory.high", "max\n");
	put("/sys/fs/cgroup/a/memory.current", "134217728\n");
}

static void any_cgroup_above_limits_and_gives_its_file_cache_back(void **state)
{
	(void)state;
	put_v2();
	assert_left(-1, 1, 384 * MIB, 512 * MIB, "the cgroup /sys/fs/cgroup/a (memory.max)");
	put("/sys/fs/cgroup/a/memory.stat", "anon 1\nfile 104857600\ninactive_file 33554432\nactive_file 33554432\n");
	assert_left(-1, 1, 448 * MIB, 512 * MIB, "the cgroup /sys/fs/cgroup/a (memory.max)");
	put("/sys/fs/cgroup/a/memory.high", "268435456\n");
	assert_left(-1, 2, 96 * MIB, 128 * MIB, "the cgroup /sys/fs/cgroup/a (memory.high)");
	put("/sys/fs/cgroup/a/b/memory.max", "1048576\n");
	put("/sys/fs/cgroup/a/b/memory.current", "2097152\n");
	assert_left(-1, 1, 0, 1 * MIB, "the cgroup /sys/fs/cgroup/a/b (memory.max)");
}

static void put_v1(const char *group, const char *top)
{
	char text[512];
	put_machine();
	snprintf(text, sizeof text, "4:cpu,memory:%s\n1:name=systemd:/x\n0::/\n", group);
	put("/proc/self/cgroup", text);
	snprintf(text, sizeof text,
	         "29 20 0:25 / /sys/fs/cgroup/unified rw shared:1 - cgroup2 cgroup2 rw\n"
	         "31 20 0:27 %s /sys/fs/cgroup/memory rw shared:2 - cgroup cgroup rw,cpu,memory\n",
	         top);
	put("/proc/self/mountinfo", text);
	put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n");
	put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "134217728\n");
	put("/sys/fs/cgroup/memory/memory.stat",
	    "inactive_file 99\ntotal_inactive_file 67108864\ntotal_active_file 0\n");
}

/* In a container the group that /proc names may not be there, or be what is mounted. */
static void the_first_version_of_cgroups_limits_in_containers_too(void **state)
{
	(void)state;
	static const char *const places[][2] = {
	        {"/", "/"},
	        {"/docker/ab", "/docker/ab"},
	        {"/docker/ab", "/"},
	        {"/docker/abc", "/docker/ab"},
	        {"/../c", "/"}};
	for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
		put_v1(places[i][0], places[i][1]);
		assert_left(-1, 1, 448 * MIB, 512 * MIB, "the cgroup /sys/fs/cgroup/memory (memory.limit_in_bytes)");
	}
	put_v1("/docker/ab/c", "/docker/ab");
	put("/sys/fs/cgroup/memory/c/memory.limit_in_bytes", "1048576\n");
	put("/sys/fs/cgroup/memory/c/memory.usage_in_bytes", "0\n");
	assert_left(-1, 1, MIB, MIB, "the cgroup /sys/fs/cgroup/memory/c (memory.limit_in_bytes)");
	put("/sys/fs/cgroup/memory/c/memory.limit_in_bytes", "9223372036854771712\n");
	put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
	assert_left(-1, 1, 6 * GIB, 8 * GIB, "this machine");
}

/* ---- what a job is given ---- */

static void open_quota(struct ferry_quota *quota, uint64_t limit)
{
	struct ferry_layout one = {.ndomains = 1, .domains = {{.node = -1, .cache_bytes = 64 * MIB}}};
	assert_int_equal(ferry_quota_open(quota, &one, 0, limit), ferrySuccess);
	quota->question.root = root;
}

static const struct ferry_allowance any = {.job = UINT64_MAX, .whole = UINT64_MAX};

static void a_job_keeps_the_default_where_there_is_memory_and_one_rank_has_little(void **state)
{
	(void)state;
	struct ferry_quota quota;
	struct ferry_arena_shape two = {.ndomains = 1, .nranks = 2}, one = {.ndomains = 1, .nranks = 1};
	put_machine();
	open_quota(&quota, 4 * GIB);
	assert_int_equal(ferry_quota_take(&quota, 0, true, 0, &any, &two), ferrySuccess);
	assert_int_equal(two.staging, 32 * MIB);
	assert_int_equal(ferry_quota_take(&quota, 256 * MIB, true, 0, &any, &two), ferrySuccess); /* a rank on a GPU */
	assert_int_equal(two.staging, 256 * MIB);
	assert_int_equal(quota.used, 288 * MIB);
	assert_int_equal(ferry_quota_take(&quota, 256 * MIB, true, 0, &any, &one), ferrySuccess);
	assert_in_range(ferry_arena_window_bytes(&one), one.staging, 1536 << 10);
	ferry_quota_give_back(&quota, one.staging);
	assert_int_equal(ferry_quota_take(&quota, 16 * MIB, false, 0, &any, &one), ferrySuccess);
	assert_int_equal(one.staging, 16 * MIB);
	ferry_quota_give_back(&quota, 16 * MIB);
	assert_int_equal(quota.used, 288 * MIB);
}

static void a_job_that_does_not_insist_takes_a_part_of_what_is_left(void **state)
{
	(void)state;
	struct ferry_quota quota;
	struct ferry_arena_shape shape = {.ndomains = 1, .nranks = 2};
	put_v2(); /* 384 MiB are left */
	open_quota(&quota, 1 * GIB);
	assert_int_equal(ferry_quota_take(&quota, 256 * MIB, true, 0, &any, &shape), ferrySuccess);
	assert_in_range(ferry_arena_window_bytes(&shape), 90 * MIB, 96 * MIB);
	assert_int_equal(ferry_quota_take(&quota, 256 * MIB, true, 184 * MIB, &any, &shape), ferrySuccess);
	assert_in_range(ferry_arena_window_bytes(&shape), 44 * MIB, 50 * MIB);
	quota.freeing = 100 * MIB;
	assert_int_equal(ferry_quota_take(&quota, 256 * MIB, true, 184 * MIB, &any, &shape), ferrySuccess);
	assert_in_range(ferry_arena_window_bytes(&shape), 69 * MIB, 75 * MIB);
	open_quota(&quota, 20 * MIB);
	assert_int_equal(ferry_quota_take(&quota, 16 * MIB, true, 0, &any, &shape), ferrySuccess);
	assert_int_equal(shape.staging, 16 * MIB);
	assert_int_equal(ferry_quota_take(&quota, 16 * MIB, true, 0, &any, &shape), ferrySuccess);
	assert_int_equal(shape.staging, 2 * MIB);
	assert_int_equal(ferry_quota_take(&quota, 16 * MIB, true, 0, &any, &shape), ferrySuccess);
	assert_int_equal(shape.staging, 1 * MIB);
}

static void a_job_for_which_there_is_no_room_hears_the_numbers(void **state)
{
	(void)state;
	struct ferry_quota quota;
	struct ferry_arena_shape shape = {.ndomains = 1, .nranks = 2};
	put_v2();
	open_quota(&quota, 1 * GIB);
	assert_int_equal(ferry_quota_take(&quota, 512 * MIB, false, 0, &any, &shape), ferryRefused);
	for (size_t i = 0; i < 4; i++) {
		static const char *const words[] = {"536870912 of them staging", "402653184 left", "of 536870912",
		                                    "the cgroup /sys/fs/cgroup/a (memory.max)"};
		if (!strstr(ferry_last_message(), words[i]))
			fail_msg("\"%s\" should say \"%s\"", ferry_last_message(), words[i]);
	}
	assert_int_equal(ferry_quota_take(&quota, 128 * MIB, false, 300 * MIB, &any, &shape), ferryRefused);
	assert_non_null(strstr(ferry_last_message(), "may yet use 314572800"));
	assert_int_equal(ferry_quota_take(&quota, 2 * GIB, false, 0, &any, &shape), ferryRefused);
	assert_non_null(strstr(ferry_last_message(), "1073741824 of 1073741824 are left"));
	assert_int_equal(ferry_quota_take(&quota, 0, true, 384 * MIB, &any, &shape), ferryRefused);
	assert_int_equal(quota.used, 0);
}

static void by_default_a_routers_jobs_have_half_of_its_memory(void **state)
{
	(void)state;
	struct ferry_quota quota;
	struct ferry_layout two = {.ndomains = 2, .domains = {{.node = -1}, {.node = -1}}};
	struct ferry_memory_question question = {.root = root, .sharers = 2, .node = -1};
	struct ferry_memory memory;
	put_v2();
	ferry_memory_read(&question, NULL, &memory);
	assert_int_equal(memory.whole, 256 * MIB);
	assert_int_equal(ferry_quota_open(&quota, &two, 0, 0), ferrySuccess); /* of this machine */
	question.root = "";
	ferry_memory_read(&question, NULL, &memory);
	assert_int_equal(quota.limit, memory.whole / 2);
	assert_non_null(strstr(quota.limited_by, memory.holder));
}

/* ---- a large arena ---- */

#define LARGE GIB

static uint64_t value_of(const char *text, const char *name)
{
	const char *found = strstr(text, name);
	if (!found)
		fail_msg("\"%s\" has no %s", text, name);
	return strtoull(found + strlen(name), NULL, 10);
}

/* Sends the message and does not wait for what the router says. */
static int begin_attach(void)
{
	struct ferry_attach_message message = {.magic = FERRY_ATTACH_MAGIC,
	                                       .abi = FERRY_ATTACH_ABI,
	                                       .kind = FERRY_ATTACH_RANK,
	                                       .nranks = 1,
	                                       .ndomains = 1,
	                                       .staging = LARGE};
	int connection;
	assert_int_equal(ferry_endpoint_connect(path, &connection), ferrySuccess);
	assert_int_equal(send(connection, &message, sizeof message, 0), sizeof message);
	return connection;
}

static int start_posix_router(void **state)
{
	setenv("FERRY_SHM", "posix", 1);
	int failed = start_router(state);
	unsetenv("FERRY_SHM");
	return failed;
}

static bool has_room(uint64_t bytes)
{
	struct statvfs shm;
	struct ferry_memory memory;
	struct ferry_memory_question question = {.root = "", .sharers = 1, .node = -1};
	ferry_memory_read(&question, &memory, NULL);
	return memory.left > 2 * bytes && !statvfs("/dev/shm", &shm) && shm.f_bavail * shm.f_frsize > 2 * bytes;
}

/* What a status says of a router that is at it. Several times: the first may come after it on a busy machine. */
static void nobody_waits_while_a_large_arena_is_allocated(void **state)
{
	(void)state;
	bool during = false;
	if (!has_room(LARGE))
		skip();
	for (int attempt = 0; attempt < 5 && !during; attempt++) {
		struct ferry_attach_message ready = {.kind = FERRY_ATTACH_READY}, leave = {.kind = FERRY_ATTACH_DETACH};
		struct ferry_attach_reply reply;
		char text[512];
		int connection = begin_attach();
		do
			assert_int_equal(status_line(path, text, sizeof text), ferrySuccess);
		while (!strstr(text, "jobs=1"));
		during = value_of(text, "memory=") < LARGE;
		assert_int_equal(recv(connection, &reply, sizeof reply, MSG_WAITALL), sizeof reply);
		assert_int_equal(reply.result, ferrySuccess);
		/* The job is ready when all of it is there. */
		assert_int_equal(ferry_attach_call(connection, &ready, NULL, NULL), ferrySuccess);
		assert_int_equal(status_line(path, text, sizeof text), ferrySuccess);
		assert_true(value_of(text, "memory=") >= LARGE);
		assert_int_equal(ferry_attach_call(connection, &leave, NULL, NULL), ferrySuccess);
		close(connection);
		do
			assert_int_equal(status_line(path, text, sizeof text), ferrySuccess);
		while (!strstr(text, "jobs=0"));
	}
	assert_true(during);
}

/* A client that has gone while it is allocated leaves nothing behind. */
static void a_large_arena_is_given_up_with_its_job(void **state)
{
	(void)state;
	char text[512];
	if (!has_room(LARGE))
		skip();
	for (int attempt = 0; attempt < 3; attempt++)
		close(begin_attach());
	do
		assert_int_equal(status_line(path, text, sizeof text), ferrySuccess);
	while (!strstr(text, "jobs=0"));
	assert_int_equal(value_of(text, "memory="), 0);
	assert_int_equal(value_of(text, "staging="), 0);
}

/* A child's: the limit only goes down. It stands for a lack of memory. Whenever the router tells, it tells why. */
static int attach_without_memory(void)
{
	void *state = NULL;
	struct rlimit limit = {1 << 20, 1 << 20};
	char text[512];
	if (setrlimit(RLIMIT_FSIZE, &limit) || start_router(&state))
		return 2;
	for (uint8_t name = 0; name < 200; name++) {
		struct ferry_attach_message attach = {.kind = FERRY_ATTACH_RANK,
		                                      .nranks = 1,
		                                      .ndomains = 1,
		                                      .staging = MIB,
		                                      .key = {name}},
		                            ready = {.kind = FERRY_ATTACH_READY};
		int connection, descriptor = -1;
		if (ferry_endpoint_connect(path, &connection))
			return 3;
		ferryResult_t result = ferry_attach_call(connection, &attach, NULL, &descriptor);
		if (!result)
			result = ferry_attach_call(connection, &ready, NULL, NULL);
		if (result != ferrySystemError || !strstr(ferry_last_message(), "raise ulimit -f"))
			return 4;
		close(descriptor);
		close(connection);
	}
	for (uint64_t until = ferry_now_ns() + 10000000000u; ferry_now_ns() < until;)
		if (!status_line(path, text, sizeof text) && strstr(text, "jobs=0") &&
		    !value_of(text, "staging="))
			return stop_router(&state);
	return 5;
}

static void jobs_without_memory_hear_it_and_leave_nothing_behind(void **state)
{
	(void)state;
	int status;
	fflush(NULL);
	pid_t child = fork();
	if (!child)
		_exit(attach_without_memory());
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		ROOT_TEST(nothing_to_read_limits_nothing),
		ROOT_TEST(a_machines_memory_is_shared_by_its_routers),
		ROOT_TEST(a_nodes_memory_is_its_routers_alone),
		ROOT_TEST(any_cgroup_above_limits_and_gives_its_file_cache_back),
		ROOT_TEST(the_first_version_of_cgroups_limits_in_containers_too),
		ROOT_TEST(a_job_keeps_the_default_where_there_is_memory_and_one_rank_has_little),
		ROOT_TEST(a_job_that_does_not_insist_takes_a_part_of_what_is_left),
		ROOT_TEST(a_job_for_which_there_is_no_room_hears_the_numbers),
		ROOT_TEST(by_default_a_routers_jobs_have_half_of_its_memory),
		cmocka_unit_test(jobs_without_memory_hear_it_and_leave_nothing_behind), /* forks: before any thread */
		cmocka_unit_test_setup_teardown(nobody_waits_while_a_large_arena_is_allocated, start_posix_router,
		                                stop_router),
		cmocka_unit_test_setup_teardown(a_large_arena_is_given_up_with_its_job, start_posix_router,
		                                stop_router),
	};
	ferry_log_set_level(FERRY_LOG_ERROR);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
