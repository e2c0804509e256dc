/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of the router monitor, the one thread of a rank whose router moves its data, and of the words that it looks
 * after.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "ipc/error.h"
#include "rank-lib/call/stream_flags.h"
#include "rank-lib/failover/router_monitor.h"
#include "tests/sanitized.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static void doze(void)
{
	nanosleep(&(struct timespec){0, 1000000}, NULL);
}

#define SOON(condition)                                                                                                \
	do {                                                                                                           \
		int waited_ = 0;                                                                                       \
		while (!(condition) && waited_++ < 10000)                                                              \
			doze();                                                                                        \
		assert_true(condition);                                                                                \
	} while (0)

static int monitors(void)
{
	int count = 0;
	DIR *tasks = opendir("/proc/self/task");
	assert_non_null(tasks);
	for (const struct dirent *entry; (entry = readdir(tasks));) {
		char path[300], name[32] = "";
		snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
		FILE *file = fopen(path, "r");
		count += file && fgets(name, sizeof name, file) && !strcmp(name, "ferry-monitor\n");
		if (file)
			fclose(file);
	}
	closedir(tasks);
	return count;
}

/* ---- the router monitor ---- */

struct watched {
	struct ferry_monitor_entry entry; /* first */
	_Atomic int closed, looks;
	_Atomic int most;       /* looks after which it says that it has seen enough */
	_Atomic int enter, go;  /* most 0: `enter` tells that a function runs, which then waits for `go` */
	bool waits;
	int far;                /* the other end */
};

static void on_closed(struct ferry_monitor_entry *entry)
{
	struct watched *watched = (struct watched *)entry;
	atomic_fetch_add(&watched->closed, 1);
	atomic_store(&watched->enter, 1);
	while (watched->waits && !atomic_load(&watched->go))
		doze();
}

static bool on_look(struct ferry_monitor_entry *entry)
{
	struct watched *watched = (struct watched *)entry;
	int looks = atomic_fetch_add(&watched->looks, 1) + 1;
	atomic_store(&watched->enter, 1);
	while (watched->waits && !atomic_load(&watched->go))
		doze();
	return looks < atomic_load(&watched->most);
}

static void watch(struct watched *watched)
{
	int ends[2];
	memset(watched, 0, sizeof *watched);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
	watched->far = ends[1];
	watched->entry = (struct ferry_monitor_entry){.descriptor = ends[0], .closed = on_closed, .look = on_look};
}

static void forget(struct watched *watched)
{
	ferry_router_monitor_remove(&watched->entry);
	close(watched->entry.descriptor);
	if (watched->far >= 0)
		close(watched->far);
}

static void close_far(struct watched *watched)
{
	close(watched->far);
	watched->far = -1;
}

static void a_connection_that_closes_is_told_of_once_and_the_others_are_not(void **state)
{
	(void)state;
	struct watched all[8];
	for (int i = 0; i < 8; i++) {
		watch(&all[i]);
		assert_int_equal(ferry_router_monitor_add(&all[i].entry), ferrySuccess);
	}
	SOON(monitors() == 1); /* its name is the first thing that it does */
	for (int i = 0; i < 8; i += 2)
		close_far(&all[i]);
	for (int i = 0; i < 8; i += 2)
		SOON(atomic_load(&all[i].closed));
	for (int i = 0; i < 20; i++)
		doze();
	for (int i = 0; i < 8; i++) {
		assert_int_equal(atomic_load(&all[i].closed), i % 2 == 0);
		assert_int_equal(atomic_load(&all[i].looks), 0);
		forget(&all[i]);
	}
	assert_int_equal(monitors(), 1);
}

