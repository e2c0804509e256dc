/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises about what communicators cost their ranks and routers together, and what becomes of a job where there is
 * little memory. The routers are processes.
 */
#include "tests/api_ranks.h"
#include "tests/commands_folder.h"
#include "tests/sanitized.h"
#include "tests/status_line.h"


#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ll << 20)
#define COMMUNICATORS 64
#define SPLITS 1000

static char directory[] = "/tmp/ferry-footprint-XXXXXX", socket_path[64];

static int make_directory(void **state)
{
	(void)state;
	strcpy(strrchr(directory, '-'), "-XXXXXX");
	if (!mkdtemp(directory))
		return -1;
	snprintf(socket_path, sizeof socket_path, "%s/router-0.sock", directory);
	setenv("FERRY_SOCKET_DIR", directory, 1);
	setenv("FERRY_ROUTER", "auto", 1);
	setenv("FERRY_DOMAINS", "1", 1);
	setenv("FERRY_DEVICE", "host", 1);
	return 0;
}

/* A number that the router tells of itself; 0: none answers. */
static long long router_says(const char *name)
{
	char text[512] = "";
	const char *found = status_line(socket_path, text, sizeof text) ? NULL : strstr(text, name);
	return found ? strtoll(found + strlen(name), NULL, 10) : 0;
}

/* It is no child to wait for. A busy one may not answer in time, and the last thing that goes is its socket. */
static int end_router(void **state)
{
	char lock[80];
	(void)state;
	snprintf(lock, sizeof lock, "%s.lock", socket_path);
	while (rmdir(directory)) {
		pid_t pid = (pid_t)router_says("pid=");
		if (pid)
			kill(pid, SIGTERM);
		else
			unlink(lock);
		poll(NULL, 0, 10);
	}
	return 0;
}

/* ---- what is used ---- */

static long long bytes_of(long long pid, const char *name)
{
	char path[64], line[256];
	long long bytes = 0;
	snprintf(path, sizeof path, "/proc/%lld/smaps_rollup", pid);
	FILE *file = fopen(path, "r");
	assert_non_null(file);
	while (fgets(line, sizeof line, file))
		if (!strncmp(line, name, strlen(name)))
			bytes = strtoll(line + strlen(name), NULL, 10) * 1024;
	fclose(file);
	return bytes;
}

/* Of this process and the router, and of arenas, whether a process has looked at it yet or not. */
static long long memory_used(void)
{
	long long router = router_says("pid="), arenas = router_says("memory=");
	long long seen = bytes_of(router, "Pss_Shmem:") + bytes_of(getpid(), "Pss_Shmem:");
	return bytes_of(router, "Pss_Anon:") + bytes_of(getpid(), "Pss_Anon:") + (seen > arenas ? seen : arenas);
}

static void many_communicators_of_one_rank_take_little(void **state)
{
	static ferryComm_t comms[COMMUNICATORS];
	static float values[MIB / 4];
	(void)state;
	if (SANITIZED)
		skip(); /* its memory is the sanitizer's more than Ferry's */
	for (int i = 0; i < COMMUNICATORS; i++) {
		ferryUniqueId id;
		OK(ferryGetUniqueId(&id));
		OK(ferryCommInitRank(&comms[i], 1, id, 0));
		OK(ferryAllReduce(values, values, MIB / 4, ferryFloat32, ferrySum, comms[i], NULL));
		OK(ferryStreamSynchronize(NULL));
	}
	long long used = memory_used(), slices = router_says("slices=");
	print_message("%d communicators: %.1f MB\n", COMMUNICATORS, (double)used / 1e6);
	for (int i = 0; i < COMMUNICATORS; i++)
		OK(ferryCommDestroy(comms[i]));
	assert_in_range(used, 1, 100000000);
	assert_int_equal(slices, 0); /* a sum over one rank is no work for a router */
}

struct splitter {
	ferryComm_t comm;
	int rank, rounds;
};

/* The rank's part of so many communicators, one after the other. */
static void *split_and_destroy(void *argument)
{
	struct splitter *splitter = argument;
	float values[1000] = {0};
	ferryStream_t stream;
	OK(ferryStreamCreate(&stream, splitter->rank));
	for (int round = 0; round < splitter->rounds; round++) {
		ferryComm_t part;
		OK(ferryCommSplit(splitter->comm, 0, splitter->rank, &part, NULL));
		OK(ferryAllReduce(values, values, 1000, ferryFloat32, ferrySum, part, stream));
		OK(ferryStreamSynchronize(stream));
		OK(ferryCommDestroy(part));
	}
	OK(ferryStreamDestroy(stream));
	return NULL;
}

static void split_by_both(const ferryComm_t *comms, int rounds)
{
	pthread_t threads[2];
	struct splitter splitters[2];
	for (int rank = 0; rank < 2; rank++) {
		splitters[rank] = (struct splitter){comms[rank], rank, rounds};
		assert_int_equal(pthread_create(&threads[rank], NULL, split_and_destroy, &splitters[rank]), 0);
	}
	for (int rank = 0; rank < 2; rank++)
		pthread_join(threads[rank], NULL);
}

