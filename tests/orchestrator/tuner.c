/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of the tuner (orchestrator/tuner/tuner.h) where time is made: a call takes what its arm takes here, with
 * noise, modes, bursts and cold first calls, and the tuner hears of it `late` calls later. All words are what a rank
 * proposes that does what rank 0 has published.
 */
#include "orchestrator/tuner/tuner.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MIB        (1ull << 20)
#define FIRST      20 /* calls of a kind that may be spent */
#define MOST_LATE  16
#define MOST_CALLS 4096
#define SEEDS      20

/* What calls of a kind take: with each of NCCL's tunings, and by Ferry. */
struct world {
	struct ferry_tuner_call call;
	double nccl_us[FERRY_TUNINGS], ferry_us;
	double noise;      /* of each call, relative, uniform, to either side */
	double cold;       /* the first call of a run takes so many times as long; 0: 1, */
	double cold_second; /* and the second one of Ferry's first run */
	double second;     /* and the kind's second call */
	double slow_mode;  /* Ferry's calls in two modes: so much slower, */
	int modes;         /* one in so many; 0: one mode */
	double drift;      /* all take so much more and less, over a thousand calls */
	double burst;      /* Ferry's calls are so many times slower in calls */
	int from, to;      /* from this one to before that one */
	int late;
};

struct kind {
	const struct world *world;
	struct ferry_tuner *tuner;
	struct ferry_tuner_line *line;
	uint8_t turn, used;
	uint32_t last;
	int made, fed, ferrys;
	struct {
		uint32_t word;
		double us;
		bool measured;
	} calls[MOST_CALLS];
};

static unsigned seed;
static struct ferry_prior nothing;
static struct ferry_tuner rank0;
static struct kind single; /* of a run with one */

static double chance(void)
{
	return (rand_r(&seed) + 0.5) / (RAND_MAX + 1.0);
}

static double steady_us(const struct world *world, uint32_t word)
{
	return ferry_shares_divide(word) ? world->ferry_us : world->nccl_us[ferry_shares_tuning(word)];
}

static double us_of(const struct kind *kind, uint32_t word)
{
	const struct world *world = kind->world;
	bool ferrys = ferry_shares_divide(word);
	double us = steady_us(world, word) * (1 + world->noise * (2 * chance() - 1));
	us *= 1 + world->drift * sin(2 * M_PI * kind->made / 1000);
	if (world->cold > 0 && (word != kind->last || !kind->made))
		us *= world->cold;
	if (world->cold_second > 0 && ferrys && kind->ferrys == 1)
		us *= world->cold_second;
	if (world->second > 0 && kind->made == 1)
		us *= world->second;
	if (ferrys && world->modes && chance() * world->modes < 1)
		us *= world->slow_mode;
	if (ferrys && kind->made >= world->from && kind->made < world->to)
		us *= world->burst;
	return us;
}

static void open_kind(struct kind *kind, struct ferry_tuner *tuner, const struct world *world)
{
	memset(kind, 0, sizeof *kind);
	kind->world = world;
	kind->tuner = tuner;
	kind->line = ferry_tuner_line(tuner, &world->call);
	assert_non_null(kind->line);
}

/* As ferry_meter_propose: a rank bounds a trial by the calls that it has seen of it. */
static uint32_t propose(struct kind *kind)
{
	struct ferry_share_line record;
	ferry_tuner_record(kind->tuner, kind->line, &record);
	if (record.turn != kind->turn)
		kind->used = 0;
	kind->turn = record.turn;
	if (!record.run || kind->used >= record.run)
		return record.word;
	kind->used++;
	return record.trial;
}

static void feed(struct kind *kind, int until)
{
	for (; kind->fed < until; kind->fed++)
		if (kind->calls[kind->fed].measured)
			ferry_tuner_feed(kind->tuner, kind->line, kind->calls[kind->fed].word, kind->world->call.bytes,
			                 kind->calls[kind->fed].us, false);
}

/* Returns what the calls have taken. */
static double make(struct kind *kind, int calls)
{
	double all = 0;
	for (int i = 0; i < calls; i++, kind->made++) {
		feed(kind, kind->made - kind->world->late);
		uint32_t word = propose(kind);
		double us = us_of(kind, word);
		kind->calls[kind->made].word = word;
		kind->calls[kind->made].us = us;
		kind->calls[kind->made].measured = ferry_tuner_sealed(kind->tuner, kind->line, word, false);
		kind->last = word;
		kind->ferrys += ferry_shares_divide(word);
		all += us;
	}
	return all;
}

