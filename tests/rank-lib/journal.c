/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of a rank's journal: what a router gets that takes another's place, and what goes when; and that the rank
 * finds out where another one of its job has written over how much is in the ring, of which the router would never see
 * the last calls.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "ipc/error.h"
#include "rank-lib/failover/journal.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { OWN, OTHER, FAR }; /* domains: the last one does nothing in the rank's memory */

static struct ferry_ring ring;
static struct ferry_export_cell cells[2]; /* of the exports here */
static struct ferry_journal journal;
static bool gone[8]; /* by word: no graph has its call */
static uint64_t given[16];
static unsigned ngiven;

static bool forgotten(uint32_t flag)
{
	return gone[flag];
}

static unsigned looks;

static bool forgotten_at_the_second_look(uint32_t flag)
{
	(void)flag;
	return looks++ > 0;
}

static int open_ring(void **state)
{
	(void)state;
	memset(&ring, 0, sizeof ring);
	memset(gone, 0, sizeof gone);
	memset(cells, 0, sizeof cells);
	ferry_journal_init(&journal);
	ferry_journal_open(&journal, &ring, 1u << OWN, 1u << OTHER, cells, forgotten);
	return 0;
}

static int close_ring(void **state)
{
	(void)state;
	ferry_journal_end(&journal);
	return 0;
}

static ferryResult_t submit(bool *written)
{
	struct ferry_submission head = {.kind = FERRY_SUBMIT_COLLECTIVE, .number = 1};
	return ferry_journal_write(&journal, &head, NULL, 0, written);
}

static void a_ring_that_says_what_was_written_is_believed(void **state)
{
	bool written = false;
	(void)state;
	assert_int_equal(ferry_journal_check(&journal), ferrySuccess);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(submit(&written), ferrySuccess);
		assert_true(written);
		assert_int_equal(ferry_journal_check(&journal), ferrySuccess);
	}
}

static void a_ring_that_says_less_than_was_written_is_found_out(void **state)
{
	bool written = true;
	(void)state;
	assert_int_equal(submit(&written), ferrySuccess);
	atomic_store(&ring.written, 0);
	assert_int_equal(ferry_journal_check(&journal), ferryInternalError);
	assert_non_null(strstr(ferry_last_message(), "has submitted 0 bytes, where it has submitted 192"));
	assert_int_equal(submit(&written), ferryInternalError);
	assert_false(written);
}

/* Its number is the next; word 0: not captured. */
static void submit_next(uint32_t flag, uint16_t more)
{
	static const uint64_t behind[40] = {1};
	struct ferry_submission head = {.kind = FERRY_SUBMIT_MESSAGES, .number = journal.number + 1, .flag = flag};
	bool written;
	head.flags = (uint16_t)((flag ? FERRY_SUBMIT_CAPTURED : 0) | more);
	assert_int_equal(ferry_journal_write(&journal, &head, behind, sizeof behind, &written),
	                 ferrySuccess);
	assert_true(written);
}

/* By a router. */
static void take_all(void)
{
	atomic_store(&ring.taken, atomic_load(&ring.written));
}

static ferryResult_t note(void *context, const void *records, size_t bytes)
{
	struct ferry_submission head;
	(void)context;
	for (size_t at = 0; at < bytes; at += head.bytes) {
		memcpy(&head, (const char *)records + at, sizeof head);
		assert_true(ngiven < 16);
		given[ngiven++] = head.number;
	}
	return ferrySuccess;
}

static const struct ferry_journal_reader reader = {.submissions = note};

/* numbers: of the records that the next router gets, up to a 0; last, calls: what it is told of the last one taken. */
static void assert_gives(const uint64_t *numbers, uint64_t last, uint64_t calls)
{
	struct ferry_journal_taken taken;
	ngiven = 0;
	assert_int_equal(ferry_journal_replay(&journal, OWN, &reader, NULL, &taken), ferrySuccess);
	for (unsigned i = 0; i < ngiven; i++)
		assert_int_equal(given[i], numbers[i]);
	assert_int_equal(numbers[ngiven], 0);
	assert_int_equal(taken.number, last);
	assert_int_equal(taken.calls, calls);
}

