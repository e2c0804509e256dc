/* SPDX-License-Identifier: Apache-2.0 */
/*
 * "Never slower": programs that make calls of all sizes, 25 ahead of what is measured, on the curves that were measured
 * of NCCL and of Ferry on two H200s (docs/performance.md). What trying Ferry costs them is bounded at each size, and
 * where it is faster they have it.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "orchestrator/balance/choice.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MIB    (1u << 20)
#define AHEAD  25 /* calls that a program makes before what one took is known */
#define MOST   512
#define SIZES  6  /* 1 MiB, 4 MiB, ..., 1 GiB */
#define TAUGHT 100 /* calls of each size of a job that learns */
#define REGRET 0.02
#define GAIN   0.95

/* GB/s at those sizes, by the call's length and its time; Ferry's starts are 17 to 19 us over NVLink. */
struct curve {
	const char *name;
	enum ferry_collective collective;
	enum ferry_fabric fabric;
	double nccl[SIZES], ours[SIZES];
	struct ferry_pace limits; /* what ferry-perf limits would have found, of the call's bytes; rate 0: no file */
};

static const struct curve curves[] = {
        {"alltoall",
         FERRY_ALLTOALL,
         FERRY_FABRIC_PEER,
         {69, 196, 328, 485, 568, 663},
         {41, 170, 380, 592, 721, 749},
         {18, 750e3}},
        {"allgather",
         FERRY_ALLGATHER,
         FERRY_FABRIC_PEER,
         {48, 153, 307, 429, 491, 544},
         {41, 173, 417, 588, 717, 745},
         {18, 750e3}},
        {"allgather, PCIe",
         FERRY_ALLGATHER,
         FERRY_FABRIC_HOST,
         {25, 41, 48, 50, 50, 50},
         {11, 31, 66, 84, 92, 94},
         {75, 90e3}},
};
#define CURVES (sizeof curves / sizeof curves[0])

static uint64_t size_at(int i)
{
	return (uint64_t)MIB << 2 * i;
}

/* Straight between the sizes that were measured, and beyond them. */
static double time_of(const double *rates, double bytes)
{
	int i = 0;
	while (i < SIZES - 2 && bytes > (double)size_at(i + 1))
		i++;
	double low = (double)size_at(i), high = (double)size_at(i + 1);
	double from = low / (rates[i] * 1e3), to = high / (rates[i + 1] * 1e3);
	return fmax(from + (to - from) * (bytes - low) / (high - low), 5);
}

struct run {
	struct ferry_choice choice;
	const struct curve *curve;
	struct ferry_balancer_call call;
	bool ours[MOST], measured[MOST];
	int late, made, fed, ferrys;
	double us, nccl_us, best_us; /* of the calls so far; of NCCL alone; of the faster one */
	double noise;
	unsigned seed;
	uint64_t n; /* of all sizes */
};

static double noisy(struct run *run, double us)
{
	return us * (1 + run->noise * (2.0 * rand_r(&run->seed) / RAND_MAX - 1));
}

static void feed_one(struct run *run)
{
	int i = run->fed++;
	double bytes = (double)run->call.bytes;
	const double *rates = run->ours[i] ? run->curve->ours : run->curve->nccl;
	if (run->measured[i])
		ferry_choice_feed(&run->choice, &run->call, run->ours[i], noisy(run, time_of(rates, bytes)));
}

static void start_choice(struct ferry_choice *choice, const struct curve *curve)
{
	struct ferry_pace paces[FERRY_NUM_FABRICS] = {{0, 0}};
	paces[curve->fabric] = curve->limits;
	/* one rank: so paces are of whole calls */
	ferry_choice_init(choice, curve->fabric == FERRY_FABRIC_PEER, 1, paces);
}

static void choose(struct run *run, int i)
{
	run->ours[i] = ferry_choice_ours(&run->choice, &run->call, run->n, true);
	run->measured[i] = ferry_choice_agreed(&run->choice, &run->call, run->n, run->ours[i], true);
}

/* Into the table of a job, which the next one reads. */
static void pass_on(struct run *run)
{
	struct ferry_choice next;
	start_choice(&next, run->curve);
	for (uint32_t i = 0; i < run->choice.nlines; i++) {
		const struct ferry_choice_line *line = &run->choice.lines[i];
		struct ferry_balancer_call call = {(enum ferry_collective)line->collective, (ferryDataType_t)line->type,
		                                   line->bytes, line->in_place};
		struct ferry_share_line_words words = {0};
		struct ferry_share_line logged;
		uint32_t index;
		assert_true(ferry_choice_record(&run->choice, &call, &index, &logged));
		assert_int_equal(index, i);
		ferry_share_line_write(&words, &logged);
		assert_true(ferry_share_line_read(&words, &logged));
		ferry_choice_adopt(&next, &logged);
	}
	run->choice = next;
}

static void make(struct run *run, int calls)
{
	for (int c = 0; c < calls; c++) {
		int i = run->made++;
		double bytes = (double)run->call.bytes;
		double us[2] = {time_of(run->curve->nccl, bytes), time_of(run->curve->ours, bytes)};
		choose(run, i);
		run->n++;
		run->ferrys += run->ours[i];
		run->us += us[run->ours[i]];
		run->nccl_us += us[0];
		run->best_us += fmin(us[0], us[1]);
		if (run->made - run->fed > run->late)
			feed_one(run);
	}
}

static void synchronize(struct run *run)
{
	while (run->fed < run->made)
		feed_one(run);
	run->made = run->fed = 0;
}

static void begin_size(struct run *run, uint64_t bytes)
{
	run->call.bytes = bytes;
	run->us = run->nccl_us = run->best_us = 0;
	run->ferrys = 0;
}

