/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises about numbers in the arena that no rank that keeps to the rules can have written there: the job ends, soon,
 * and says them. Two ranks on host devices, of which the test writes into what others wait for; the long form, beside
 * another job: tests/hostility.
 */
#include "tests/api_ranks.h"

#include "ipc/arena.h"
#include "ipc/publish.h"

#include <dirent.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define COUNT    (256 << 10)
#define COUNTERS 16
#define SOON_MS  30000

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

/* It waits for rank 1: call `seq` is under way. */
static void reduce_by_one(uint64_t seq)
{
	reduce(0);
	for (int waited = 0; atomic_load(&arena.rank_lines[0].ring[seq % FERRY_PARITIES].seq) != seq; waited++) {
		assert_true(waited < SOON_MS);
		doze(1);
	}
}

static void fails_with(const char *flags)
{
	ferryResult_t error = ferrySuccess;
	for (int waited = 0; !error && waited < SOON_MS; waited++) {
		doze(1);
		OK(ferryCommGetAsyncError(ranks.comms[0], &error));
	}
	if (!error || !strstr(ferryGetLastError(ranks.comms[0]), flags))
		fail_msg("%s: \"%s\"; expected \"%s\"", ferryGetErrorString(error),
		         error ? ferryGetLastError(ranks.comms[0]) : "", flags);
}

/* So does the call that is under way. */
static void ends_with(const char *flags)
{
	fails_with(flags);
	assert_int_not_equal(ferryStreamSynchronize(streams[0]), ferrySuccess);
}

static void write_counters(uint64_t parity, uint64_t value)
{
	for (uint32_t i = 0; i < COUNTERS; i++)
		atomic_store(&arena.counters[parity][i].value, value);
}

/* ---- what a lane finds ---- */

static void a_counter_of_a_call_to_come_ends_the_job(void **state)
{
	(void)state;
	reduce_by_both();
	reduce_by_one(2);
	write_counters(0, ferry_counter_value(7, 1));
	ends_with("slices of call 7");
}

static void a_counter_that_has_lost_what_its_writer_published_ends_the_job(void **state)
{
	(void)state;
	reduce_by_one(1);
	doze(100); /* or so: it has published what there is room for */
	write_counters(1, 0);
	ends_with("it has published says 0 slices of call 0");
}

static void a_descriptor_of_a_call_to_come_ends_the_job(void **state)
{
	(void)state;
	reduce_by_one(1);
	atomic_store(&arena.rank_lines[1].ring[0].seq, 4);
	ends_with("rank 1 is at call 4, where none after 2 can have begun");
}

static void a_descriptor_that_is_wiped_out_ends_the_job(void **state)
{
	(void)state;
	reduce_by_one(1);
	atomic_store(&arena.rank_lines[0].ring[1].seq, 0);
	ends_with("it is at call 0, where it has come to 1");
}

static void a_descriptor_of_another_call_ends_the_job(void **state)
{
	(void)state;
	reduce_by_one(1);
	atomic_store(&arena.rank_lines[0].ring[1].name, 77);
	ends_with("its call 1 (allreduce) has name 77 and routers");
}

static void a_descriptor_that_names_other_routers_ends_the_job(void **state)
{
	(void)state;
	reduce_by_one(1);
	atomic_store(&arena.rank_lines[0].ring[1].domains, 6);
	ends_with("and routers 0x6, where it has submitted it with name");
}

static void a_call_that_is_over_before_it_began_ends_the_job(void **state)
{
	(void)state;
	reduce_by_one(1);
	atomic_store(&arena.rank_lines[1].finished[1], 3);
	ends_with("rank 1 has finished call 3, where none after 1 has begun");
}

static void a_call_that_is_not_over_any_more_ends_the_job(void **state)
{
	(void)state;
	reduce_by_both();
	reduce_by_both();
	atomic_store(&arena.rank_lines[0].finished[1], 0);
	reduce(0);
	ends_with("it has finished call 0, where it has finished 1");
}

static void a_router_that_is_ahead_ends_the_job(void **state)
{
	(void)state;
	reduce_by_one(1);
	atomic_store(&arena.header->finished[0], 2);
	ends_with("the router of domain 0 has finished call 2, where none after 0 has begun");
}

