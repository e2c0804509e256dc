/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of descriptors and of sets of ranks: what is written is read, and a difference is told with both calls. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "ipc/collective.h"
#include "ipc/descriptor.h"
#include "ipc/rankset.h"

#include <stdio.h>
#include <string.h>

static const struct ferry_descriptor_fields call = {
        .plan_hash = 0xfedcba9876543210, .count = 1ull << 40, .scalar = 3, .name = 4, .root = 6,
        .shape = FERRY_BROADCAST | ferryFloat << 8, .domains = 0x81};

static void what_a_rank_writes_is_read_under_its_number(void **state)
{
	(void)state;
	struct ferry_descriptor descriptor = {0};
	struct ferry_descriptor_fields fields;
	memset(&fields, 0xff, sizeof fields);
	ferry_descriptor_write(&descriptor, 77, &call);
	ferry_descriptor_read(&descriptor, &fields);
	assert_true(atomic_load(&descriptor.seq) == 77);
	assert_true(fields.plan_hash == call.plan_hash && fields.count == call.count && fields.scalar == call.scalar);
	assert_true(fields.name == call.name && fields.root == call.root && fields.shape == call.shape);
	assert_true(fields.domains == call.domains);
}

static void calls_agree_by_plan_count_shape_and_root_alone(void **state)
{
	(void)state;
	struct ferry_descriptor_fields other = call;
	other.scalar++;
	other.name++;
	assert_true(ferry_descriptor_agree(&call, &other));
	other.plan_hash++;
	assert_false(ferry_descriptor_agree(&call, &other));
	other = call;
	other.count++;
	assert_false(ferry_descriptor_agree(&call, &other));
	other = call;
	other.shape++;
	assert_false(ferry_descriptor_agree(&call, &other));
	other = call;
	other.root++;
	assert_false(ferry_descriptor_agree(&call, &other));
}

static void a_disagreement_is_told_with_both_calls_or_the_settings(void **state)
{
	(void)state;
	char text[384];
	struct ferry_descriptor_fields other = call;
	other.plan_hash++;
	ferry_descriptor_disagreement(text, sizeof text, 9, 0, &call, 5, &other);
	assert_non_null(strstr(text, "call 9: rank 0 calls broadcast of 1099511627776 f32 (root 6), rank 5 "));
	assert_non_null(strstr(text, "FERRY_ settings differ"));
	other.shape = FERRY_ALLREDUCE | ferryInt32 << 8 | ferryMax << 16;
	other.count = 12;
	ferry_descriptor_disagreement(text, sizeof text, 9, 0, &call, 5, &other);
	assert_non_null(strstr(text, ", rank 5 calls allreduce of 12 i32 (max)"));
	assert_null(strstr(text, "settings"));
	other.shape = FERRY_REDUCE_TO_ROOT | ferryInt32 << 8 | ferryMax << 16;
	ferry_descriptor_disagreement(text, sizeof text, 9, 0, &call, 5, &other);
	assert_non_null(strstr(text, ", rank 5 calls reduce of 12 i32 (max, root 6)"));
	other.shape = FERRY_ALLTOALL | ferryInt32 << 8 | ferryMax << 16;
	ferry_descriptor_disagreement(text, sizeof text, 9, 0, &call, 5, &other);
	assert_string_equal(strstr(text, ", rank 5 "), ", rank 5 calls alltoall of 12 i32");
}

static void ranks_are_listed_shortly_and_the_longest_list_has_room(void **state)
{
	(void)state;
	char text[FERRY_RANKSET_TEXT];
	assert_string_equal(ferry_rankset_print(1ull << 3, text), "rank 3");
	assert_string_equal(ferry_rankset_print(0x8f, text), "ranks 0-3, 7");
	assert_string_equal(ferry_rankset_print(ferry_rankset_all(64), text), "ranks 0-63");
	assert_string_equal(ferry_rankset_print(1ull << 63, text), "rank 63");
	ferry_rankset_print(0xdb6db6db6db6db6dull | 1ull << 63, text);
	assert_string_equal(text + strlen(text) - 7, ", 62-63");
	assert_true(ferry_rankset_all(1) == 1 && ferry_rankset_all(63) == ~0ull >> 1);
	assert_int_equal(ferry_rankset_lowest(0xf0), 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(what_a_rank_writes_is_read_under_its_number),
	        cmocka_unit_test(calls_agree_by_plan_count_shape_and_root_alone),
	        cmocka_unit_test(a_disagreement_is_told_with_both_calls_or_the_settings),
	        cmocka_unit_test(ranks_are_listed_shortly_and_the_longest_list_has_room),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
