/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of what the balancer stands on: divisions, traces, and what calls are believed to take. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "tests/orchestrator/program_of_calls.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void divisions_are_the_best_that_there_are(void **state)
{
	(void)state;
	unsigned seed = 5;
	for (int i = 0; i < 300; i++) {
		struct fabrics fabrics = {.seed = 1};
		struct ferry_paces paces;
		struct ferry_shares shares, best;
		double bytes = exp2(20 + rand_r(&seed) % 10), us[FERRY_NUM_FABRICS];
		for (int c = 0; c < FERRY_NUM_FABRICS; c++)
			fabrics.paces[c] = (struct ferry_pace){rand_r(&seed) % 300, (1 + rand_r(&seed) % 99) * GB_S};
		for (int set = 0; set < FERRY_FABRIC_SETS; set++)
			memcpy(paces.in[set], fabrics.paces, sizeof fabrics.paces);
		struct ferry_division_rules rules = {ALL, ALL, 128 << 10, 0};
		double said = ferry_divide(&paces, bytes, &rules, &shares);
		assert_true(said <= fabrics_best(&fabrics, bytes, ALL, 128 << 10, &best) * 1.01);
		assert_true(fabs(fabrics_us(&fabrics, bytes, &shares, us) / said - 1) < 1e-6);
		for (int c = 0; c < FERRY_NUM_FABRICS; c++)
			assert_true(!shares.part[c] ||
			            bytes * (shares.part[c] + 0.5) / FERRY_SHARES_WHOLE >= 128 << 10);
	}
}

static void a_trace_sees_changes_and_no_outliers(void **state)
{
	(void)state;
	struct ferry_trace trace = {.count = 0};
	struct ferry_pace pace = {0, 1};
	for (int i = 0; i < 10; i++)
		assert_false(ferry_trace_add(&trace, &pace, 1000, 1000 + i % 3, true, true));
	assert_false(ferry_trace_add(&trace, &pace, 1000, 3000, true, true)); /* once */
	assert_false(ferry_trace_add(&trace, &pace, 1000, 1000, true, true));
	assert_false(ferry_trace_add(&trace, &pace, 1000, 4000, true, true));
	assert_true(ferry_trace_add(&trace, &pace, 1000, 4000, true, true)); /* twice */
	assert_true(fabs(ferry_trace_factor(&trace, &pace) - 4) < 0.01);
	assert_true(ferry_trace_add(&trace, &pace, 1000, 1010, true, true)); /* as before */
	assert_true(ferry_trace_add(&trace, &pace, 1000, 4100, true, true)); /* and again */
	assert_true(ferry_trace_add(&trace, &pace, 1000, 1000, false, true)); /* also while learning */
	assert_false(ferry_trace_add(&trace, &pace, 1000, 30000, true, true));
	assert_false(ferry_trace_add(&trace, &pace, 1000, 9000, true, true)); /* both late, and not alike */
	assert_true(fabs(ferry_trace_factor(&trace, &pace) - 1) < 0.01);
}

/* A trace that learns believes a faster sample at once, and a slower one, even the first of all, if it comes twice. */
static void a_trace_that_learns_doubts_what_is_slow(void **state)
{
	(void)state;
	struct ferry_pace pace = {0, 1};
	struct ferry_trace trace = {.count = 0};
	assert_false(ferry_trace_add(&trace, &pace, 1000, 9000, false, true));
	assert_int_equal(trace.count, 0);
	assert_false(ferry_trace_add(&trace, &pace, 1000, 1010, false, true));
	assert_true(fabs(ferry_trace_factor(&trace, &pace) - 1.01) < 0.01);
	assert_false(ferry_trace_add(&trace, &pace, 1000, 5000, false, true));
	assert_true(fabs(ferry_trace_factor(&trace, &pace) - 1.01) < 0.01);
	assert_false(ferry_trace_add(&trace, &pace, 1000, 5100, false, true));
	assert_true(fabs(ferry_trace_factor(&trace, &pace) - 5.1) < 0.01);
	trace = (struct ferry_trace){.count = 0}; /* where nothing is known the first is all there is */
	assert_false(ferry_trace_add(&trace, &pace, 1000, 9000, false, false));
	assert_true(fabs(ferry_trace_factor(&trace, &pace) - 9) < 0.01);
	assert_false(ferry_trace_add(&trace, &pace, 1000, 1000, false, false));
	assert_true(fabs(ferry_trace_factor(&trace, &pace) - 1) < 0.01);
}