static const struct ferry_tuner_call whole = {FERRY_ALLREDUCE, ferryFloat32, 64 * MIB, false, FERRY_FABRIC_HOST};

/* All from the beginning: returns what `calls` calls take. */
static double run(const struct world *world, const struct ferry_prior *prior, unsigned with, int calls)
{
	seed = with;
	ferry_tuner_init(&rank0, prior, 2, 50e3);
	open_kind(&single, &rank0, world);
	return make(&single, calls);
}

static bool is_ferrys(int call)
{
	return ferry_shares_divide(single.calls[call].word);
}

static int count_ferrys(int from, int to)
{
	int count = 0;
	for (int i = from; i < to; i++)
		count += is_ferrys(i);
	return count;
}

static void print(int calls)
{
	for (int i = 0; i < calls; i++)
		print_message("%s%.0f%s", i % 16 ? " " : "\n", single.calls[i].us, is_ferrys(i) ? "F" : "");
	print_message("\n");
}

/* ---- promises ---- */

static double least_us(const struct world *world)
{
	uint32_t best = 0;
	double least = INFINITY;
	for (int i = 0; i < single.line->narms; i++) {
		double us = steady_us(world, single.line->arms[i].word);
		best = us < least ? single.line->arms[i].word : best;
		least = fmin(least, us);
	}
	return steady_us(world, best);
}

/* Fails where calls take more than `most` times what the best arm takes for them without noise. */
static void hold_against_best(const struct world *world, int calls, double us, double most, const char *what)
{
	double best_us = least_us(world) * calls;
	if (us <= most * best_us)
		return;
	print(single.made < 400 ? single.made : 400);
	fail_msg("%s: %d calls take %.4f of the best arm's time", what, calls, us / best_us);
}

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

static struct ferry_prior prior_of(double nccl_us, double ferry_us)
{
	struct ferry_prior prior;
	memset(&prior, 0, sizeof prior);
	prior.counts[FERRY_ALLREDUCE] = 2;
	for (int i = 0; i < 2; i++)
		prior.points[FERRY_ALLREDUCE][i] = (struct ferry_prior_point){
		        (16 * MIB) << 4 * i, {nccl_us * (i ? 4 : 0.25), 0, ferry_us * (i ? 4 : 0.25)}};
	return prior;
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

/* From the first call on, without one of NCCL's. */
static void a_prior_that_says_much_is_followed_at_once(void **state)
{
	(void)state;
	struct ferry_prior prior = prior_of(2500, 1900);
	struct world world = {.call = whole, .nccl_us = {2500}, .ferry_us = 1900, .noise = 0.01, .late = MOST_LATE};
	run(&world, &prior, 1, FIRST);
	assert_int_equal(count_ferrys(0, FIRST), FIRST);
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
	struct ferry_share_line record;
	fill_in(&world, 8 + 6, 1, 16);
	for (int again = 0; again < 2; again++) {
		seed = 1;
		ferry_tuner_init(&rank0, &nothing, 2, 50e3);
		rank0.tuned = rank0.nccl_alone = true;
		if (again)
			ferry_tuner_adopt(&rank0, &record, whole.fabric);
		open_kind(&single, &rank0, &world);
		make(&single, again ? 1 : 60);
		assert_int_equal(count_ferrys(0, single.made), 0);
		assert_true(steady_us(&world, single.calls[single.made - 1].word) < 1.03 * BEST_US);
		feed(&single, single.made);
		ferry_tuner_record(&rank0, single.line, &record);
		assert_int_equal(record.ferry, FERRY_SHARES_NONE);
	}
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
		if (ferry_tuner_sealed(&rank0, line, FERRY_SHARES_NONE, false))
			ferry_tuner_feed(&rank0, line, FERRY_SHARES_NONE, whole.bytes, 2500, false);
		turn = line->trial >= 0 && i < 20 ? line->turn : turn;
	}
	assert_true(turn && line->turn != turn);
	ferry_tuner_record(&rank0, line, &record);
	assert_int_equal(record.word, FERRY_SHARES_NONE);
	assert_int_equal(rank0.ntrials, line->trial >= 0);
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
		if (ferry_tuner_sealed(&rank0, line, FERRY_SHARES_NONE, false))
			ferry_tuner_feed(&rank0, line, FERRY_SHARES_NONE, whole.bytes, 2500, false);
	assert_int_equal(rank0.ntrials, 1);
	struct ferry_tuner_line *next = ferry_tuner_line(&rank0, &other);
	for (int i = 0; i < 4000; i++)
		ferry_tuner_sealed(&rank0, next, FERRY_SHARES_NONE, true);
	assert_true(line->trial < 0 && !rank0.ntrials);
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
		ferry_tuner_record(&rank0, ferry_tuner_line(&rank0, &whole), &record);
		assert_int_equal(record.word, ferry_is_faster ? learned.ferry : 1);
	}
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
		ferry_tuner_record(&rank0, ferry_tuner_line(&rank0, &whole), &record);
		assert_int_equal(record.word, FERRY_SHARES_NONE);
		assert_int_equal(record.ferry, ferry_shares_pack(&(struct ferry_shares){.part = {FERRY_SHARES_WHOLE}}));
		assert_true(record.nccl_us > 1999 && record.nccl_us < 2001 && !(record.ferry_us > 0));
	}
}

