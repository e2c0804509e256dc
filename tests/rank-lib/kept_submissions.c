/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of the copies that a rank keeps of its submissions: what a router gets that takes another's place; and that
 * the rank finds out where another one of its job has written over how much is in the ring, of which the router would
 * never see the last calls.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "ipc/error.h"
#include "rank-lib/kept_submissions.h"

#include <string.h>

static struct ferry_ring ring;
static struct ferry_kept_submissions kept;
static bool gone[8]; /* by word: no graph has its call */
static uint64_t given[16];
static unsigned ngiven;

static bool forgotten(uint32_t word)
{
	return gone[word];
}

static unsigned looks;

static bool forgotten_at_the_second_look(uint32_t word)
{
	(void)word;
	return looks++ > 0;
}

static int open_ring(void **state)
{
	(void)state;
	memset(&ring, 0, sizeof ring);
	memset(gone, 0, sizeof gone);
	ferry_kept_submissions_init(&kept, forgotten);
	return 0;
}

static int close_ring(void **state)
{
	(void)state;
	ferry_kept_submissions_end(&kept);
	return 0;
}

static ferryResult_t submit(bool *written)
{
	struct ferry_submission head = {.kind = FERRY_SUBMIT_COLLECTIVE, .number = 1};
	return ferry_kept_submissions_write(&kept, &ring, &head, NULL, 0, written);
}

static void a_ring_that_says_what_was_written_is_believed(void **state)
{
	bool written = false;
	(void)state;
	assert_int_equal(ferry_kept_submissions_check(&kept, &ring), ferrySuccess);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(submit(&written), ferrySuccess);
		assert_true(written);
		assert_int_equal(ferry_kept_submissions_check(&kept, &ring), ferrySuccess);
	}
}

static void a_ring_that_says_less_than_was_written_is_found_out(void **state)
{
	bool written = true;
	(void)state;
	assert_int_equal(submit(&written), ferrySuccess);
	atomic_store(&ring.written, 0);
	assert_int_equal(ferry_kept_submissions_check(&kept, &ring), ferryInternalError);
	assert_non_null(strstr(ferry_last_message(), "has submitted 0 bytes, where it has submitted 192"));
	assert_int_equal(submit(&written), ferryInternalError);
	assert_false(written);
}

/* Its number is the next; word 0: not captured. */
static void submit_next(uint32_t word, uint16_t more)
{
	static const uint64_t behind[40] = {1};
	struct ferry_submission head = {.kind = FERRY_SUBMIT_MESSAGES, .number = kept.number + 1, .word = word};
	bool written;
	head.flags = (uint16_t)((word ? FERRY_SUBMIT_CAPTURED : 0) | more);
	assert_int_equal(ferry_kept_submissions_write(&kept, &ring, &head, behind, sizeof behind, &written),
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

/* numbers: of the records that the next router gets, up to a 0; last, calls: what it is told of the last one taken. */
static void assert_gives(const uint64_t *numbers, uint64_t last, uint64_t calls)
{
	struct ferry_kept_taken taken;
	ngiven = 0;
	assert_int_equal(ferry_kept_submissions_give(&kept, &ring, note, NULL, &taken), ferrySuccess);
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
	for (uint32_t word = 1; word <= 4; word++)
		submit_next(word, 0);
	take_all();
	submit_next(5, 0); /* and forgotten before anybody has taken it: it lies in the ring */
	ferry_kept_submissions_forget(&kept, 2);
	ferry_kept_submissions_forget(&kept, 5);
	submit_next(0, 0);
	gone[3] = true;
	assert_gives((const uint64_t[]){1, 4, 0}, 4, 0);
	gone[3] = false; /* another call's word meanwhile */
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
	kept.forgotten = forgotten_at_the_second_look;
	looks = 0;
	assert_gives((const uint64_t[]){1, 2, 3, 0}, 3, 0);
	assert_gives((const uint64_t[]){0}, 3, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test_setup_teardown(captured_calls_are_given_in_their_places_however_old_they_are,
	                                        open_ring, close_ring),
	        cmocka_unit_test_setup_teardown(captured_calls_that_no_graph_has_are_not_given, open_ring, close_ring),
	        cmocka_unit_test_setup_teardown(a_captured_group_is_given_with_all_its_records_or_none, open_ring,
	                                        close_ring),
	        cmocka_unit_test_setup_teardown(a_ring_that_says_what_was_written_is_believed, open_ring, close_ring),
	        cmocka_unit_test_setup_teardown(a_ring_that_says_less_than_was_written_is_found_out, open_ring,
	                                        close_ring),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