static void what_is_looked_after_is_looked_at_until_it_has_seen_enough(void **state)
{
	(void)state;
	struct watched few, more;
	watch(&few);
	watch(&more);
	atomic_store(&few.most, 3);
	atomic_store(&more.most, 1000000);
	assert_int_equal(ferry_router_monitor_add(&few.entry), ferrySuccess);
	assert_int_equal(ferry_router_monitor_add(&more.entry), ferrySuccess);
	for (int i = 0; i < 20; i++)
		doze();
	assert_int_equal(atomic_load(&few.looks) + atomic_load(&more.looks), 0);
	ferry_router_monitor_look(&few.entry);
	ferry_router_monitor_look(&more.entry);
	SOON(atomic_load(&more.looks) > 20);
	assert_int_equal(atomic_load(&few.looks), 3);
	ferry_router_monitor_look(&few.entry);
	SOON(atomic_load(&few.looks) == 4);
	forget(&more);
	int looks = atomic_load(&more.looks);
	for (int i = 0; i < 20; i++)
		doze();
	assert_int_equal(atomic_load(&more.looks), looks);
	forget(&few);
}

/* What a thread adds to be seen while `look` already returns would be forgotten. */
static void a_look_that_is_asked_for_during_a_look_is_not_lost(void **state)
{
	(void)state;
	struct watched watched;
	watch(&watched);
	watched.waits = true;
	assert_int_equal(ferry_router_monitor_add(&watched.entry), ferrySuccess);
	ferry_router_monitor_look(&watched.entry);
	SOON(atomic_load(&watched.enter));
	ferry_router_monitor_look(&watched.entry);
	atomic_store(&watched.go, 1);
	SOON(atomic_load(&watched.looks) == 2);
	forget(&watched);
}

static void *remove_it(void *argument)
{
	struct watched *watched = argument;
	ferry_router_monitor_remove(&watched->entry);
	atomic_store(&watched->enter, 2);
	return NULL;
}

static void nothing_of_what_was_removed_is_called_any_more(void **state)
{
	(void)state;
	for (int which = 0; which < 2; which++) {
		struct watched watched;
		pthread_t thread;
		watch(&watched);
		watched.waits = true;
		atomic_store(&watched.most, 1000);
		assert_int_equal(ferry_router_monitor_add(&watched.entry), ferrySuccess);
		if (which)
			ferry_router_monitor_look(&watched.entry);
		else
			close_far(&watched);
		SOON(atomic_load(&watched.enter) == 1);
		assert_int_equal(pthread_create(&thread, NULL, remove_it, &watched), 0);
		for (int i = 0; i < 20; i++)
			doze();
		assert_int_equal(atomic_load(&watched.enter), 1); /* it waits for what is called */
		atomic_store(&watched.go, 1);
		pthread_join(thread, NULL);
		int calls = atomic_load(&watched.looks) + atomic_load(&watched.closed);
		for (int i = 0; i < 20; i++)
			doze();
		assert_int_equal(atomic_load(&watched.looks) + atomic_load(&watched.closed), calls);
		forget(&watched);
	}
}

/*
 * A communicator ends, and the next one's connection has the number of its connection: what poll said of the one is
 * nothing about the other.
 */
static void a_connection_with_the_number_of_one_that_has_closed_is_not_taken_for_it(void **state)
{
	(void)state;
	struct watched slow, old, fresh, newest;
	watch(&old);
	watch(&slow);
	watch(&fresh);
	watch(&newest);
	slow.waits = true;
	assert_int_equal(ferry_router_monitor_add(&old.entry), ferrySuccess);
	assert_int_equal(ferry_router_monitor_add(&slow.entry), ferrySuccess); /* is looked at first */
	/* Both at once, for the router monitor. */
	struct watched gate;
	watch(&gate);
	gate.waits = true;
	assert_int_equal(ferry_router_monitor_add(&gate.entry), ferrySuccess);
	ferry_router_monitor_look(&gate.entry);
	SOON(atomic_load(&gate.enter));
	close_far(&old);
	close_far(&slow);
	atomic_store(&gate.go, 1);
	SOON(atomic_load(&slow.closed)); /* poll has said of both that they have closed */
	ferry_router_monitor_remove(&old.entry);
	int number = old.entry.descriptor;
	assert_int_equal(dup2(fresh.entry.descriptor, number), number); /* closes the old one */
	close(fresh.entry.descriptor);
	fresh.entry.descriptor = number;
	assert_int_equal(ferry_router_monitor_add(&fresh.entry), ferrySuccess);
	assert_int_equal(ferry_router_monitor_add(&newest.entry), ferrySuccess);
	atomic_store(&slow.go, 1);
	for (int i = 0; i < 50; i++)
		doze();
	assert_int_equal(atomic_load(&fresh.closed), 0);
	assert_int_equal(atomic_load(&old.closed), 0);
	forget(&gate);
	forget(&slow);
	forget(&newest);
	forget(&fresh);
}