/* As nccl-tests: one call that is waited for, `calls` that are not; out of place, then in place. */
static void visit(struct run *run, uint64_t bytes, int calls)
{
	begin_size(run, bytes);
	for (int in_place = 0; in_place < 2; in_place++) {
		run->call.in_place = in_place;
		make(run, 1);
		synchronize(run);
		make(run, calls);
		synchronize(run);
	}
}

static void start(struct run *run, const struct curve *curve, unsigned seed)
{
	memset(run, 0, sizeof *run);
	start_choice(&run->choice, curve);
	run->curve = curve;
	run->call = (struct ferry_balancer_call){curve->collective, ferryFloat32, 0, false};
	run->late = AHEAD;
	run->noise = 0.03;
	run->seed = seed;
}

static double regret_of(const struct run *run)
{
	return run->us / run->nccl_us - 1;
}

static void check_regret(const struct run *run, const char *when)
{
	double regret = regret_of(run);
	if (regret > 0.5 * REGRET)
		print_message("%s, %s: %llu KiB: %d of Ferry's, %.1f%% of NCCL's time\n", run->curve->name, when,
		              (unsigned long long)(run->call.bytes >> 10), run->ferrys, 100 * (1 + regret));
	if (regret > REGRET)
		fail_msg("%s, %s: calls of %llu bytes take %.1f%% longer", run->curve->name, when,
		         (unsigned long long)run->call.bytes, 100 * regret);
}

static void check_gain(const struct run *run, const char *when)
{
	if (run->nccl_us - run->us < GAIN * (run->nccl_us - run->best_us))
		fail_msg("%s, %s: calls of %llu bytes gain %.0f us of %.0f", run->curve->name, when,
		         (unsigned long long)run->call.bytes, run->nccl_us - run->us, run->nccl_us - run->best_us);
}

static struct run run;

static void sweep(int calls, const char *when, bool gains)
{
	for (int i = 0; i < SIZES; i++) {
		visit(&run, size_at(i), calls);
		check_regret(&run, when);
		if (gains && size_at(i) >= 16 * MIB)
			check_gain(&run, when);
	}
}

static void nobody_is_slower_cold(void **state)
{
	(void)state;
	for (size_t c = 0; c < CURVES; c++)
		for (unsigned seed = 1; seed < 4; seed++)
			for (int calls = 20; calls <= 200; calls *= 10) {
				start(&run, &curves[c], seed);
				sweep(calls, "cold", false);
			}
}

/* What a sweep of a job has learned is there in the next. */
static void nobody_is_slower_with_what_was_learned(void **state)
{
	(void)state;
	for (size_t c = 0; c < CURVES; c++)
		for (unsigned seed = 1; seed < 4; seed++) {
			start(&run, &curves[c], seed);
			for (int i = 0; i < SIZES; i++)
				visit(&run, size_at(i), TAUGHT);
			pass_on(&run);
			sweep(20, "learned", true);
		}
}

/* Sizes between those of which something is known: straight lines between them tell enough. */
static void sizes_between_are_known_by_those_around_them(void **state)
{
	(void)state;
	for (size_t c = 0; c < CURVES; c++) {
		start(&run, &curves[c], 1);
		for (int i = 0; i < SIZES; i++)
			visit(&run, size_at(i), TAUGHT);
		pass_on(&run);
		for (int i = 0; i < SIZES - 1; i++) {
			visit(&run, 2 * size_at(i), 20);
			check_regret(&run, "between");
			if (size_at(i) >= 16 * MIB)
				check_gain(&run, "between");
		}
	}
}

static void nothing_is_slower_where_no_limits_have_been_measured(void **state)
{
	(void)state;
	for (size_t c = 0; c < CURVES; c++) {
		struct curve curve = curves[c];
		curve.limits = (struct ferry_pace){0, 0};
		start(&run, &curve, 1);
		sweep(20, "no limits", false);
		sweep(200, "no limits, later", false);
		pass_on(&run);
		sweep(20, "no limits, learned", true);
	}
}

/* Ten times as fast as it is: what is promised is tried once in each place, not more. */
static void limits_that_are_wrong_cost_a_try_of_a_size(void **state)
{
	(void)state;
	struct curve curve = curves[0];
	for (int i = 0; i < SIZES; i++)
		curve.ours[i] /= 10;
	for (int late = 0; late <= AHEAD; late += AHEAD) {
		start(&run, &curve, 1);
		run.late = late;
		for (int i = 0; i < SIZES; i++) {
			visit(&run, size_at(i), 200);
			assert_in_range(run.ferrys, 0, 4);
			if (run.ferrys > 2) /* and once it is known for one size others are not looked at */
				assert_in_range(i, 0, 2);
		}
	}
}

/* Five calls whose results are known in time, and two of those are Ferry's. */
static void five_calls_are_enough(void **state)
{
	(void)state;
	for (size_t c = 0; c < CURVES; c++)
		for (int i = 3; i < SIZES; i++) {
			start(&run, &curves[c], 1);
			run.late = 0;
			begin_size(&run, size_at(i));
			make(&run, 5);
			run.ferrys = 0;
			make(&run, 100);
			assert_int_equal(run.ferrys, 100);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(nobody_is_slower_cold),
	        cmocka_unit_test(nobody_is_slower_with_what_was_learned),
	        cmocka_unit_test(sizes_between_are_known_by_those_around_them),
	        cmocka_unit_test(nothing_is_slower_where_no_limits_have_been_measured),
	        cmocka_unit_test(limits_that_are_wrong_cost_a_try_of_a_size),
	        cmocka_unit_test(five_calls_are_enough),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
