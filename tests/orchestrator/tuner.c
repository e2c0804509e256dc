/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of the tuner (orchestrator/tuner/tuner.h): which arm each kind of call has, and what tries cost. */
#include "tests/orchestrator/tuner_runs.h"

/* Whichever is faster, whether the program waits for each call or runs ahead. */
static void the_first_twenty_calls_are_all_that_is_spent(void **state)
{
	(void)state;
	static const double ratios[] = {0.4, 0.7, 0.9, 0.95, 1.05, 1.1, 1.3, 2, 4};
	double most = 0;
	for (int late = 0; late <= 4; late += 2)
		for (size_t i = 0; i < sizeof ratios / sizeof *ratios; i++)
			for (unsigned with = 1; with <= SEEDS; with++) {
				struct world world = {.call = whole, .nccl_us = {2500}, .ferry_us = 2500 * ratios[i],
				                      .noise = 0.01, .late = late};
				run(&world, &nothing, with, FIRST);
				double us = make(&single, 200);
				hold_against_best(&world, 200, us, 1.02, "behind twenty");
				most = fmax(most, us / 200 / least_us(&world));
			}
	print_message("behind twenty calls of a kind, 200 take %.4f of the best at most\n", most);
}

/* A program of fifteen calls in all. Nothing is known: what a look at the other way costs is bounded. */
static void fifteen_calls_in_all_cost_little(void **state)
{
	(void)state;
	double worst = 0;
	for (double ratio = 0.4; ratio < 4; ratio *= 1.2)
		for (unsigned with = 1; with <= SEEDS; with++) {
			struct world world = {.call = whole, .nccl_us = {2500}, .ferry_us = 2500 * ratio,
			                      .noise = 0.01};
			worst = fmax(worst, run(&world, &nothing, with, 15) / 15 / 2500);
		}
	print_message("fifteen calls take %.3f of NCCL's at most\n", worst);
	assert_true(worst < 1.45);
}

/* Lanes that sleep, caches, clocks: the first call of a run takes twice the time. */
static void cold_first_calls_do_not_count(void **state)
{
	(void)state;
	for (int late = 0; late <= 2; late++)
		for (unsigned with = 1; with <= SEEDS; with++) {
			struct world world = {.call = whole, .nccl_us = {2500}, .ferry_us = 1900, .noise = 0.01,
			                      .cold = 2, .late = late};
			run(&world, &nothing, with, FIRST);
			hold_against_best(&world, 200, make(&single, 200), 1.02, "cold first calls, Ferry's faster");
			world.ferry_us = 3200;
			run(&world, &nothing, with, FIRST);
			hold_against_best(&world, 200, make(&single, 200), 1.02, "cold first calls, Ferry's slower");
		}
}

/* As of AllGathers of 128 MiB over NVLink in two of three runs: 290 us by NCCL, 198 by pushes, the second one 400. */
static void one_late_call_does_not_decide(void **state)
{
	(void)state;
	struct ferry_prior prior = prior_of(290, 198);
	struct ferry_tuner_call pushed = whole;
	double most[2] = {0};
	pushed.fabric = FERRY_FABRIC_PEER;
	for (int known = 0; known < 2; known++)
		for (unsigned with = 1; with <= SEEDS; with++) {
			struct world world = {.call = pushed, .nccl_us = {290}, .ferry_us = 198, .noise = 0.03,
			                      .cold = 2, .cold_second = 2, .late = (int)with % 4};
			run(&world, known ? &prior : &nothing, with, FIRST);
			most[known] = fmax(most[known], make(&single, 50) / 50 / 198);
		}
	print_message("a late call: 50 calls behind twenty take %.3f of Ferry's, with a prior %.3f, at most\n",
	              most[0], most[1]);
	assert_true(most[0] < 1.1 && most[1] < 1.1);
}

/* As of AllReduces of 16 MiB over NVLink: 77 us by NCCL, of which the first that counted 100, where Ferry takes 87. */
static void one_late_call_begins_no_trial(void **state)
{
	(void)state;
	struct ferry_prior prior = prior_of(77, 87);
	struct ferry_tuner_call pushed = whole;
	pushed.fabric = FERRY_FABRIC_PEER;
	for (int late = 0; late <= MOST_LATE; late++) {
		struct world world = {
		        .call = pushed, .nccl_us = {77}, .ferry_us = 87, .noise = 0.01, .second = 1.3, .late = late};
		run(&world, &prior, 1, FIRST);
		assert_int_equal(count_ferrys(0, FIRST), 0);
	}
}