static void communicators_that_come_and_go_leave_memory_as_it_was(void **state)
{
	struct ranks ranks;
	(void)state;
	if (SANITIZED)
		skip(); /* its memory is the sanitizer's more than Ferry's */
	OK(ferryCommInitAll(ranks.comms, ranks.count = 2, NULL));
	long long staging = router_says("staging=");
	split_by_both(ranks.comms, 100);
	long long before = memory_used();
	split_by_both(ranks.comms, SPLITS);
	long long after = memory_used();
	print_message("%.1f MB, and %.1f MB %d splits later\n", (double)before / 1e6, (double)after / 1e6, SPLITS);
	assert_int_equal(router_says("jobs="), 1);
	assert_int_equal(router_says("staging="), staging);
	close_ranks(&ranks);
	assert_in_range(after, 1, before + 12 * MIB); /* threads' stacks that the C library keeps for the next ones */
}

/* ---- where there is little ---- */

static bool write_file(const char *folder, const char *name, const char *text)
{
	char path[256];
	snprintf(path, sizeof path, "%s/%s", folder, name);
	int file = open(path, O_WRONLY | O_CLOEXEC);
	bool done = file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text);
	if (file >= 0)
		close(file);
	return done;
}

/* A control group of 512 MiB, of either version; false: this process may not make one. */
static bool make_group(char *folder, size_t bytes)
{
	snprintf(folder, bytes, "/sys/fs/cgroup/memory/ferry-test-%d", (int)getpid());
	if (!mkdir(folder, 0700) && write_file(folder, "memory.limit_in_bytes", "536870912"))
		return true;
	rmdir(folder);
	snprintf(folder, bytes, "/sys/fs/cgroup/ferry-test-%d", (int)getpid());
	if (!mkdir(folder, 0700) && write_file(folder, "memory.max", "536870912"))
		return true;
	rmdir(folder);
	return false;
}

/* Like a container: /dev/shm of 64 MiB, a control group of 512 MiB. False: this process may not do that. */
static bool enter_container(const char *group)
{
	return !unshare(CLONE_NEWNS) && !mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) &&
	       !mount("shm", "/dev/shm", "tmpfs", 0, "size=64m") && write_file(group, "cgroup.procs", "0");
}

/* Runs a command there, $B the folder of the commands: its exit code, or -1 where there can be no such place. */
static int run_in_container(const char *command, char *text, size_t bytes)
{
	char group[64];
	int out[2], status;
	if (!make_group(group, sizeof group))
		return -1;
	assert_int_equal(pipe(out), 0);
	fflush(NULL);
	pid_t child = fork();
	if (!child) {
		char commands[256];
		dup2(out[1], 1);
		dup2(out[1], 2);
		close(out[0]);
		close(out[1]);
		if (!commands_folder(commands, sizeof commands) || setenv("B", commands, 1) ||
		    !enter_container(group))
			_exit(77);
		execl("/bin/sh", "sh", "-c", command, (char *)NULL);
		_exit(78);
	}
	close(out[1]);
	FILE *pipe = fdopen(out[0], "r");
	text[fread(text, 1, bytes - 1, pipe)] = '\0';
	fclose(pipe);
	assert_int_equal(waitpid(child, &status, 0), child);
	while (rmdir(group) && errno == EBUSY)
		poll(NULL, 0, 10); /* the last process is about to leave it */
	int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
	return code == 77 ? -1 : code;
}

static void a_job_runs_in_a_small_container_or_hears_the_numbers(void **state)
{
	(void)state;
	static const struct {
		const char *settings, *says;
		int code;
	} cases[] = {{"", "", 0},
	             {"FERRY_SHM=posix", "", 0},
	             {"FERRY_STAGING=100M", "", 0},
	             {"FERRY_STAGING=1G", "asks for 1073741824 bytes of staging; 268435456 of 268435456 are left", 1},
	             {"FERRY_STAGING=1G", "half of what there is for it: the cgroup /sys/fs/cgroup", 1},
	             {"FERRY_STAGING=40M FERRY_SHM=posix", "33554432 are left in domain 0, which is half of", 1},
	             {"head -c 40M /dev/zero >/dev/shm/other; FERRY_STAGING=30M FERRY_SHM=posix",
	              "/dev/shm has 25165824 left for this router, of 67108864", 1}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char command[256], text[8192];
		snprintf(command, sizeof command,
		         "%s $B/ferryrun -n 2 --fork --domains 1 -- $B/ferry-perf allreduce -b 64M -e 64M -n 3",
		         cases[i].settings);
		int code = run_in_container(command, text, sizeof text);
		if (code < 0)
			skip();
		if (code != cases[i].code || !strstr(text, cases[i].says))
			fail_msg("%s: exit code %d, should be %d and say \"%s\": %s", command, code, cases[i].code,
			         cases[i].says, text);
	}
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_directory, end_router)

int main(void)
{
	const struct CMUnitTest tests[] = {
	        TEST(many_communicators_of_one_rank_take_little),
	        TEST(communicators_that_come_and_go_leave_memory_as_it_was),
	        TEST(a_job_runs_in_a_small_container_or_hears_the_numbers),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