/* NCCL is slower beside the host; that holds for NCCL alone, which was measured before. */
static void a_change_holds_for_all_sets(void **state)
{
	(void)state;
	struct program program;
	struct ferry_paces paces;
	program_start(&program, &pcie, TWO, 64 * MIB);
	program_know(&program, 1, 1);
	const struct ferry_balancer_line *line = ferry_balancer_line(&program.balancer, &program.call);
	for (int n = 0; n < 300; n++)
		program_call(&program, 0);
	ferry_balancer_paces(&program.balancer, line, &paces);
	double before = paces.in[1 << NCCL][NCCL].rate;
	program.fabrics.paces[NCCL].rate /= 2;
	for (int n = 0; n < 20; n++)
		program_call(&program, 0);
	ferry_balancer_paces(&program.balancer, line, &paces);
	assert_true(fabs(before / paces.in[1 << NCCL][NCCL].rate - 2) < 0.3);
}

/* The host alone was never tried; once it is slower beside NCCL, it is expected to be slower alone. */
static void a_change_holds_for_sets_that_were_not_tried(void **state)
{
	(void)state;
	struct program program;
	struct ferry_paces before, after;
	program_start(&program, &pcie, TWO, 64 * MIB);
	program_know(&program, 1, 1);
	const struct ferry_balancer_line *line = ferry_balancer_line(&program.balancer, &program.call);
	for (int n = 0; n < 20; n++)
		program_call(&program, 0);
	ferry_balancer_paces(&program.balancer, line, &before);
	program.fabrics.paces[HOST].rate /= 4;
	for (int n = 0; n < 3; n++)
		program_call(&program, 0);
	assert_int_equal(line->belief.traces[HOST][0].count, 0);
	ferry_balancer_paces(&program.balancer, line, &after);
	assert_true(before.in[1 << HOST][HOST].rate / after.in[1 << HOST][HOST].rate > 2.5);
}

/*
 * NCCL is as it has been in a burst, which is believed at once; so is then that the host, in the same call, has
 * changed.
 */
static void a_sample_is_believed_as_a_whole(void **state)
{
	(void)state;
	struct program program;
	program_start(&program, &pcie, TWO, 64 * MIB);
	program_know(&program, 1, 1);
	const struct ferry_balancer_line *line = ferry_balancer_line(&program.balancer, &program.call);
	for (int n = 0; n < 240; n++) {
		program.fabrics.paces[NCCL].rate = n / 80 == 1 ? 10 * GB_S : 21 * GB_S;
		program_call(&program, 0);
	}
	assert_int_equal(line->why, FERRY_BALANCE_SETTLED);
	program.fabrics.paces[NCCL].rate = 10 * GB_S;
	program.fabrics.paces[HOST].rate = 3 * GB_S;
	program_call(&program, 0);
	assert_int_equal(line->why, FERRY_BALANCE_CHANGED);
	assert_true(ferry_shares_unpack(line->word).part[HOST] < FERRY_SHARES_WHOLE / 3);
}

/* What one size has seen twice another believes at once. */
static void other_sizes_believe_the_first_sample_of_a_change(void **state)
{
	(void)state;
	struct program program;
	static const double sizes[] = {256 * MIB, 64 * MIB}; /* every call is measured */
	program_start(&program, &pcie, TWO, sizes[0]);
	program_know(&program, 1, 1);
	for (int n = 0; n < 400; n++) {
		program.call.bytes = (uint64_t)sizes[n / 200];
		program_call(&program, 0);
	}
	program.fabrics.paces[HOST].rate /= 4;
	for (int which = 0; which < 2; which++) {
		int calls = 0;
		program.call.bytes = (uint64_t)sizes[which];
		const struct ferry_balancer_line *line = ferry_balancer_line(&program.balancer, &program.call);
		for (; line->why != FERRY_BALANCE_CHANGED && calls < 10; calls++)
			program_call(&program, 0);
		assert_int_equal(calls, which ? 1 : 2);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(divisions_are_the_best_that_there_are),
	        cmocka_unit_test(a_trace_sees_changes_and_no_outliers),
	        cmocka_unit_test(a_trace_that_learns_doubts_what_is_slow),
	        cmocka_unit_test(a_change_holds_for_all_sets),
	        cmocka_unit_test(a_change_holds_for_sets_that_were_not_tried),
	        cmocka_unit_test(a_sample_is_believed_as_a_whole),
	        cmocka_unit_test(other_sizes_believe_the_first_sample_of_a_change),
	};
	return cmocka_run_group_tests_name("belief", tests, NULL, NULL);
}