/* One Ferry call in so many is 1.6 times as slow; what its calls take on the whole decides, not one mode. */
static void of_two_modes_the_frequent_one_decides(void **state)
{
	(void)state;
	double most = 0;
	for (int modes = 3; modes <= 8; modes++)
		for (unsigned with = 1; with <= SEEDS; with++) {
			struct world world = {.call = whole, .nccl_us = {2500}, .ferry_us = 1700, .noise = 0.01,
			                      .modes = modes, .slow_mode = 1.4};
			double whole_us = 1700 * (1 + 0.4 / modes);
			run(&world, &nothing, with, 2 * FIRST);
			most = fmax(most, make(&single, 400) / 400 / whole_us);
		}
	print_message("of two modes: %.3f of Ferry's at most\n", most);
	assert_true(most < 1.1);
}

/* The arm on trial takes the calls over, and a program that runs ahead has always some whose times are not known. */
static void a_trial_that_was_won_ends_though_calls_go_on(void **state)
{
	(void)state;
	for (int late = 1; late <= 6; late++) {
		struct world world = {.call = whole, .ferry_us = 1400, .noise = 0.01, .late = late};
		for (int i = 0; i < FERRY_TUNINGS; i++)
			world.nccl_us[i] = 2000;
		run(&world, &nothing, 1, FIRST);
		int under_way = 0;
		for (int i = 0; i < 400; i++) {
			make(&single, 1);
			under_way += rank0.ntrials > 0;
		}
		if (under_way > 40)
			fail_msg("a trial is under way in %d of 400 calls, %d late", under_way, late);
	}
}

/* As of AllToAlls in place over links, which take a bounce buffer: NCCL has all calls, and few are measured. */
static void where_no_way_of_ferrys_gains_calls_are_nccls_and_few_are_measured(void **state)
{
	(void)state;
	struct ferry_prior prior = prior_of(51, 30);
	struct world world = {.call = whole, .nccl_us = {51}, .ferry_us = 30, .noise = 0.01};
	world.call.fabric = FERRY_FABRIC_NCCL;
	run(&world, &prior, 1, FIRST);
	int measured = 0;
	for (int i = 0; i < FIRST; i++)
		measured += single.calls[i].measured;
	make(&single, 400);
	assert_int_equal(single.line->narms, 1);
	assert_int_equal(count_ferrys(0, FIRST + 400), 0);
	assert_in_range(measured, 1, 8);
}

/* Both take the more and then the less: nothing is turned round. */
static void what_drifts_together_turns_nothing_round(void **state)
{
	(void)state;
	for (double ratio = 0.9; ratio < 1.2; ratio += 0.2)
		for (unsigned with = 1; with <= SEEDS; with++) {
			struct world world = {.call = whole, .nccl_us = {2500}, .ferry_us = 2500 * ratio, .noise = 0.01,
			                      .drift = 0.2};
			run(&world, &nothing, with, FIRST);
			make(&single, 3000);
			int wrong = count_ferrys(FIRST, FIRST + 3000);
			wrong = ratio < 1 ? 3000 - wrong : wrong;
			if (wrong > 120)
				fail_msg("%.1f, seed %u: %d of 3000 calls are the slower one's", ratio, with, wrong);
		}
}

/* Another's copies take Ferry's link for a while: its calls are left soon. They come back no later than it lasted. */
static void a_burst_is_left_and_ends(void **state)
{
	(void)state;
	int most_in = 0, most_behind = 0;
	for (unsigned with = 1; with <= SEEDS; with++) {
		struct world world = {.call = whole, .nccl_us = {2500}, .ferry_us = 1700, .noise = 0.01, .burst = 3,
		                      .from = 200, .to = 600};
		run(&world, &nothing, with, 1200);
		int in = count_ferrys(200, 600), behind = 600 - count_ferrys(600, 1200);
		most_in = in > most_in ? in : most_in;
		most_behind = behind > most_behind ? behind : most_behind;
	}
	print_message("of 400 calls in a burst Ferry has %d, of 600 behind it NCCL has %d, at most\n", most_in,
	              most_behind);
	assert_in_range(most_in, 0, 15);
	assert_in_range(most_behind, 0, 300);
}

