/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of the ring of submissions by itself: what was written is taken, whole and in order, however the records lie
 * at the ring's end; a full ring takes nothing; and what a writer that is not to be trusted leaves there is refused.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "ipc/error.h"
#include "ipc/submission.h"
#include "tests/sanitized.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define HEAD sizeof(struct ferry_submission)
#define MOST_BEHIND (FERRY_SUBMISSION_MOST - HEAD)
#define UNIT 64u

static struct ferry_ring ring;
static uint64_t taken; /* the taker's own */

static int empty_ring(void **state)
{
	(void)state;
	memset(&ring, 0, sizeof ring);
	taken = 0;
	return 0;
}

/* The byte at `at` behind the head of record `number`. */
UNSEEN static unsigned char byte_of(uint64_t number, size_t at)
{
	return (unsigned char)(number * 131 + at * 7 + at / 251);
}

UNSEEN static bool write_record(uint64_t number, size_t more)
{
	unsigned char behind[MOST_BEHIND];
	struct ferry_submission head = {
	        .kind = FERRY_SUBMIT_COLLECTIVE, .number = number, .count = more, .plan_hash = ~number};
	for (size_t i = 0; i < more; i++)
		behind[i] = byte_of(number, i);
	return ferry_ring_write(&ring, &head, behind, more);
}

/* How many bytes of it are not what was written. */
UNSEEN static size_t wrong_bytes(const void *record, uint64_t number, size_t more)
{
	struct ferry_submission head;
	const unsigned char *behind = (const unsigned char *)record + HEAD;
	memcpy(&head, record, HEAD);
	size_t wrong = (head.number != number) + (head.count != more) + (head.plan_hash != ~number) +
	               (head.kind != FERRY_SUBMIT_COLLECTIVE) +
	               (head.bytes != (HEAD + more + UNIT - 1) / UNIT * UNIT);
	for (size_t i = 0; i < more; i++)
		wrong += behind[i] != byte_of(number, i);
	return wrong;
}

static bool take_record(uint64_t number, size_t more)
{
	_Alignas(64) char record[FERRY_SUBMISSION_MOST];
	bool any;
	assert_int_equal(ferry_ring_take(&ring, &taken, record, &any), ferrySuccess);
	if (any)
		assert_int_equal(wrong_bytes(record, number, more), 0);
	return any;
}

/* Of a record: none, all sizes, and what fills its lines exactly. */
static size_t size_of(uint64_t number)
{
	static const size_t special[] = {0, 1, UNIT, MOST_BEHIND, MOST_BEHIND - 1, 2 * UNIT - HEAD % UNIT};
	enum { SPECIALS = sizeof special / sizeof *special };
	return number % 3 ? number * 2654435761u % (MOST_BEHIND + 1) : special[number / 3 % SPECIALS];
}

static void an_empty_ring_has_no_record(void **state)
{
	(void)state;
	assert_false(ferry_ring_any(&ring, taken));
	assert_false(take_record(0, 0));
}

static void records_of_all_sizes_are_taken_whole_and_in_order(void **state)
{
	(void)state;
	for (uint64_t number = 1; number <= MOST_BEHIND + 1; number++) {
		assert_true(write_record(number, number - 1));
		assert_true(ferry_ring_any(&ring, taken));
		assert_true(take_record(number, number - 1));
		assert_false(ferry_ring_any(&ring, taken));
		assert_false(take_record(0, 0));
	}
}

static void a_full_ring_takes_nothing_until_one_was_taken_and_loses_nothing(void **state)
{
	(void)state;
	uint64_t written = 0, read = 0;
	while (read < 5000) {
		while (write_record(written + 1, size_of(written + 1)))
			written++;
		uint64_t before = atomic_load(&ring.written);
		assert_false(write_record(written + 1, size_of(written + 1)));
		assert_int_equal(atomic_load(&ring.written), before);
		assert_true(atomic_load(&ring.written) - atomic_load(&ring.taken) <= FERRY_RING_BYTES);
		for (uint64_t some = written - read < 3 ? written - read : 1 + read % 3; some; some--, read++)
			assert_true(take_record(read + 1, size_of(read + 1)));
	}
	while (read < written) {
		read++;
		assert_true(take_record(read, size_of(read)));
	}
	assert_false(take_record(0, 0));
}

/* The last record fills the ring to its last byte. */
static void a_ring_is_filled_to_the_last_byte(void **state)
{
	(void)state;
	enum { RECORDS = FERRY_RING_BYTES / FERRY_SUBMISSION_MOST };
	for (int round = 0; round < 3; round++) {
		for (uint64_t number = 1; number <= RECORDS; number++)
			assert_true(write_record(number, MOST_BEHIND));
		assert_false(write_record(RECORDS + 1, 0));
		for (uint64_t number = 1; number <= RECORDS; number++)
			assert_true(take_record(number, MOST_BEHIND));
		assert_false(take_record(0, 0));
	}
}

/* ---- two threads ---- */

#define THREADED 20000

static void *write_many(void *argument)
{
	(void)argument;
	for (uint64_t number = 1; number <= THREADED; number++)
		while (!write_record(number, size_of(number)))
			sched_yield();
	return NULL;
}

static void a_writer_and_a_taker_in_two_threads_agree(void **state)
{
	(void)state;
	pthread_t writer;
	assert_int_equal(pthread_create(&writer, NULL, write_many, NULL), 0);
	for (uint64_t number = 1; number <= THREADED;)
		if (take_record(number, size_of(number)))
			number++;
		else
			sched_yield();
	pthread_join(writer, NULL);
	assert_false(take_record(0, 0));
}

