/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of beliefs (orchestrator/tuner/belief.h): priors, and what an earlier job has learned. */
#include "tests/orchestrator/tuner_runs.h"

/* From the first call on, without one of NCCL's. */
static void a_prior_that_says_much_is_followed_at_once(void **state)
{
	(void)state;
	struct ferry_prior prior = prior_of(2500, 1900);
	struct world world = {.call = whole, .nccl_us = {2500}, .ferry_us = 1900, .noise = 0.01, .late = MOST_LATE};
	run(&world, &prior, 1, FIRST);
	assert_int_equal(count_ferrys(0, FIRST), FIRST);
}

/* As of ReduceScatters of 16 MiB over NVLink: 54 us by NCCL, and 51 by pushes that are not the first ones. */
static void pushes_that_gain_less_than_a_pause_costs_are_not_taken(void **state)
{
	(void)state;
	for (int gains = 0; gains <= 1; gains++) {
		double pushed_us = gains ? 45 : 51;
		struct ferry_prior prior = prior_of(54, pushed_us);
		struct ferry_tuner_call pushed = whole;
		pushed.fabric = FERRY_FABRIC_PEER;
		struct world world = {.call = pushed, .nccl_us = {54}, .ferry_us = pushed_us, .noise = 0.002};
		run(&world, &prior, 1, 2 * FIRST);
		assert_int_equal(count_ferrys(0, 2 * FIRST) > FIRST, gains);
	}
}

static void a_prior_that_praised_the_wrong_arm_is_corrected_in_twenty_calls(void **state)
{
	(void)state;
	for (int late = 0; late <= 4; late += 2)
		for (double truth = 1.1; truth < 3; truth *= 1.3)
			for (unsigned with = 1; with <= SEEDS; with++) {
				struct ferry_prior prior = prior_of(2500, 1700);
				struct world world = {.call = whole, .nccl_us = {2500}, .ferry_us = 2500 * truth,
				                      .noise = 0.01, .late = late};
				run(&world, &prior, with, FIRST);
				assert_true(is_ferrys(0));
				hold_against_best(&world, 200, make(&single, 200), 1.02, "a prior that praised Ferry");
			}
}

/* What a try is expected to cost is saved up before: so many calls of which each gives a two-hundredth. */
static void a_prior_that_slighted_an_arm_is_corrected_for_a_hundredth(void **state)
{
	(void)state;
	for (double said = 1.1; said < 2; said *= 1.2)
		for (unsigned with = 1; with <= SEEDS; with++) {
			struct ferry_prior prior = prior_of(2500, 2500 * said);
			struct world world = {.call = whole, .nccl_us = {2500}, .ferry_us = 1700, .noise = 0.01};
			int calls = (int)(5 * (said - 1) / 0.005) + 2 * FIRST;
			run(&world, &prior, with, calls);
			assert_false(is_ferrys(0));
			hold_against_best(&world, 200, make(&single, 200), 1.02, "a prior that praised NCCL");
		}
}

/*
 * As two H200s push an AllGather of 64 MiB for the first time, 2.9 ms for 114 us, behind calls that NCCL had because
 * the plan was not there.
 */
static void a_late_first_call_does_not_make_the_limits_wrong(void **state)
{
	(void)state;
	struct ferry_prior prior = prior_of(157, 114);
	struct world world = {.call = whole, .nccl_us = {157}, .ferry_us = 114, .burst = 25, .from = 1, .to = 2};
	ferry_tuner_init(&rank0, &prior, 2, 50e3);
	open_kind(&single, &rank0, &world);
	for (int i = 0; i < 3; i++)
		ferry_tuner_feed(&rank0, single.line, FERRY_SHARES_NONE, whole.bytes, 157, false, false);
	make(&single, 60);
	assert_int_equal(count_ferrys(0, 60), 60);
}

/* As FSDP's AllGathers, which take 1.2 ms or 4 by what another stream's ReduceScatters do. */
static void calls_that_overlap_go_by_the_limits_and_have_no_trials(void **state)
{
	(void)state;
	struct ferry_prior prior = prior_of(2500, 1700);
	struct world world = {.call = whole, .nccl_us = {2500}, .ferry_us = 4000, .noise = 0.3, .overlaps = true};
	for (unsigned with = 1; with <= SEEDS; with++) {
		world.overlaps = true;
		run(&world, &prior, with, 600);
		assert_int_equal(count_ferrys(FIRST, 600), 600 - FIRST);
		world.overlaps = false;
		make(&single, 400);
		assert_true(count_ferrys(900, 1000) < 30);
	}
}