static void captured_calls_are_given_in_their_places_however_old_they_are(void **state)
{
	(void)state;
	submit_next(0, 0);
	submit_next(1, 0);
	submit_next(0, 0);
	submit_next(2, 0);
	submit_next(0, 0);
	take_all();
	submit_next(0, 0);
	submit_next(3, 0);
	assert_gives((const uint64_t[]){1, 2, 3, 4, 5, 0}, 5, 3);
	take_all();
	atomic_store(&ring.over, 3);
	assert_gives((const uint64_t[]){2, 4, 5, 6, 7, 0}, 7, 4);
	atomic_store(&ring.over, 7);
	assert_gives((const uint64_t[]){2, 4, 7, 0}, 7, 4);
}

static void captured_calls_that_no_graph_has_are_not_given(void **state)
{
	(void)state;
	for (uint32_t flag = 1; flag <= 4; flag++)
		submit_next(flag, 0);
	take_all();
	submit_next(5, 0); /* and forgotten before anybody has taken it: it lies in the ring */
	ferry_journal_forget(&journal, 2);
	ferry_journal_forget(&journal, 5);
	submit_next(0, 0);
	gone[3] = true;
	assert_gives((const uint64_t[]){1, 4, 0}, 4, 0);
	take_all();
	assert_gives((const uint64_t[]){1, 4, 6, 0}, 6, 1);
}

/* Its graph goes between two of them. */
static void a_captured_group_is_given_with_all_its_records_or_none(void **state)
{
	(void)state;
	submit_next(1, FERRY_SUBMIT_MORE);
	submit_next(1, FERRY_SUBMIT_MORE);
	submit_next(1, 0);
	take_all();
	journal.is_forgotten = forgotten_at_the_second_look;
	looks = 0;
	assert_gives((const uint64_t[]){1, 2, 3, 0}, 3, 0);
	assert_gives((const uint64_t[]){0}, 3, 0);
}

/* ---- all kinds of entries ---- */

/* A letter for each entry that is read: plans a to z, exports A to Z by index, submissions 1 to 9. */
static char logged[64];

static ferryResult_t notify(char letter)
{
	size_t length = strlen(logged);
	assert_true(length + 1 < sizeof logged);
	logged[length] = letter;
	logged[length + 1] = 0;
	return ferrySuccess;
}

static ferryResult_t tell_plan(void *context, const struct ferry_plan *plan)
{
	(void)context;
	return notify((char)plan->hash);
}

static ferryResult_t tell_export(void *context, const struct ferry_exported *exported, const int *descriptors,
                                 bool pinned)
{
	(void)context;
	for (uint32_t i = 0; i < exported->npieces; i++)
		assert_true(fcntl(descriptors[i], F_GETFD) >= 0);
	notify((char)('A' + exported->index));
	return pinned ? notify('!') : ferrySuccess;
}

static ferryResult_t tell_submissions(void *context, const void *records, size_t bytes)
{
	struct ferry_submission head;
	(void)context;
	for (size_t at = 0; at < bytes; at += head.bytes) {
		memcpy(&head, (const char *)records + at, sizeof head);
		notify((char)('0' + head.number));
	}
	return ferrySuccess;
}

static const char *replayed(uint32_t domain)
{
	static const struct ferry_journal_reader all = {tell_plan, tell_export, tell_submissions};
	struct ferry_journal_taken taken;
	logged[0] = 0;
	assert_int_equal(ferry_journal_replay(&journal, domain, &all, NULL, &taken), ferrySuccess);
	return logged;
}

