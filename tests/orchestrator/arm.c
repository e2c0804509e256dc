/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of an arm (orchestrator/tuner/arm.h): its time is what calls take now, and chance does not move it. */
#include "orchestrator/tuner/arm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static struct ferry_arm arm_of(const double *us, int count)
{
	struct ferry_arm arm = {.word = 7};
	for (int i = 0; i < count; i++)
		ferry_arm_add(&arm, us[i]);
	return arm;
}

#define ARM(...)                                                                                                       \
	arm_of((const double[]){__VA_ARGS__}, (int)(sizeof((const double[]){__VA_ARGS__}) / sizeof(double)))

static void its_time_is_the_median_of_its_last_samples(void **state)
{
	(void)state;
	struct ferry_arm arm = {.word = 7};
	assert_true(ferry_arm_us(&arm) == 0);
	arm = ARM(100);
	assert_true(ferry_arm_us(&arm) == 100);
	arm = ARM(100, 110);
	assert_true(ferry_arm_us(&arm) == 105);
	arm = ARM(100, 110, 104);
	assert_true(ferry_arm_us(&arm) == 104);
	for (int i = 0; i < 2 * FERRY_ARM_SAMPLES; i++) /* others than these are forgotten */
		ferry_arm_add(&arm, 90 + i % 2);
	assert_true(ferry_arm_us(&arm) >= 90 && ferry_arm_us(&arm) <= 91);
}

/* As two H200s push an AllGather of 16 MiB for the first times. */
static void of_four_calls_two_late_ones_move_nothing(void **state)
{
	(void)state;
	struct ferry_arm arm = ARM(83, 45, 47, 170);
	assert_true(ferry_arm_us(&arm) == 47);
	arm = ARM(664, 45, 45, 1689);
	assert_true(ferry_arm_us(&arm) == 45);
}

static void one_outlier_moves_nothing(void **state)
{
	(void)state;
	for (int at = 2; at < 12; at++) {
		struct ferry_arm arm = {.word = 7};
		for (int i = 0; i < 12; i++) {
			ferry_arm_add(&arm, i == at ? 300 : 100 + i % 3);
			bool far = arm.far != 0;
			assert_true(far == (i == at));
			assert_true(ferry_arm_us(&arm) >= 100 && ferry_arm_us(&arm) <= 102.5);
			assert_false(arm.slowed);
		}
	}
}

/* One that is slow now and then never has forgotten what it takes. */
static void outliers_apart_move_nothing(void **state)
{
	(void)state;
	struct ferry_arm arm = ARM(100, 100, 100);
	for (int i = 0; i < 50; i++) {
		ferry_arm_add(&arm, i % 3 ? 100 : 300);
		assert_true(ferry_arm_us(&arm) == 100);
	}
}

static void two_in_a_row_are_what_calls_take_now(void **state)
{
	(void)state;
	struct ferry_arm arm = ARM(100, 101, 99, 100, 300);
	assert_true(ferry_arm_us(&arm) == 100 && !arm.slowed);
	ferry_arm_add(&arm, 310);
	assert_true(ferry_arm_us(&arm) == 305 && arm.slowed);
	ferry_arm_add(&arm, 100);
	ferry_arm_add(&arm, 101);
	assert_true(ferry_arm_us(&arm) < 110);
	arm = ARM(300, 301, 299, 100, 101);
	assert_true(ferry_arm_us(&arm) == 100.5 && !arm.slowed); /* faster is not slow */
	arm = ARM(100, 101, 99, 100, 300, 50);
	assert_true(ferry_arm_us(&arm) == 100 && !arm.slowed); /* to either side is no change */
}

/* Of which two in a row of the other one hide it for two samples more. */
static void of_two_modes_it_has_the_more_frequent_one(void **state)
{
	(void)state;
	struct ferry_arm apart = {.word = 7}, pairs = {.word = 7};
	int fast = 0;
	for (int i = 0; i < 70; i++) {
		ferry_arm_add(&apart, i % 7 % 3 == 1 ? 180 : 100);
		ferry_arm_add(&pairs, i % 7 < 2 ? 180 : 100);
		assert_true(i < 7 || ferry_arm_us(&apart) == 100);
		fast += i >= 7 && ferry_arm_us(&pairs) == 100;
	}
	assert_in_range(fast, 36, 63);
}

/* Until there are three: one sample far from what was known is chance, two are not. */
static void what_was_learned_is_one_sample_more(void **state)
{
	(void)state;
	struct ferry_arm arm = {.word = 7, .learned_us = 100};
	assert_true(ferry_arm_us(&arm) == 0); /* nothing is measured */
	ferry_arm_add(&arm, 104);
	assert_true(ferry_arm_us(&arm) == 104);
	arm = (struct ferry_arm){.word = 7, .learned_us = 100};
	ferry_arm_add(&arm, 200);
	assert_true(ferry_arm_us(&arm) == 100);
	ferry_arm_add(&arm, 210);
	assert_true(ferry_arm_us(&arm) == 200);
	ferry_arm_add(&arm, 205);
	assert_true(ferry_arm_us(&arm) == 205);
}

/* What was measured before the job says which of two is usual, as an earlier job does. */
static void a_late_first_call_is_not_believed_where_the_machine_was_measured(void **state)
{
	(void)state;
	struct ferry_arm arm = {.word = 7, .before_us = 114};
	ferry_arm_add(&arm, 2859);
	assert_true(ferry_arm_us(&arm) == 114);
	ferry_arm_add(&arm, 123);
	assert_true(ferry_arm_us(&arm) == 123);
	ferry_arm_add(&arm, 120);
	assert_true(ferry_arm_us(&arm) == 123);
	arm = (struct ferry_arm){.word = 7, .before_us = 114, .learned_us = 200};
	ferry_arm_add(&arm, 2859);
	assert_true(ferry_arm_us(&arm) == 200);
}

/* Samples from before calls went another way are no more than learned. */
static void an_arm_that_was_left_begins_anew(void **state)
{
	(void)state;
	struct ferry_arm arm = ARM(100, 101, 99, 100, 300, 310);
	assert_true(arm.slowed);
	arm.left = true;
	ferry_arm_add(&arm, 100);
	assert_int_equal(arm.seen, 1);
	assert_false(arm.left || arm.slowed);
	assert_true(arm.learned_us == 305);
	ferry_arm_add(&arm, 102);
	assert_true(ferry_arm_us(&arm) == 102); /* of 100, 102 and 305 */
	ferry_arm_add(&arm, 101);
	assert_true(ferry_arm_us(&arm) == 101);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(its_time_is_the_median_of_its_last_samples),
	        cmocka_unit_test(of_four_calls_two_late_ones_move_nothing),
	        cmocka_unit_test(one_outlier_moves_nothing),
	        cmocka_unit_test(outliers_apart_move_nothing),
	        cmocka_unit_test(two_in_a_row_are_what_calls_take_now),
	        cmocka_unit_test(a_late_first_call_is_not_believed_where_the_machine_was_measured),
	        cmocka_unit_test(of_two_modes_it_has_the_more_frequent_one),
	        cmocka_unit_test(what_was_learned_is_one_sample_more),
	        cmocka_unit_test(an_arm_that_was_left_begins_anew),
	};
	return cmocka_run_group_tests_name("arm", tests, NULL, NULL);
}