/* While steps are compared. */
static void none_begins_while_all_is_to_stay(void **state)
{
	(void)state;
	ferry_tuner_init(&rank0, &nothing, 2, 50e3);
	struct ferry_tuner_line *line = ferry_tuner_line(&rank0, &whole);
	for (int i = 0; i < 200; i++) {
		if (ferry_tuner_sealed(&rank0, line, FERRY_SHARES_NONE, true))
			ferry_tuner_feed(&rank0, line, FERRY_SHARES_NONE, whole.bytes, 2500, false);
		assert_true(line->trial < 0 && !rank0.ntrials);
	}
	ferry_tuner_sealed(&rank0, line, FERRY_SHARES_NONE, false);
	assert_true(line->trial >= 0 && rank0.ntrials == 1);
}

/* What rank 0 publishes and a later job adopts: it goes on where the earlier one was. */
static void what_was_learned_is_where_the_next_job_begins(void **state)
{
	(void)state;
	struct world world = {.call = whole, .nccl_us = {2500}, .ferry_us = 1900, .noise = 0.01};
	struct ferry_share_line record;
	run(&world, &nothing, 1, 100);
	feed(&single, single.made);
	ferry_tuner_record(&rank0, single.line, &record);
	assert_true(record.ferry_us > 1800 && record.ferry_us < 2000 && record.nccl_us > 2400);
	assert_int_equal(record.why, FERRY_BALANCE_SETTLED);
	ferry_tuner_init(&rank0, &nothing, 2, 50e3);
	ferry_tuner_adopt(&rank0, &record, whole.fabric);
	open_kind(&single, &rank0, &world);
	make(&single, FIRST);
	assert_int_equal(count_ferrys(0, FIRST), FIRST);
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
	        cmocka_unit_test(what_drifts_together_turns_nothing_round),
	        cmocka_unit_test(a_burst_is_left_and_ends),
	        cmocka_unit_test(a_prior_that_says_much_is_followed_at_once),
	        cmocka_unit_test(a_prior_that_praised_the_wrong_arm_is_corrected_in_twenty_calls),
	        cmocka_unit_test(a_prior_that_slighted_an_arm_is_corrected_for_a_hundredth),
	        cmocka_unit_test(a_trial_is_a_run_of_calls),
	        cmocka_unit_test(losers_cost_a_hundredth),
	        cmocka_unit_test(the_best_tuning_is_found),
	        cmocka_unit_test(of_more_than_two_ranks_only_channels_are_tried),
	        cmocka_unit_test(where_nccl_has_all_calls_its_tunings_are_found_all_the_same),
	        cmocka_unit_test(phases_in_any_order_have_their_best),
	        cmocka_unit_test(a_kind_in_place_has_its_own_best),
	        cmocka_unit_test(a_kind_that_finds_the_table_full_has_no_line),
	        cmocka_unit_test(settled_short_calls_are_seldom_measured),
	        cmocka_unit_test(a_trial_that_cannot_begin_ends),
	        cmocka_unit_test(a_trial_whose_calls_come_no_more_ends),
	        cmocka_unit_test(a_tuning_that_was_learned_is_where_the_next_job_begins),
	        cmocka_unit_test(what_was_learned_of_no_bytes_is_not_taken),
	        cmocka_unit_test(of_calls_that_went_another_way_NCCLs_time_alone_is_taken),
	        cmocka_unit_test(none_begins_while_all_is_to_stay),
	        cmocka_unit_test(what_was_learned_is_where_the_next_job_begins),
	};
	return cmocka_run_group_tests_name("tuner", tests, NULL, NULL);
}