/* Of one piece; the result is its descriptor. */
static int add_export(uint32_t index, uint64_t generation, bool put_target, uint64_t until)
{
	struct ferry_exported exported = {.index = index,
	                                  .generation = generation,
	                                  .npieces = 1,
	                                  .put_target = put_target};
	int descriptor = open("/dev/null", O_RDONLY);
	assert_true(descriptor >= 0);
	ferry_journal_add_export(&journal, &exported, &descriptor, until);
	return descriptor;
}

static bool is_open(int descriptor)
{
	return fcntl(descriptor, F_GETFD) >= 0;
}

static void a_router_gets_what_is_its_own_and_what_it_puts_into(void **state)
{
	struct ferry_plan plans[] = {{.hash = 'a'}, {.hash = 'b'}};
	struct ferry_journal_entry *entries[2];
	(void)state;
	add_export(0, 1, false, 1);
	submit_next(0, 0);
	add_export(1, 1, true, 2);
	submit_next(0, 0);
	take_all();
	for (int i = 0; i < 2; i++)
		assert_int_equal(ferry_journal_add_plan(&journal, &plans[i], i ? 1u << FAR | 1u << OWN : 1u << OWN,
		                                        &entries[i]),
		                 ferrySuccess);
	assert_string_equal(replayed(OWN), "abAB12");
	assert_string_equal(replayed(OTHER), "B");
	assert_string_equal(replayed(FAR), "b");
	ferry_journal_remove_plan(&journal, entries[1]);
	assert_string_equal(replayed(OWN), "aAB12");
	add_export(0, 1, true, 2); /* others put into it, too, from now on */
	assert_string_equal(replayed(OTHER), "AB");
}

static void an_entry_goes_with_the_last_submission_that_names_it(void **state)
{
	(void)state;
	int first = add_export(0, 1, false, 1), second = add_export(1, 1, false, 1);
	submit_next(0, 0);
	ferry_journal_use_export(&journal, 1, 2);
	submit_next(0, 0);
	take_all();
	ferry_journal_sweep(&journal, true);
	assert_string_equal(replayed(OWN), "AB12");
	atomic_store(&ring.over, 1);
	assert_string_equal(replayed(OWN), "B2");
	ferry_journal_sweep(&journal, true);
	assert_false(is_open(first));
	assert_false(ferry_journal_has_export(&journal, 0));
	assert_true(ferry_journal_has_export(&journal, 1));
	assert_true(is_open(second));
	atomic_store(&ring.over, 2);
	ferry_journal_sweep(&journal, true);
	assert_false(is_open(second));
	assert_string_equal(replayed(OWN), "");
}

static void what_captured_calls_name_stays_until_no_graph_has_them(void **state)
{
	(void)state;
	int descriptor = add_export(0, 1, false, FERRY_JOURNAL_FOR_GOOD);
	submit_next(1, 0);
	submit_next(0, 0);
	take_all();
	atomic_store(&ring.over, 2);
	ferry_journal_sweep(&journal, true);
	submit_next(0, 0);
	take_all();
	assert_string_equal(replayed(OWN), "A!13");
	ferry_journal_forget(&journal, 1);
	ferry_journal_use_export(&journal, 0, 1);
	ferry_journal_sweep(&journal, true);
	assert_false(is_open(descriptor));
	assert_string_equal(replayed(OWN), "3");
}

/* Memory that is about to be freed: no descriptor is left when the index is retired. */
static void memory_that_nobody_needs_is_released_at_once(void **state)
{
	(void)state;
	int unused = add_export(0, 1, false, 0), used = add_export(1, 1, false, 1);
	submit_next(0, 0);
	take_all();
	ferry_journal_retire_export(&journal, 0, 0);
	assert_false(is_open(unused));
	ferry_journal_retire_export(&journal, 1, 1);
	assert_true(is_open(used));
	int newer = add_export(1, 2, false, 2);
	assert_string_equal(replayed(OWN), "BB1"); /* the older generation first, which the submission names */
	atomic_store(&ring.over, 1);
	ferry_journal_sweep(&journal, true);
	assert_false(is_open(used));
	assert_true(is_open(newer));
	assert_string_equal(replayed(OWN), "B");
}

