/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of what ranks say of their readiness (ipc/shares.h): of each kind of call by itself. */
#include "ipc/shares.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdlib.h>

#define FEW 40 /* kinds, of which no five want the same places, as far as chance goes */

static struct ferry_share_table *table;

static int make(void **state)
{
	(void)state;
	table = calloc(1, ferry_share_table_bytes(2));
	return !table;
}

static int drop(void **state)
{
	(void)state;
	free(table);
	return 0;
}

static uint32_t said(uint32_t rank, uint64_t kind)
{
	uint32_t what = 0;
	ferry_share_said(table, rank, kind, &what);
	return what;
}

static void what_is_said_of_a_kind_is_said_of_no_other(void **state)
{
	(void)state;
	uint32_t what;
	for (uint64_t kind = 0; kind < FEW; kind++) {
		assert_false(ferry_share_said(table, 0, kind, &what));
		ferry_share_publish(table, 0, kind, kind % 2 ? FERRY_SHARE_WANTED : FERRY_SHARE_PREREGISTERED, true);
	}
	for (uint64_t kind = 0; kind < FEW; kind++) {
		assert_int_equal(said(0, kind), kind % 2 ? FERRY_SHARE_WANTED : FERRY_SHARE_PREREGISTERED);
		assert_false(ferry_share_said(table, 1, kind, &what)); /* nor of another rank */
	}
	for (uint64_t kind = FEW; kind < 100000; kind++)
		assert_int_equal(said(0, kind), 0);
}

static void one_is_taken_back_and_the_other_stays(void **state)
{
	(void)state;
	uint32_t what;
	ferry_share_publish(table, 1, 7, FERRY_SHARE_PREREGISTERED,
	                    false); /* of what is not known there is nothing to take back */
	assert_false(ferry_share_said(table, 1, 7, &what));
	ferry_share_publish(table, 1, 7, FERRY_SHARE_PREREGISTERED, true);
	ferry_share_publish(table, 1, 7, FERRY_SHARE_WANTED, true);
	assert_int_equal(said(1, 7), FERRY_SHARE_PREREGISTERED | FERRY_SHARE_WANTED);
	ferry_share_publish(table, 1, 7, FERRY_SHARE_WANTED, false);
	assert_int_equal(said(1, 7), FERRY_SHARE_PREREGISTERED);
	ferry_share_publish(table, 1, 7, FERRY_SHARE_PREREGISTERED, false);
	assert_true(ferry_share_said(table, 1, 7, &what));
	assert_int_equal(what, 0);
}

/* However many come: the latest is there, and what is wanted stays beside what is not. */
static void what_is_not_wanted_makes_room(void **state)
{
	(void)state;
	for (uint64_t kind = 0; kind < FEW; kind++)
		ferry_share_publish(table, 0, kind, FERRY_SHARE_WANTED, true);
	for (uint64_t kind = 1000; kind < 20000; kind++) {
		ferry_share_publish(table, 0, kind, FERRY_SHARE_PREREGISTERED, true);
		assert_int_equal(said(0, kind), FERRY_SHARE_PREREGISTERED);
	}
	for (uint64_t kind = 0; kind < FEW; kind++)
		assert_int_equal(said(0, kind), FERRY_SHARE_WANTED);
	for (uint64_t kind = 1000; kind < 20000; kind++) {
		ferry_share_publish(table, 0, kind, FERRY_SHARE_WANTED, true);
		assert_true(said(0, kind) & FERRY_SHARE_WANTED);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test_setup_teardown(what_is_said_of_a_kind_is_said_of_no_other, make, drop),
	        cmocka_unit_test_setup_teardown(one_is_taken_back_and_the_other_stays, make, drop),
	        cmocka_unit_test_setup_teardown(what_is_not_wanted_makes_room, make, drop),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