/* As of buckets of 27 MiB that products slowed down in one phase: what lost there does not end its later trials. */
static void what_lost_in_another_phase_comes_back(void **state)
{
	(void)state;
	struct ferry_tuner_call bucket = whole;
	int least = 500;
	bucket.bytes = 27 * MIB;
	for (int late = 0; late <= MOST_LATE; late += 4)
		for (unsigned with = 1; with <= SEEDS; with++) {
			struct world world = {.call = bucket, .nccl_us = {1100}, .ferry_us = 820, .noise = 0.01,
			                      .burst = 2.5, .to = 100, .late = late, .cold = with % 2 ? 2 : 0};
			run(&world, &nothing, with, 1500);
			int ferrys = count_ferrys(1000, 1500);
			least = ferrys < least ? ferrys : least;
		}
	print_message("of 500 calls Ferry, which was slow before, has %d at least\n", least);
	assert_in_range(least, 480, 500);
}

/* Calls with an arm on trial are a run, and only those behind its first one count. */
static void a_trial_is_a_run_of_calls(void **state)
{
	(void)state;
	for (int late = 0; late <= 6; late += 3) {
		struct world world = {.call = whole, .nccl_us = {2500}, .ferry_us = 2600, .noise = 0.01, .late = late};
		run(&world, &nothing, 1, 2000);
		for (int i = 1; i < 2000; i++) {
			int end = i;
			if (!is_ferrys(i) || is_ferrys(i - 1))
				continue;
			while (end < 2000 && is_ferrys(end))
				end++;
			assert_in_range(end - i, 3, 5);
			assert_false(single.calls[i].measured);
			for (int at = i + 1; at < end; at++)
				assert_true(single.calls[at].measured);
		}
	}
}

/* Behind the first twenty: those that lost are tried again for a hundredth of the time. */
static void losers_cost_a_hundredth(void **state)
{
	(void)state;
	double most = 0;
	for (double ratio = 1.03; ratio < 6; ratio *= 1.2)
		for (unsigned with = 1; with <= SEEDS; with++) {
			struct world world = {.call = whole, .nccl_us = {2500}, .ferry_us = 2500 * ratio, .noise = 0.01,
			                      .cold = 1.5};
			run(&world, &nothing, with, FIRST);
			most = fmax(most, make(&single, 2000) / 2000 / 2500);
		}
	print_message("2000 calls behind the first twenty take %.4f of the best at most\n", most);
	assert_true(most < 1.01);
}

/* Phases of a program, in any order: each kind has its own best after twenty calls, whatever was before. */
static void phases_in_any_order_have_their_best(void **state)
{
	(void)state;
	enum { PHASES = 6 };
	static struct kind phases[PHASES];
	static const uint64_t mib[PHASES] = {16, 28, 64, 128, 256, 512};
	static const double ratios[PHASES] = {1.15, 0.97, 0.8, 0.75, 0.7, 0.65};
	struct world worlds[PHASES];
	double most = 0;
	for (unsigned with = 1; with <= SEEDS; with++) {
		int order[PHASES] = {0, 1, 2, 3, 4, 5};
		seed = with;
		ferry_tuner_init(&rank0, &nothing, 2, 50e3);
		for (int i = PHASES - 1; i > 0; i--) {
			int with_one = (int)(chance() * (i + 1)), before = order[i];
			order[i] = order[with_one];
			order[with_one] = before;
		}
		for (int i = 0; i < PHASES; i++) {
			int which = order[i];
			struct kind *phase = &phases[which];
			worlds[which] = (struct world){.call = whole, .nccl_us = {40. * (double)mib[which]},
			                               .ferry_us = 40. * (double)mib[which] * ratios[which],
			                               .noise = 0.01, .cold = 2, .late = 1};
			worlds[which].call.bytes = mib[which] * MIB;
			open_kind(phase, &rank0, &worlds[which]);
			make(phase, FIRST);
			double us = make(phase, 100) / 100;
			double best = fmin(worlds[which].nccl_us[0], worlds[which].ferry_us);
			if (us > 1.05 * best)
				fail_msg("seed %u, phase %d of %d MiB: %.3f of its best", with, i, (int)mib[which],
				         us / best);
			most = fmax(most, us / best);
			feed(phase, phase->made);
		}
	}
	print_message("phases: %.3f of their best at most\n", most);
}