/* ---- words ---- */

static unsigned registrations;

static ferryResult_t register_flags(struct ferry_device *device, struct ferry_stream_flag *flags, size_t bytes)
{
	(void)device;
	assert_true(flags && bytes == FERRY_STREAM_FLAGS * sizeof *flags);
	registrations++;
	return ferrySuccess;
}

static const struct ferry_device_ops ops = {.kind = "test", .register_flags = register_flags};
static struct ferry_device device = {.ops = &ops};

static void open_table(struct ferry_stream_flag_table *table)
{
	int descriptor;
	assert_int_equal(ferry_stream_flags_open(&device, &descriptor), ferrySuccess);
	ferry_stream_flag_table_init(table);
}

static void the_block_is_made_and_registered_once_and_cannot_shrink(void **state)
{
	(void)state;
	int first, again;
	struct stat status;
	assert_int_equal(ferry_stream_flags_open(&device, &first), ferrySuccess);
	assert_int_equal(ferry_stream_flags_open(&device, &again), ferrySuccess);
	assert_int_equal(first, again);
	assert_int_equal(registrations, 1);
	assert_int_equal(fstat(first, &status), 0);
	assert_int_equal(status.st_size, FERRY_STREAM_FLAGS * sizeof(struct ferry_stream_flag));
	int seals = fcntl(first, F_GET_SEALS);
	assert_int_equal(seals & (F_SEAL_SHRINK | F_SEAL_SEAL), F_SEAL_SHRINK | F_SEAL_SEAL);
	assert_int_not_equal(ftruncate(first, 4096), 0);
	struct ferry_stream_flag *theirs = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, first, 0);
	assert_ptr_not_equal(theirs, MAP_FAILED);
	atomic_store(&theirs[3].scalar, 77);
	assert_int_equal(atomic_load(&ferry_stream_flag_at(3)->scalar), 77);
	munmap(theirs, 4096);
}

/* The router's part: the call that the stream is at is over. */
static void pass(uint32_t index, uint32_t turn)
{
	atomic_store(&ferry_stream_flag_at(index)->flag, 1);
	assert_true(ferry_stream_flag_reached(ferry_stream_flag_at(index), turn));
	ferry_stream_flag_pass(ferry_stream_flag_at(index), turn);
}

static void a_stream_has_one_word_and_its_calls_have_turns(void **state)
{
	(void)state;
	enum { STREAMS = 59 }; /* so few keep their flags while they are idle */
	struct ferry_stream_flag_table table;
	uint32_t flags[STREAMS], index, turn;
	open_table(&table);
	for (uint32_t call = 0; call < 20; call++)
		for (uint64_t stream = 0; stream < STREAMS; stream++) {
			assert_int_equal(ferry_stream_flag_for_stream(&table, stream * 3 % STREAMS + 1, &index, &turn),
			                 ferrySuccess);
			assert_int_equal(turn, call);
			if (!call)
				flags[stream] = index;
			assert_int_equal(index, flags[stream]);
			for (uint64_t other = 0; !call && other < stream; other++)
				assert_int_not_equal(flags[other], index);
			assert_false(ferry_stream_flag_reached(ferry_stream_flag_at(index), turn));
			pass(index, turn);
			assert_false(ferry_stream_flag_reached(ferry_stream_flag_at(index), turn));
		}
	ferry_stream_flag_table_end(&table);
}

/*
 * Not those of streams with a call under way (1), with an open call that is over (2), or whose router has yet to store
 * 0 (3). Each call of a flag has a turn of its own.
 */
