/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises about words in the arena that no rank that keeps to the rules can have written there. Two ranks on host
 * devices; the long form, beside another job: tests/hostility.
 */
#include "tests/api_ranks.h"

#include "ipc/arena.h"
#include "ipc/publish.h"

#include <dirent.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define COUNT (256 << 10)

static struct ranks ranks;
static struct ferry_arena arena; /* mapped as by a rank that writes into it */
static ferryStream_t streams[2];
static float *buffers[2];

static void doze(int ms)
{
	nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000l}, NULL);
}

static void find_arena(void)
{
	struct dirent *entry;
	bool found = false;
	DIR *files = opendir("/proc/self/fd");
	assert_non_null(files);
	while (!found && (entry = readdir(files))) {
		char path[300], target[100] = "";
		snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
		if (readlink(path, target, sizeof target - 1) > 0 && strstr(target, "ferry-arena"))
			found = !ferry_arena_map(dup(atoi(entry->d_name)), &arena);
	}
	closedir(files);
	assert_true(found);
}

static int open_job(void **state)
{
	(void)state;
	setenv("FERRY_SHM", "memfd", 1);
	open_ranks(&ranks, 2, 1);
	find_arena();
	for (int rank = 0; rank < 2; rank++) {
		OK(ferryStreamCreate(&streams[rank], rank));
		assert_non_null(buffers[rank] = calloc(COUNT, sizeof(float)));
	}
	return 0;
}

static int close_job(void **state)
{
	(void)state;
	ferry_arena_unmap(&arena);
	for (int rank = 0; rank < 2; rank++)
		OK(ferryCommAbort(ranks.comms[rank]));
	for (int rank = 0; rank < 2; rank++) {
		ferryStreamDestroy(streams[rank]); /* with the error of what was cut off */
		free(buffers[rank]);
	}
	return 0;
}

static void reduce(int rank)
{
	OK(ferryAllReduce(buffers[rank], buffers[rank], COUNT, ferryFloat32, ferrySum, ranks.comms[rank],
	                  streams[rank]));
}

static void reduce_by_both(void)
{
	reduce(0);
	reduce(1);
	for (int rank = 0; rank < 2; rank++)
		OK(ferryStreamSynchronize(streams[rank]));
}

/* A ring finds nobody asleep. */
static void bells_that_say_nobody_sleeps_delay_calls_and_hang_nobody(void **state)
{
	(void)state;
	reduce_by_both();
	for (int round = 0; round < 3; round++) {
		doze(20);
		for (int rank = 0; rank < 2; rank++) {
			atomic_store(&arena.rank_lines[rank].d2h.sleepers, 0);
			atomic_store(&arena.rank_lines[rank].h2d.sleepers, 0);
		}
		atomic_store(&arena.header->router.sleepers, 0);
		reduce_by_both();
	}
}

static void ranks_beyond_all_have_not_left(void **state)
{
	struct ferry_job_arenas job = {.nranks = 2, .ndomains = 1, .arenas = {arena}};
	(void)state;
	atomic_store(&arena.header->left, 1ull << 63 | 1ull << 2 | 1ull << 1);
	assert_int_equal(ferry_departed(&job), 2);
	atomic_store(&arena.header->left, 0);
}

static void a_message_of_a_failure_is_one_line_of_text(void **state)
{
	struct ferry_failure failure = {.code = 12345};
	char message[FERRY_MESSAGE_BYTES];
	uint32_t code;
	(void)state;
	assert_false(ferry_failure_read(&failure, &code, message));
	atomic_store(&failure.state, 7);
	assert_true(ferry_failure_read(&failure, &code, message));
	assert_int_equal(ferry_failure_result(code, ferryRemoteError), ferryRemoteError);
	assert_string_equal(message, "no reason given");
	memset(failure.message, 'x', sizeof failure.message); /* nothing ends it */
	memcpy(failure.message, "a\nb\033[2Jc", 8);
	assert_true(ferry_failure_read(&failure, &code, message));
	assert_memory_equal(message, "a?b?[2Jc", 8);
	assert_int_equal(strlen(message), FERRY_MESSAGE_BYTES - 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_job, close_job)

int main(void)
{
	const struct CMUnitTest tests[] = {
	        TEST(bells_that_say_nobody_sleeps_delay_calls_and_hang_nobody),
	        TEST(ranks_beyond_all_have_not_left),
	        cmocka_unit_test(a_message_of_a_failure_is_one_line_of_text),
	};
	setenv("FERRY_SHORT", "0", 1); /* this is about lanes and routers */
	setenv("FERRY_LOG", "error", 1); /* a line for each job that fails otherwise */
	setenv("FERRY_FABRICS", "host", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