/* Where a call's output is its input Ferry may be slower, and NCCL faster, than elsewhere. */
static void a_kind_in_place_has_its_own_best(void **state)
{
	(void)state;
	static struct kind kinds[2];
	for (unsigned with = 1; with <= SEEDS; with++) {
		struct world worlds[2];
		seed = with;
		ferry_tuner_init(&rank0, &nothing, 2, 50e3);
		for (int in_place = 0; in_place < 2; in_place++) {
			worlds[in_place] = (struct world){.call = whole, .nccl_us = {2500},
			                                  .ferry_us = in_place ? 3200 : 1800, .noise = 0.01};
			worlds[in_place].call.in_place = in_place;
			open_kind(&kinds[in_place], &rank0, &worlds[in_place]);
		}
		for (int i = 0; i < FIRST; i++)
			for (int in_place = 0; in_place < 2; in_place++)
				make(&kinds[in_place], 1);
		for (int in_place = 0; in_place < 2; in_place++) {
			int before = kinds[in_place].ferrys;
			make(&kinds[in_place], 100);
			assert_in_range(kinds[in_place].ferrys - before, in_place ? 0 : 95, in_place ? 5 : 100);
		}
	}
}

static void a_kind_that_finds_the_table_full_has_no_line(void **state)
{
	(void)state;
	struct ferry_tuner_call call = whole;
	ferry_tuner_init(&rank0, &nothing, 2, 50e3);
	for (int i = 0; i < FERRY_TUNER_LINES; i++) {
		call.collective = i % 2 ? FERRY_ALLREDUCE : FERRY_ALLGATHER;
		call.bytes = 1024ull << i / 2 % 16;
		call.type = i / 32 % 2 ? ferryFloat32 : ferryFloat16;
		call.in_place = i / 64;
		assert_non_null(ferry_tuner_line(&rank0, &call));
	}
	assert_int_equal(rank0.nlines, FERRY_TUNER_LINES);
	assert_non_null(ferry_tuner_line(&rank0, &call));
	call.collective = FERRY_BROADCAST;
	assert_null(ferry_tuner_line(&rank0, &call));
}

/* The two events of a measured call take 3 us of its caller. */
static void settled_short_calls_are_seldom_measured(void **state)
{
	(void)state;
	struct world world = {.call = whole, .nccl_us = {40}, .ferry_us = 400, .noise = 0.01};
	world.call.bytes = MIB;
	int measured = 0;
	run(&world, &nothing, 1, 1000);
	make(&single, 3000);
	for (int i = 1000; i < single.made; i++)
		measured += single.calls[i].measured;
	assert_in_range(measured, 3000 / 64, 3000 / 16);
}

/* Other ranks may seal another word than rank 0 has published: a trial that gets no call ends. */
static void a_trial_that_cannot_begin_ends(void **state)
{
	(void)state;
	struct ferry_share_line record;
	ferry_tuner_init(&rank0, &nothing, 2, 50e3);
	struct ferry_tuner_line *line = ferry_tuner_line(&rank0, &whole);
	uint8_t turn = 0;
	for (int i = 0; i < 400; i++) {
		if (ferry_tuner_sealed(&rank0, line, FERRY_SHARES_NONE, false, false))
			ferry_tuner_feed(&rank0, line, FERRY_SHARES_NONE, whole.bytes, 2500, false, false);
		turn = line->trial >= 0 && i < 20 ? line->turn : turn;
	}
	assert_true(turn && line->turn != turn);
	ferry_tuner_record(line, &record);
	assert_int_equal(record.word, FERRY_SHARES_NONE);
	assert_int_equal(rank0.ntrials, line->trial >= 0);
}

/* Else the steps' veto would begin between its last call and what that took, and keep what was before. */
static void a_trial_is_under_way_until_its_times_are_known(void **state)
{
	(void)state;
	int unknown = 0;
	struct world world = {.call = whole, .nccl_us = {2500}, .ferry_us = 2600, .noise = 0.01, .late = 8};
	run(&world, &nothing, 1, 0);
	for (int i = 0; i < 1000; i++) {
		make(&single, 1);
		for (int arm = 0; arm < single.line->narms; arm++) {
			bool is = arm != single.line->best && single.line->arms[arm].pending;
			unknown += is && single.line->trial < 0;
			assert_true(!is || rank0.ntrials == 1);
		}
		assert_true(rank0.ntrials <= 1);
	}
	assert_true(unknown);
	assert_int_equal(rank0.ntrials, single.line->trial >= 0);
}