/* ---- a writer that is not to be trusted ---- */

static void refused(uint64_t written, uint32_t bytes, uint16_t kind)
{
	_Alignas(64) char record[FERRY_SUBMISSION_MOST];
	uint64_t before = taken, logged = atomic_load(&ring.taken);
	bool any = true;
	struct ferry_submission head = {.bytes = bytes, .kind = kind};
	memcpy(ring.records + taken % FERRY_RING_BYTES, &head, UNIT);
	atomic_store(&ring.written, written);
	ferryResult_t result = ferry_ring_take(&ring, &taken, record, &any);
	if (result != ferryInvalidUsage || any || taken != before || atomic_load(&ring.taken) != logged)
		fail_msg("%u bytes, kind %u, where %llu are there: result %d, any %d, %llu taken", bytes, kind,
		         (unsigned long long)(written - before), (int)result, any, (unsigned long long)taken);
	assert_non_null(strstr(ferry_last_message(), "submission"));
}

/* Each word of it: by another rank, after its owner has written it. */
static void a_record_that_has_changed_is_refused(void **state)
{
	_Alignas(64) char record[FERRY_SUBMISSION_MOST];
	(void)state;
	for (size_t at = 0; at < 512; at += 8) {
		bool any = true;
		empty_ring(NULL);
		assert_true(write_record(1, 512 - HEAD - 5)); /* the last bytes are nobody's */
		ring.records[at + 3] ^= 1;
		assert_int_equal(ferry_ring_take(&ring, &taken, record, &any), ferryInvalidUsage);
		assert_false(any);
		assert_int_equal(taken, 0);
	}
}

static void what_cannot_be_is_refused_with_its_values_and_not_taken(void **state)
{
	(void)state;
	static const uint32_t lengths[] = {
	        0, 1, UNIT, HEAD - 1, HEAD + 1, 193, FERRY_SUBMISSION_MOST + UNIT, FERRY_RING_BYTES, UINT32_MAX,
	        UINT32_MAX - UNIT + 1};
	for (int round = 0; round < 20; round++) {
		for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
			refused(taken + FERRY_RING_BYTES, lengths[i], FERRY_SUBMIT_COLLECTIVE);
		refused(taken + UNIT, 256, FERRY_SUBMIT_COLLECTIVE);              /* longer than what is there */
		refused(taken + 257, 256, FERRY_SUBMIT_COLLECTIVE);               /* no whole lines */
		refused(taken + FERRY_RING_BYTES + UNIT, 256, FERRY_SUBMIT_COLLECTIVE);
		refused(taken - UNIT, 256, FERRY_SUBMIT_COLLECTIVE);              /* goes backwards */
		refused(taken + UINT64_MAX / 2 / UNIT * UNIT, 256, FERRY_SUBMIT_COLLECTIVE);
		refused(taken + 512, 256, FERRY_SUBMIT_NOTHING);                  /* not up to the end of the ring */
		refused(taken + 512, 0, FERRY_SUBMIT_NOTHING);
		uint32_t rest = FERRY_RING_BYTES - (uint32_t)(taken % FERRY_RING_BYTES);
		refused(taken + rest, rest, FERRY_SUBMIT_NOTHING);                /* and no record behind it */
		if (rest < FERRY_SUBMISSION_MOST)                                 /* beyond the end of the ring */
			refused(taken + FERRY_RING_BYTES, rest + UNIT, FERRY_SUBMIT_COLLECTIVE);
		atomic_store(&ring.written, taken);
		for (int i = 0; i < 3; i++) {
			assert_true(write_record(7, 3000));
			assert_true(take_record(7, 3000));
		}
	}
}

/* What is skipped at the end is followed by a record, and by nothing that is to be skipped, too. */
static void nothing_behind_nothing_is_refused(void **state)
{
	(void)state;
	_Alignas(64) char record[FERRY_SUBMISSION_MOST];
	bool any = true;
	struct ferry_submission nothing = {.kind = FERRY_SUBMIT_NOTHING, .bytes = FERRY_RING_BYTES};
	for (uint64_t number = 1; taken < FERRY_RING_BYTES - FERRY_SUBMISSION_MOST; number++) {
		assert_true(write_record(number, MOST_BEHIND));
		assert_true(take_record(number, MOST_BEHIND));
	}
	memcpy(ring.records, &nothing, UNIT);
	nothing.bytes = FERRY_SUBMISSION_MOST;
	memcpy(ring.records + taken, &nothing, UNIT);
	atomic_store(&ring.written, taken + FERRY_RING_BYTES);
	assert_int_equal(ferry_ring_take(&ring, &taken, record, &any), ferryInvalidUsage);
	assert_false(any);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test_setup(an_empty_ring_has_no_record, empty_ring),
	        cmocka_unit_test_setup(records_of_all_sizes_are_taken_whole_and_in_order, empty_ring),
	        cmocka_unit_test_setup(a_full_ring_takes_nothing_until_one_was_taken_and_loses_nothing, empty_ring),
	        cmocka_unit_test_setup(a_ring_is_filled_to_the_last_byte, empty_ring),
	        cmocka_unit_test_setup(a_writer_and_a_taker_in_two_threads_agree, empty_ring),
	        cmocka_unit_test_setup(a_record_that_has_changed_is_refused, empty_ring),
	        cmocka_unit_test_setup(what_cannot_be_is_refused_with_its_values_and_not_taken, empty_ring),
	        cmocka_unit_test_setup(nothing_behind_nothing_is_refused, empty_ring),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