static void words_of_streams_without_calls_go_to_other_streams_whose_turns_count_on(void **state)
{
	(void)state;
	static uint32_t next[FERRY_STREAM_FLAGS];
	struct ferry_stream_flag_table table;
	uint32_t kept[3], index, turn;
	open_table(&table);
	for (uint32_t i = 0; i < FERRY_STREAM_FLAGS; i++)
		next[i] = atomic_load(&ferry_stream_flag_at(i)->done);
	for (uint64_t i = 0; i < 3; i++) {
		assert_int_equal(ferry_stream_flag_for_stream(&table, i + 1, &kept[i], &turn), ferrySuccess);
		if (i)
			pass(kept[i], turn);
	}
	ferry_stream_flag_hold(&table, kept[1], true);
	atomic_store(&ferry_stream_flag_at(kept[2])->flag, ferry_stream_flag_mark(turn));
	for (uint64_t stream = 4; stream < 3 * FERRY_STREAM_FLAGS; stream++) {
		assert_int_equal(ferry_stream_flag_for_stream(&table, stream, &index, &turn), ferrySuccess);
		for (int i = 0; i < 3; i++)
			assert_int_not_equal(index, kept[i]);
		assert_int_equal(turn, next[index]++);
		pass(index, turn);
	}
	assert_in_range(table.count, 3, 128);
	for (uint64_t i = 0; i < 3; i++) {
		assert_int_equal(ferry_stream_flag_for_stream(&table, i + 1, &index, &turn), ferrySuccess);
		assert_int_equal(index, kept[i]);
		atomic_store(&ferry_stream_flag_at(index)->flag, 0);
		atomic_store(&ferry_stream_flag_at(index)->done, turn + 1);
	}
	assert_int_equal(ferry_stream_flag_for_capture(&table, &index, &turn), ferrySuccess);
	assert_int_equal(turn, next[index]);
	atomic_store(&ferry_stream_flag_at(index)->forgotten, 2);
	ferry_stream_flag_table_end(&table);
}

/* A captured call's flag comes back when no graph has it and the router has released it, not before. */
static void words_of_captured_calls_are_used_again_once_both_have_released_them(void **state)
{
	(void)state;
	struct ferry_stream_flag_table table;
	uint32_t index, turn, kept[3];
	open_table(&table);
	for (int i = 0; i < 3; i++)
		assert_int_equal(ferry_stream_flag_for_capture(&table, &kept[i], &turn), ferrySuccess);
	ferry_stream_flag_forget(kept[1]); /* the router has not let go */
	for (uint32_t i = 0; i < 3 * FERRY_STREAM_FLAGS; i++) {
		assert_int_equal(ferry_stream_flag_for_capture(&table, &index, &turn), ferrySuccess);
		for (int k = 0; k < 3; k++)
			assert_int_not_equal(index, kept[k]);
		ferry_stream_flag_forget(index);
		atomic_store(&ferry_stream_flag_at(index)->forgotten, 2);
	}
	assert_in_range(table.count, 3, 5);
	for (int i = 0; i < 3; i++)
		atomic_store(&ferry_stream_flag_at(kept[i])->forgotten, 2);
	ferry_stream_flag_table_end(&table);
}

static void all_words_can_be_had_and_one_more_is_refused_with_the_number(void **state)
{
	(void)state;
	struct ferry_stream_flag_table table;
	static bool seen[FERRY_STREAM_FLAGS];
	uint32_t index, turn, count = 0;
	open_table(&table);
	memset(seen, 0, sizeof seen);
	while (ferry_stream_flag_for_capture(&table, &index, &turn) == ferrySuccess) {
		assert_true(index < FERRY_STREAM_FLAGS);
		assert_false(seen[index]);
		seen[index] = true;
		if (++count > FERRY_STREAM_FLAGS)
			break;
	}
	assert_int_equal(count, FERRY_STREAM_FLAGS); /* those of the tests before have come back */
	assert_non_null(strstr(ferry_last_message(), "32768"));
	for (uint32_t i = 0; i < FERRY_STREAM_FLAGS; i++)
		atomic_store(&ferry_stream_flag_at(i)->forgotten, 2);
	assert_int_equal(ferry_stream_flag_for_capture(&table, &index, &turn), ferrySuccess);
	atomic_store(&ferry_stream_flag_at(index)->forgotten, 2);
	ferry_stream_flag_table_end(&table);
}