/* The program has gone on to other calls: the trial must not keep the steps' veto away for ever. */
static void a_trial_whose_calls_come_no_more_ends(void **state)
{
	(void)state;
	struct ferry_tuner_call other = whole;
	other.collective = FERRY_BROADCAST;
	other.bytes = 16 * MIB;
	ferry_tuner_init(&rank0, &nothing, 2, 50e3);
	struct ferry_tuner_line *line = ferry_tuner_line(&rank0, &whole);
	for (int i = 0; i < 100 && line->trial < 0; i++)
		if (ferry_tuner_sealed(&rank0, line, FERRY_SHARES_NONE, false, false))
			ferry_tuner_feed(&rank0, line, FERRY_SHARES_NONE, whole.bytes, 2500, false, false);
	assert_int_equal(rank0.ntrials, 1);
	struct ferry_tuner_line *next = ferry_tuner_line(&rank0, &other);
	for (int i = 0; i < 4000; i++)
		ferry_tuner_sealed(&rank0, next, FERRY_SHARES_NONE, false, true);
	assert_true(line->trial < 0 && !rank0.ntrials);
}

/* The first call of each size of nccl-tests takes 0.2 ms more; a program may have no other calls. */
static void a_call_behind_a_pause_counts_if_the_one_before_was_such_a_one(void **state)
{
	static const struct {
		bool paused, measured;
	} calls[] = {{true, false}, {false, true}, {true, false}, {true, true}, {true, true}, {false, true}};
	(void)state;
	ferry_tuner_init(&rank0, &nothing, 2, 50e3);
	struct ferry_tuner_line *line = ferry_tuner_line(&rank0, &whole);
	for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++)
		assert_int_equal(ferry_tuner_sealed(&rank0, line, FERRY_SHARES_NONE, calls[i].paused, true),
		                 calls[i].measured);
}

/* While steps are compared. */
static void none_begins_while_all_is_to_stay(void **state)
{
	(void)state;
	ferry_tuner_init(&rank0, &nothing, 2, 50e3);
	struct ferry_tuner_line *line = ferry_tuner_line(&rank0, &whole);
	for (int i = 0; i < 200; i++) {
		if (ferry_tuner_sealed(&rank0, line, FERRY_SHARES_NONE, false, true))
			ferry_tuner_feed(&rank0, line, FERRY_SHARES_NONE, whole.bytes, 2500, false, false);
		assert_true(line->trial < 0 && !rank0.ntrials);
	}
	ferry_tuner_sealed(&rank0, line, FERRY_SHARES_NONE, false, false);
	assert_true(line->trial >= 0 && rank0.ntrials == 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(the_first_twenty_calls_are_all_that_is_spent),
	        cmocka_unit_test(fifteen_calls_in_all_cost_little),
	        cmocka_unit_test(cold_first_calls_do_not_count),
	        cmocka_unit_test(one_late_call_does_not_decide),
	        cmocka_unit_test(one_late_call_begins_no_trial),
	        cmocka_unit_test(of_two_modes_the_frequent_one_decides),
	        cmocka_unit_test(a_trial_that_was_won_ends_though_calls_go_on),
	        cmocka_unit_test(where_no_way_of_ferrys_gains_calls_are_nccls_and_few_are_measured),
	        cmocka_unit_test(what_drifts_together_turns_nothing_round),
	        cmocka_unit_test(a_burst_is_left_and_ends),
	        cmocka_unit_test(what_lost_in_another_phase_comes_back),
	        cmocka_unit_test(a_trial_is_a_run_of_calls),
	        cmocka_unit_test(losers_cost_a_hundredth),
	        cmocka_unit_test(phases_in_any_order_have_their_best),
	        cmocka_unit_test(a_kind_in_place_has_its_own_best),
	        cmocka_unit_test(a_kind_that_finds_the_table_full_has_no_line),
	        cmocka_unit_test(settled_short_calls_are_seldom_measured),
	        cmocka_unit_test(a_trial_that_cannot_begin_ends),
	        cmocka_unit_test(a_trial_is_under_way_until_its_times_are_known),
	        cmocka_unit_test(a_trial_whose_calls_come_no_more_ends),
	        cmocka_unit_test(a_call_behind_a_pause_counts_if_the_one_before_was_such_a_one),
	        cmocka_unit_test(none_begins_while_all_is_to_stay),
	};
	return cmocka_run_group_tests_name("tuner", tests, NULL, NULL);
}