/* Of which nothing was measured before. */
static void calls_that_overlap_go_by_their_times_without_limits(void **state)
{
	(void)state;
	struct world world = {.call = whole, .nccl_us = {2500}, .ferry_us = 1700, .noise = 0.01, .burst = 3,
	                      .from = 300, .to = 600, .overlaps = true};
	run(&world, &nothing, 1, 600);
	assert_true(count_ferrys(2 * FIRST, 300) > 240 && count_ferrys(350, 600) < 60);
}

/* A forward pass has a large model's calls alone, a backward pass has them beside others. */
static void calls_that_overlap_in_half_of_a_step_go_by_the_limits_in_all_of_it(void **state)
{
	(void)state;
	struct ferry_prior prior = prior_of(2500, 1700);
	struct world world = {.call = whole, .nccl_us = {2500}, .ferry_us = 4000, .noise = 0.3, .overlaps = true};
	run(&world, &prior, 1, 80);
	for (int half = 0; half < 10; half++) {
		world.overlaps = half % 2;
		make(&single, 80);
	}
	assert_int_equal(count_ferrys(FIRST, single.made), single.made - FIRST);
}

/* Such as where another job has come to have the links. One call says little. */
static void limits_that_are_far_from_what_calls_take_hold_no_more(void **state)
{
	(void)state;
	struct ferry_prior prior = prior_of(2500, 1700);
	struct world world = {.call = whole, .nccl_us = {2500}, .ferry_us = 1700, .noise = 0.01, .burst = 6,
	                      .from = 50, .to = 51, .overlaps = true};
	run(&world, &prior, 1, 400);
	assert_int_equal(count_ferrys(FIRST, 400), 400 - FIRST);
	world.to = 400;
	run(&world, &prior, 1, 400);
	assert_true(count_ferrys(100, 400) < 30);
}

/* One that was begun before it was known that they overlap. */
static void a_trial_ends_where_calls_go_by_the_limits(void **state)
{
	(void)state;
	struct ferry_prior prior = prior_of(2500, 1700);
	struct world world = {.call = whole, .nccl_us = {1600}, .ferry_us = 1700, .noise = 0.01};
	run(&world, &prior, 1, 20);
	while (single.line->trial < 0 && single.made < 2000)
		make(&single, 1);
	assert_true(single.line->trial >= 0);
	single.line->overlap = 1;
	world.overlaps = true;
	feed(&single, single.made);
	make(&single, 1);
	feed(&single, single.made);
	assert_int_equal(single.line->trial, -1);
	assert_int_equal(rank0.ntrials, 0);
}

/* A line that somebody has scribbled in the table. */
static void what_was_learned_of_no_bytes_is_not_taken(void **state)
{
	struct ferry_shares ferrys = {.part = {FERRY_SHARES_WHOLE, 0, 0}};
	struct ferry_share_line learned = {.collective = FERRY_ALLREDUCE, .type = ferryFloat32, .nccl_us = 1,
	                                   .ferry_us = 1};
	(void)state;
	learned.ferry = ferry_shares_pack(&ferrys);
	ferry_tuner_init(&rank0, &nothing, 2, 50e3);
	ferry_tuner_adopt(&rank0, &learned, whole.fabric);
	assert_int_equal(rank0.nlines, 0);
}

/* That both had a part of calls, as earlier versions learned, or pushes, says nothing of what the host would take. */
static void of_calls_that_went_another_way_NCCLs_time_alone_is_taken(void **state)
{
	static const struct ferry_shares ways[] = {{.part = {20, 0, FERRY_SHARES_WHOLE - 20}},
	                                           {.part = {0, FERRY_SHARES_WHOLE, 0}}};
	struct ferry_share_line record,
	        learned = {.collective = FERRY_ALLREDUCE, .type = ferryFloat32, .bytes = 64 * MIB, .nccl_us = 2000,
	                   .ferry_us = 100, .size_class = ferry_tuner_size_class(64 * MIB)};
	(void)state;
	for (int i = 0; i < 2; i++) {
		learned.word = learned.ferry = ferry_shares_pack(&ways[i]);
		ferry_tuner_init(&rank0, &nothing, 2, 50e3);
		ferry_tuner_adopt(&rank0, &learned, whole.fabric);
		ferry_tuner_record(ferry_tuner_line(&rank0, &whole), &record);
		assert_int_equal(record.word, FERRY_SHARES_NONE);
		assert_int_equal(record.ferry, ferry_shares_pack(&(struct ferry_shares){.part = {FERRY_SHARES_WHOLE}}));
		assert_true(record.nccl_us > 1999 && record.nccl_us < 2001 && !(record.ferry_us > 0));
	}
}

