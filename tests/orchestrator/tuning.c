/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of the tuner with NCCL's tunings (orchestrator/tuner/tuning.h): the best one is found, for little. */
#include "tests/orchestrator/tuner_runs.h"

/*
 * What NCCL's calls take by way and channels: each way has a time of its own, and channels take the more the further
 * they are from what is best, in steps of a factor of two.
 */
#define BEST_US 2000

static void fill_in(struct world *world, unsigned own, unsigned way, double channels)
{
	struct ferry_tuning named = ferry_tuning_read(own);
	for (uint32_t i = 0; i < FERRY_TUNINGS; i++) {
		struct ferry_tuning tuning = ferry_tuning_read(i);
		uint32_t its = (i < FERRY_TUNING_STEPS ? own : i) / FERRY_TUNING_STEPS;
		double count = tuning.channels ? tuning.channels : named.channels;
		double by_way = its == way ? 1 : 1.1 + 0.1 * its;
		world->nccl_us[i] = BEST_US * by_way * (1 + 0.1 * fabs(log2(count / channels)));
	}
}

/* Makes a call at a time. Returns the calls that were tries; *lost_us: what they took more than the best arm then. */
static int search(int calls, double *lost_us)
{
	int tried = 0;
	*lost_us = 0;
	for (int i = 0; i < calls; i++) {
		uint32_t best = single.line->arms[single.line->best].word;
		make(&single, 1);
		uint32_t word = single.calls[single.made - 1].word;
		tried += word != best;
		*lost_us += fmax(steady_us(single.world, word) - steady_us(single.world, best), 0);
	}
	return tried;
}

/* Wherever NCCL's own choice is, and wherever the best one: after few tries, which cost little. */
static void the_best_tuning_is_found(void **state)
{
	(void)state;
	enum { CALLS = 500, TRIES = 70 };
	static const unsigned owns[] = {8 + 6, 8 + 3, 16 + 1, 32 + 2, 40 + 3};
	double most = 0, most_lost = 0, mean = 0, lost_us, later_us;
	int most_tried = 0, runs = 0;
	for (size_t own = 0; own < sizeof owns / sizeof *owns; own++)
		for (unsigned best = 0; best < 4 * 4; best++)
			for (unsigned with = 1; with <= 5; with++, runs++) {
				struct world world = {.call = whole, .ferry_us = 4000, .noise = 0.01};
				fill_in(&world, owns[own], 1 + best % 2 + best % 4 / 2 * 3, 4 << best / 4);
				seed = with;
				ferry_tuner_init(&rank0, &nothing, 2, 50e3);
				rank0.tuned = true;
				open_kind(&single, &rank0, &world);
				int tried = search(CALLS, &lost_us);
				most_tried = tried > most_tried ? tried : most_tried;
				mean += make(&single, 100) / 100 / BEST_US;
				search(CALLS, &later_us); /* in which what has lost is tried again, too */
				most_lost = fmax(most_lost, (lost_us + later_us) / (2 * CALLS * world.nccl_us[0]));
				most = fmax(most, make(&single, 100) / 100 / BEST_US);
			}
	print_message("tunings: after %d calls, %d tries at most, %.3f of the best one's time on average; later %.3f "
	              "at most; tries cost %.4f of the time at most\n",
	              CALLS, most_tried, mean / runs, most, most_lost);
	assert_true(mean / runs < 1.01 && most < 1.03 && most_lost < 0.01);
	assert_in_range(most_tried, 1, TRIES);
}

/* There a way may need buffers of its own. */
static void of_more_than_two_ranks_only_channels_are_tried(void **state)
{
	(void)state;
	struct world world = {.call = whole, .ferry_us = 9000, .noise = 0.01};
	fill_in(&world, 8 + 6, 2, 16);
	seed = 1;
	ferry_tuner_init(&rank0, &nothing, 4, 50e3);
	rank0.tuned = true;
	open_kind(&single, &rank0, &world);
	make(&single, 1000);
	for (int i = 0; i < single.made; i++)
		assert_false(ferry_tuning_connects(ferry_shares_tuning(single.calls[i].word)));
	assert_true(single.line->narms > 4);
}

/* FERRY_NCCL=tune, which searches from the first calls on, and what such a job has learned. */
static void where_nccl_has_all_calls_its_tunings_are_found_all_the_same(void **state)
{
	(void)state;
	struct world world = {.call = whole, .ferry_us = 100, .noise = 0.01};
	const struct ferry_prior limits = prior_of(2500, 1700);
	struct ferry_share_line record;
	fill_in(&world, 8 + 6, 1, 16);
	for (int again = 0; again < 3; again++) {
		seed = 1;
		world.overlaps = again == 2; /* also where they overlap */
		ferry_tuner_init(&rank0, world.overlaps ? &limits : &nothing, 2, 50e3);
		rank0.tuned = rank0.nccl_alone = true;
		if (again == 1)
			ferry_tuner_adopt(&rank0, &record, whole.fabric);
		open_kind(&single, &rank0, &world);
		make(&single, again == 1 ? 1 : 60);
		assert_int_equal(count_ferrys(0, single.made), 0);
		assert_true(steady_us(&world, single.calls[single.made - 1].word) < 1.03 * BEST_US);
		feed(&single, single.made);
		ferry_tuner_record(single.line, &record);
		assert_int_equal(record.ferry, FERRY_SHARES_NONE);
	}
}

/* Of NCCL's arms an earlier job kept its fastest one. */
static void a_tuning_that_was_learned_is_where_the_next_job_begins(void **state)
{
	struct ferry_shares ferrys = {.part = {FERRY_SHARES_WHOLE, 0, 0}};
	struct ferry_share_line learned = {.collective = FERRY_ALLREDUCE, .type = ferryFloat32, .bytes = 64 * MIB,
	                                   .word = 1, .nccl = 1, .nccl_us = 2000, .ferry_us = 2500,
	                                   .size_class = ferry_tuner_size_class(64 * MIB)};
	struct ferry_share_line record;
	(void)state;
	learned.ferry = ferry_shares_pack(&ferrys);
	for (int ferry_is_faster = 0; ferry_is_faster < 2; ferry_is_faster++) {
		learned.ferry_us = ferry_is_faster ? 1500 : 2500;
		ferry_tuner_init(&rank0, &nothing, 2, 50e3);
		rank0.tuned = true;
		ferry_tuner_adopt(&rank0, &learned, whole.fabric);
		ferry_tuner_record(ferry_tuner_line(&rank0, &whole), &record);
		assert_int_equal(record.word, ferry_is_faster ? learned.ferry : 1);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(the_best_tuning_is_found),
	        cmocka_unit_test(of_more_than_two_ranks_only_channels_are_tried),
	        cmocka_unit_test(where_nccl_has_all_calls_its_tunings_are_found_all_the_same),
	        cmocka_unit_test(a_tuning_that_was_learned_is_where_the_next_job_begins),
	};
	return cmocka_run_group_tests_name("tuning", tests, NULL, NULL);
}