/* Then the driver is asked for no handle again when it is named after a while. */
static void an_export_stays_while_the_router_has_mapped_what_its_index_names(void **state)
{
	(void)state;
	int descriptor = add_export(0, 1, false, 1);
	atomic_store(&cells[0].mapped, 1);
	submit_next(0, 0);
	take_all();
	atomic_store(&ring.over, 1);
	ferry_journal_sweep(&journal, true);
	assert_true(ferry_journal_has_export(&journal, 0));
	assert_true(is_open(descriptor));
	assert_string_equal(replayed(OWN), "");
	ferry_journal_use_export(&journal, 0, 2);
	assert_string_equal(replayed(OWN), "A");
	atomic_store(&ring.over, 2);
	atomic_store(&cells[0].mapped, FERRY_EXPORT_LEAVING);
	ferry_journal_sweep(&journal, true);
	assert_false(is_open(descriptor));
	assert_false(ferry_journal_has_export(&journal, 0));
}

static void without_a_router_nothing_is_mapped(void **state)
{
	(void)state;
	int descriptor = add_export(0, 1, false, 0);
	atomic_store(&cells[0].mapped, 1);
	ferry_journal_sweep(&journal, false);
	assert_false(is_open(descriptor));
}

/* Of an older generation no later submission can name it. */
static void what_its_index_names_no_more_goes_though_it_is_mapped(void **state)
{
	(void)state;
	int older = add_export(0, 1, false, 1);
	atomic_store(&cells[0].mapped, 1);
	submit_next(0, 0);
	take_all();
	ferry_journal_retire_export(&journal, 0, 1);
	assert_true(is_open(older));
	atomic_store(&ring.over, 1);
	ferry_journal_sweep(&journal, true);
	assert_false(is_open(older));
}

/* Submissions behind entries that stay for good go with later ones, and their memory is used again. */
static void a_long_run_of_calls_between_entries_that_stay_needs_no_more_memory(void **state)
{
	struct ferry_plan plan = {.hash = 'a'};
	struct ferry_journal_entry *entry;
	(void)state;
	for (int i = 0; i < 1000; i++) {
		if (i % 100 == 50)
			assert_int_equal(ferry_journal_add_plan(&journal, &plan, 1u << OWN, &entry), ferrySuccess);
		if (i % 200 == 155)
			ferry_journal_remove_plan(&journal, entry);
		submit_next(0, 0);
		take_all();
		atomic_store(&ring.over, journal.number - 1);
	}
	size_t entries = 0;
	for (struct ferry_journal_link *link = journal.list.next; link != &journal.list; link = link->next)
		entries++;
	assert_int_equal(entries, 5 + 2); /* the last one is not over, and the one before had not been when it came */
}

#define TEST(promise) cmocka_unit_test_setup_teardown(promise, open_ring, close_ring)

int main(void)
{
	const struct CMUnitTest tests[] = {
	        TEST(captured_calls_are_given_in_their_places_however_old_they_are),
	        TEST(captured_calls_that_no_graph_has_are_not_given),
	        TEST(a_captured_group_is_given_with_all_its_records_or_none),
	        TEST(a_ring_that_says_what_was_written_is_believed),
	        TEST(a_ring_that_says_less_than_was_written_is_found_out),
	        TEST(a_router_gets_what_is_its_own_and_what_it_puts_into),
	        TEST(an_entry_goes_with_the_last_submission_that_names_it),
	        TEST(what_captured_calls_name_stays_until_no_graph_has_them),
	        TEST(memory_that_nobody_needs_is_released_at_once),
	        TEST(an_export_stays_while_the_router_has_mapped_what_its_index_names),
	        TEST(without_a_router_nothing_is_mapped),
	        TEST(what_its_index_names_no_more_goes_though_it_is_mapped),
	        TEST(a_long_run_of_calls_between_entries_that_stay_needs_no_more_memory),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