/* What rank 0 publishes and a later job adopts: it goes on where the earlier one was. */
static void what_was_learned_is_where_the_next_job_begins(void **state)
{
	(void)state;
	struct world world = {.call = whole, .nccl_us = {2500}, .ferry_us = 1900, .noise = 0.01};
	struct ferry_share_line record;
	run(&world, &nothing, 1, 100);
	feed(&single, single.made);
	ferry_tuner_record(single.line, &record);
	assert_true(record.ferry_us > 1800 && record.ferry_us < 2000 && record.nccl_us > 2400);
	assert_int_equal(record.why, FERRY_BALANCE_SETTLED);
	ferry_tuner_init(&rank0, &nothing, 2, 50e3);
	ferry_tuner_adopt(&rank0, &record, whole.fabric);
	open_kind(&single, &rank0, &world);
	make(&single, FIRST);
	assert_int_equal(count_ferrys(0, FIRST), FIRST);
}

/* Whatever the order in which an earlier job has made its lines. */
static void of_what_was_learned_the_nearest_size_counts(void **state)
{
	const struct ferry_shares ferrys = {.part = {FERRY_SHARES_WHOLE}};
	(void)state;
	for (int order = 0; order < 2; order++) {
		ferry_tuner_init(&rank0, &nothing, 2, 50e3);
		for (int i = 0; i < 2; i++) {
			bool near = i == order;
			uint64_t bytes = near ? 90 * MIB : 128 * MIB;
			struct ferry_share_line learned = {
			        .collective = FERRY_ALLREDUCE, .type = ferryFloat32, .bytes = bytes,
			        .nccl_us = (double)bytes / (near ? 32e3 : 24e3), .ferry = ferry_shares_pack(&ferrys),
			        .ferry_us = (double)bytes / 40e3, .size_class = ferry_tuner_size_class(bytes)};
			ferry_tuner_adopt(&rank0, &learned, whole.fabric);
		}
		const struct ferry_tuner_line *line = ferry_tuner_line(&rank0, &whole);
		assert_int_equal(line->arms[0].word, FERRY_SHARES_NONE);
		assert_float_equal(line->beliefs[0].us, (double)whole.bytes / 32e3, 1);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(a_prior_that_says_much_is_followed_at_once),
	        cmocka_unit_test(pushes_that_gain_less_than_a_pause_costs_are_not_taken),
	        cmocka_unit_test(a_prior_that_praised_the_wrong_arm_is_corrected_in_twenty_calls),
	        cmocka_unit_test(a_prior_that_slighted_an_arm_is_corrected_for_a_hundredth),
	        cmocka_unit_test(a_late_first_call_does_not_make_the_limits_wrong),
	        cmocka_unit_test(calls_that_overlap_go_by_the_limits_and_have_no_trials),
	        cmocka_unit_test(calls_that_overlap_go_by_their_times_without_limits),
	        cmocka_unit_test(calls_that_overlap_in_half_of_a_step_go_by_the_limits_in_all_of_it),
	        cmocka_unit_test(limits_that_are_far_from_what_calls_take_hold_no_more),
	        cmocka_unit_test(a_trial_ends_where_calls_go_by_the_limits),
	        cmocka_unit_test(what_was_learned_of_no_bytes_is_not_taken),
	        cmocka_unit_test(of_calls_that_went_another_way_NCCLs_time_alone_is_taken),
	        cmocka_unit_test(what_was_learned_is_where_the_next_job_begins),
	        cmocka_unit_test(of_what_was_learned_the_nearest_size_counts),
	};
	return cmocka_run_group_tests_name("belief", tests, NULL, NULL);
}