static void a_router_tells_when_its_word_is_wiped_out(void **state)
{
	(void)state;
	reduce_by_both();
	reduce_by_one(2);
	/* ranks go on before their router says so */
	for (int waited = 0; atomic_load(&arena.header->finished[1]) != 1; waited++) {
		assert_true(waited < SOON_MS);
		doze(1);
	}
	atomic_store(&arena.header->finished[1], 0);
	ends_with("the router of domain 0 has finished call 0, where it has finished 1");
}

static void messages_that_cannot_have_been_taken_end_the_job(void **state)
{
	(void)state;
	for (int i = 0; i < 2 * FERRY_PAIR_SLOTS; i++) /* more than the window has room for */
		OK(ferrySend(buffers[0], COUNT, ferryFloat32, 1, ranks.comms[0], streams[0]));
	for (int waited = 0; atomic_load(&arena.pair_lines[1].d2h.value) < FERRY_PAIR_SLOTS; waited++) {
		assert_true(waited < SOON_MS);
		doze(1);
	}
	atomic_store(&arena.pair_lines[1].h2d.value, UINT64_MAX);
	ends_with("18446744073709551615 taken");
}

/* ---- what others may wait for whose writer has no call any more ---- */

static void a_descriptor_that_is_wiped_out_behind_its_call_ends_the_job(void **state)
{
	(void)state;
	reduce_by_both();
	atomic_store(&arena.rank_lines[0].ring[1].seq, 0);
	fails_with("rank 0: the arena says that it is at call 0, where it has come to 1");
}

static void a_call_that_is_not_over_any_more_ends_the_job_when_there_is_no_other(void **state)
{
	(void)state;
	reduce_by_both();
	atomic_store(&arena.rank_lines[1].finished[1], 0);
	fails_with("rank 1: the arena says that it has finished call 0, where it has finished 1");
}

static void send_one(void)
{
	OK(ferrySend(buffers[0], COUNT, ferryFloat32, 1, ranks.comms[0], streams[0]));
	OK(ferryRecv(buffers[1], COUNT, ferryFloat32, 0, ranks.comms[1], streams[1]));
	for (int rank = 0; rank < 2; rank++)
		OK(ferryStreamSynchronize(streams[rank]));
}

static void slices_that_are_not_sent_any_more_end_the_job(void **state)
{
	(void)state;
	send_one();
	atomic_store(&arena.pair_lines[1].d2h.value, 0);
	fails_with("rank 0: the arena says that it has sent 0 slices to rank 1; it has ");
}

static void slices_that_are_not_taken_any_more_end_the_job(void **state)
{
	(void)state;
	send_one();
	atomic_store(&arena.pair_lines[1].h2d.value, 0);
	fails_with("rank 1: the arena says that it has taken 0 slices from rank 0; it has ");
}

/* ---- what nobody tells ---- */

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
	        TEST(a_counter_of_a_call_to_come_ends_the_job),
	        TEST(a_counter_that_has_lost_what_its_writer_published_ends_the_job),
	        TEST(a_descriptor_of_a_call_to_come_ends_the_job),
	        TEST(a_descriptor_that_is_wiped_out_ends_the_job),
	        TEST(a_descriptor_of_another_call_ends_the_job),
	        TEST(a_descriptor_that_names_other_routers_ends_the_job),
	        TEST(a_call_that_is_over_before_it_began_ends_the_job),
	        TEST(a_call_that_is_not_over_any_more_ends_the_job),
	        TEST(a_router_that_is_ahead_ends_the_job),
	        TEST(a_router_tells_when_its_word_is_wiped_out),
	        TEST(messages_that_cannot_have_been_taken_end_the_job),
	        TEST(a_descriptor_that_is_wiped_out_behind_its_call_ends_the_job),
	        TEST(a_call_that_is_not_over_any_more_ends_the_job_when_there_is_no_other),
	        TEST(slices_that_are_not_sent_any_more_end_the_job),
	        TEST(slices_that_are_not_taken_any_more_end_the_job),
	        TEST(bells_that_say_nobody_sleeps_delay_calls_and_hang_nobody),
	        TEST(ranks_beyond_all_have_not_left),
	        cmocka_unit_test(a_message_of_a_failure_is_one_line_of_text),
	};
	setenv("FERRY_SHORT", "0", 1); /* this is about lanes and routers */
	setenv("FERRY_LOG", "error", 1); /* a line for each job that fails otherwise */
	setenv("FERRY_FABRICS", "host", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
