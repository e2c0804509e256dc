/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of the copies that a rank keeps of its submissions: it finds that another rank of its job has written over
 * how much is in the ring, of which the router would never see the last calls.
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

static int open_ring(void **state)
{
	(void)state;
	memset(&ring, 0, sizeof ring);
	ferry_kept_submissions_init(&kept);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test_setup_teardown(a_ring_that_says_what_was_written_is_believed, open_ring, close_ring),
	        cmocka_unit_test_setup_teardown(a_ring_that_says_less_than_was_written_is_found_out, open_ring,
	                                        close_ring),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