static void streams_are_released_at_their_calls_and_at_those_that_they_come_to_later(void **state)
{
	(void)state;
	struct ferry_stream_flag_table table;
	uint32_t stream, turn, captured;
	open_table(&table);
	for (uint32_t call = 0; call < 3; call++)
		assert_int_equal(ferry_stream_flag_for_stream(&table, 9, &stream, &turn), ferrySuccess);
	uint32_t first = turn - 2;
	assert_int_equal(ferry_stream_flag_for_capture(&table, &captured, &turn), ferrySuccess);
	for (uint32_t call = 0; call < 3; call++) {
		assert_true(ferry_stream_flag_table_release(&table)); /* it could still come to one */
		atomic_store(&ferry_stream_flag_at(stream)->flag, 1);
		atomic_store(&ferry_stream_flag_at(captured)->flag, 1);
		ferry_stream_flag_table_release(&table);
		assert_int_equal(atomic_load(&ferry_stream_flag_at(stream)->flag), 0);
		assert_int_equal(atomic_load(&ferry_stream_flag_at(captured)->flag), 0);
		assert_int_equal(atomic_load(&ferry_stream_flag_at(stream)->done), first + call + 1);
	}
	assert_true(ferry_stream_flag_table_release(&table)); /* a graph may be launched again */
	ferry_stream_flag_forget(captured);
	assert_false(ferry_stream_flag_table_release(&table));
	assert_int_equal(atomic_load(&ferry_stream_flag_at(captured)->forgotten), 2);
	ferry_stream_flag_table_end(&table);
}

/* A communicator has gone while its streams had not come to its calls, and graphs have them: again and again. */
static void words_that_a_communicator_leaves_behind_are_looked_after_and_come_back(void **state)
{
	(void)state;
	for (int round = 0; round < REPEATS(300, 10); round++) {
		struct ferry_stream_flag_table table;
		uint32_t stream, turn, captured;
		open_table(&table);
		assert_int_equal(ferry_stream_flag_for_stream(&table, 5, &stream, &turn), ferrySuccess);
		assert_int_equal(ferry_stream_flag_for_stream(&table, 5, &stream, &turn), ferrySuccess);
		assert_int_equal(ferry_stream_flag_for_capture(&table, &captured, &turn), ferrySuccess);
		ferry_stream_flag_table_end(&table);
		for (int i = 0; i < 2; i++) {
			atomic_store(&ferry_stream_flag_at(stream)->flag, 1);
			SOON(!atomic_load(&ferry_stream_flag_at(stream)->flag));
		}
		atomic_store(&ferry_stream_flag_at(captured)->flag, 1);
		SOON(!atomic_load(&ferry_stream_flag_at(captured)->flag));
		ferry_stream_flag_forget(captured);
		SOON(atomic_load(&ferry_stream_flag_at(captured)->forgotten) == 2);
	}
	all_words_can_be_had_and_one_more_is_refused_with_the_number(state);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(a_connection_that_closes_is_told_of_once_and_the_others_are_not),
	        cmocka_unit_test(what_is_looked_after_is_looked_at_until_it_has_seen_enough),
	        cmocka_unit_test(a_look_that_is_asked_for_during_a_look_is_not_lost),
	        cmocka_unit_test(nothing_of_what_was_removed_is_called_any_more),
	        cmocka_unit_test(a_connection_with_the_number_of_one_that_has_closed_is_not_taken_for_it),
	        cmocka_unit_test(the_block_is_made_and_registered_once_and_cannot_shrink),
	        cmocka_unit_test(a_stream_has_one_word_and_its_calls_have_turns),
	        cmocka_unit_test(words_of_streams_without_calls_go_to_other_streams_whose_turns_count_on),
	        cmocka_unit_test(words_of_captured_calls_are_used_again_once_both_have_released_them),
	        cmocka_unit_test(all_words_can_be_had_and_one_more_is_refused_with_the_number),
	        cmocka_unit_test(streams_are_released_at_their_calls_and_at_those_that_they_come_to_later),
	        cmocka_unit_test(words_that_a_communicator_leaves_behind_are_looked_after_and_come_back),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
