/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of the steps' veto (orchestrator/tuner/veto.h), where time is made: a program has products and calls, and
 * what its steps take with Ferry and without is given.
 */
#include "orchestrator/tuner/veto.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>

#define MOST_KINDS 16
#define SEEDS      10

/* A program's phase: each call is hidden behind products that take `gap_us`, or is the program's own time. */
struct phase {
	int calls;          /* of a step */
	uint8_t kind;       /* of the first one; the others are kinds beside it */
	double gap_us;      /* from one call's start to the next one's, with NCCL alone */
	double busy_us;     /* of that the call takes */
	double ferrys;      /* times as long the gap is while Ferry has calls */
	double noise;       /* of each gap, relative, to either side */
	double drift;       /* over ten thousand calls */
	bool wanders;       /* buffers are others each time */
	bool trials;        /* an arm is tried all the time */
	double part;        /* of the calls that Ferry has as tuned; 0: all */
	int others;         /* the last calls of a step, which Ferry never has */
	bool alike;         /* all but the first call of a step have one buffer and one kind */
	int behind;         /* steps that the stream is behind the program */
	int changes;        /* after so many steps half of the buffers are others */
};

struct program {
	struct ferry_veto veto;
	double now_us, begun_us[FERRY_VETO_WINDOWS], took_us[FERRY_VETO_WINDOWS];
	uint64_t calls, known_at[FERRY_VETO_WINDOWS]; /* at so many calls */
	uint64_t made, ferrys, compared, verdicts;
	unsigned seed;
};

static double chance(struct program *program)
{
	return (rand_r(&program->seed) + 0.5) / (RAND_MAX + 1.0);
}

static void open_program(struct program *program, unsigned seed)
{
	*program = (struct program){.seed = seed};
	ferry_veto_init(&program->veto);
}

static void take_windows(struct program *program)
{
	int which;
	while ((which = ferry_veto_awaits(&program->veto)) >= 0 && program->known_at[which] <= program->calls)
		program->verdicts += ferry_veto_took(&program->veto, program->took_us[which]);
}

/* gap_us: until the next call begins, of which this one takes busy_us. */
static void make_named_call(struct program *program, uint8_t kind, uint32_t buffers, bool ferrys, bool trials,
                            double busy_us, double gap_us, int behind)
{
	struct ferry_veto_marks marks = ferry_veto_call(&program->veto, kind, buffers, ferrys, !trials);
	if (marks.ends >= 0) {
		program->took_us[marks.ends] = program->now_us - program->begun_us[marks.ends];
		program->known_at[marks.ends] = program->calls + (uint64_t)behind;
	}
	if (marks.begins >= 0)
		program->begun_us[marks.begins] = program->now_us;
	ferry_veto_gap(&program->veto, busy_us, gap_us);
	program->now_us += gap_us;
	program->made++;
	program->calls++;
	program->ferrys += ferrys;
	program->compared += program->veto.compares;
	take_windows(program);
}

static void make_call(struct program *program, const struct phase *phase, int at)
{
	enum ferry_veto_hold hold = ferry_veto_hold(&program->veto);
	bool ferrys = hold == FERRY_VETO_TUNED && (!(phase->part > 0) || chance(program) < phase->part) &&
	              at < phase->calls - phase->others;
	int named = phase->alike && at ? 1 : at;
	uint32_t buffers = phase->wanders ? (uint32_t)rand_r(&program->seed) << 8 : (uint32_t)(named + 1) << 8;
	if (phase->changes && at % 2)
		buffers += (uint32_t)(program->calls / (uint64_t)(phase->calls * phase->changes) + 1) << 16;
	double gap_us = phase->gap_us * (hold == FERRY_VETO_TUNED && phase->ferrys > 0 ? phase->ferrys : 1);
	gap_us *= 1 + phase->noise * (2 * chance(program) - 1);
	gap_us *= 1 + phase->drift * sin(2 * M_PI * (double)program->made / 10000);
	make_named_call(program, (uint8_t)(phase->kind + named % MOST_KINDS), buffers, ferrys, phase->trials,
	                phase->busy_us * gap_us / phase->gap_us, gap_us, phase->behind * phase->calls);
}

static void make_steps(struct program *program, const struct phase *phase, int steps)
{
	program->ferrys = program->compared = program->made = 0;
	for (int step = 0; step < steps; step++)
		for (int at = 0; at < phase->calls; at++)
			make_call(program, phase, at);
}

/* ---- promises ---- */

static const struct phase hidden = {.calls = 5, .gap_us = 6600, .busy_us = 2500, .ferrys = 1.05, .noise = 0.005};
static const struct phase bare = {.calls = 5, .gap_us = 2600, .busy_us = 2500, .ferrys = 0.7, .noise = 0.005};

/* Ferry's calls make the program's products longer, and hide as well as NCCL's. */
static void hidden_calls_that_cost_are_nccls(void **state)
{
	(void)state;
	for (unsigned seed = 1; seed <= SEEDS; seed++) {
		struct program program;
		open_program(&program, seed);
		make_steps(&program, &hidden, 60);
		assert_true(program.veto.verdict.holds && program.veto.verdict.period == 5);
		assert_true(program.veto.verdict.longer > 0.04 && program.veto.verdict.longer < 0.06);
		make_steps(&program, &hidden, 400);
		assert_in_range(program.ferrys, 0, 2000 / 50);
	}
}

/* Processors and links are free for the program then. */
static void where_there_is_no_difference_calls_are_nccls(void **state)
{
	(void)state;
	struct phase same = hidden;
	same.ferrys = 1;
	for (unsigned seed = 1; seed <= SEEDS; seed++) {
		struct program program;
		open_program(&program, seed);
		make_steps(&program, &same, 200);
		assert_true(program.veto.verdicts > 0 && program.veto.verdict.holds);
		assert_int_equal(ferry_veto_hold(&program.veto), FERRY_VETO_HELD);
	}
}

static void calls_that_shorten_steps_stay_as_tuned(void **state)
{
	(void)state;
	struct phase gains = hidden;
	for (gains.ferrys = 0.8; gains.ferrys < 0.98; gains.ferrys += 0.05)
		for (unsigned seed = 1; seed <= SEEDS; seed++) {
			struct program program;
			open_program(&program, seed);
			make_steps(&program, &gains, 100);
			assert_true(program.veto.verdicts > 0 && !program.veto.verdict.holds);
			assert_true(ferry_veto_freezes(&program.veto));
			make_steps(&program, &gains, 400);
			assert_in_range(program.ferrys, 2000 - 2000 / 20, 2000);
			assert_true(ferry_veto_freezes(&program.veto));
			make_steps(&program, &bare, 100);
			assert_false(ferry_veto_freezes(&program.veto));
		}
}

/* Three steps of NCCL's are enough, however late their times are known. */
static void a_program_far_ahead_of_its_stream_pays_no_more(void **state)
{
	(void)state;
	struct phase ahead = hidden;
	ahead.ferrys = 0.85;
	ahead.calls = 12; /* a window is a step */
	for (ahead.behind = 0; ahead.behind < 8; ahead.behind++)
		for (unsigned seed = 1; seed <= SEEDS; seed++) {
			struct program program;
			open_program(&program, seed);
			make_steps(&program, &ahead, 30);
			assert_true(program.veto.verdicts == 1 && !program.veto.verdict.holds);
			assert_int_equal(program.made - program.ferrys, 3 * 12);
		}
}

/* They repeat for long enough to be compared, and hardly until there is a verdict. */
static void steps_that_change_again_and_again_are_not_compared_half_of_the_time(void **state)
{
	(void)state;
	struct phase changes = hidden;
	changes.ferrys = 0.85;
	changes.calls = 12;
	changes.changes = 9;
	for (unsigned seed = 1; seed <= SEEDS; seed++) {
		struct program program;
		open_program(&program, seed);
		make_steps(&program, &changes, 1000);
		assert_in_range(program.made - program.ferrys, 3 * 12, program.made / 30);
	}
}

/* They are the program's own time: the calls' times decide. */
static void bare_calls_are_not_compared(void **state)
{
	(void)state;
	struct program program;
	open_program(&program, 1);
	make_steps(&program, &bare, 2000);
	assert_int_equal(program.compared, 0);
	assert_int_equal(program.ferrys, 10000);
	assert_int_equal(program.veto.verdicts, 0);
}

static void nothing_is_compared_while_an_arm_is_tried_or_ferry_has_nothing(void **state)
{
	(void)state;
	struct phase tried = hidden, nccls = hidden;
	struct program program;
	open_program(&program, 1);
	tried.trials = true;
	make_steps(&program, &tried, 400);
	assert_int_equal(program.compared, 0);
	open_program(&program, 1);
	nccls.part = 1e-9;
	make_steps(&program, &nccls, 400);
	assert_int_equal(program.compared, 0);
}

/* DDP over NVLink: of 62 buckets a step the largest one was Ferry's, and steps of 40 ms took 46 to 53. */
static void one_call_of_a_long_step_is_compared_too(void **state)
{
	(void)state;
	for (int i = 0; i < 14; i++)
		for (unsigned seed = 1; seed <= SEEDS; seed++) {
			struct program program;
			struct phase one = hidden;
			one.noise = 0.02;
			one.alike = i % 2;
			one.calls = 30 + i / 2 * 32;
			one.others = one.calls - 1;
			one.ferrys = 1.12;
			open_program(&program, seed);
			make_steps(&program, &one, 25);
			if (ferry_veto_hold(&program.veto) != FERRY_VETO_HELD)
				fail_msg("%d calls, alike %d, seed %u: %ju verdicts", one.calls, one.alike, seed,
				         (uintmax_t)program.verdicts);
			one.ferrys = 0.9;
			open_program(&program, seed);
			make_steps(&program, &one, 25);
			assert_true(program.verdicts > 0 && !program.veto.held);
		}
}

/* A window with a long call takes longer than a window without, by Ferry as by NCCL. */
static void rare_long_calls_amid_others_that_never_repeat_are_not_compared(void **state)
{
	(void)state;
	for (unsigned seed = 1; seed <= SEEDS; seed++) {
		struct program program;
		open_program(&program, seed);
		for (int call = 0; call < 20000; call++) {
			bool is_long = chance(&program) < 1.0 / 64;
			bool ferrys = is_long && ferry_veto_hold(&program.veto) == FERRY_VETO_TUNED;
			double us = is_long ? (ferrys ? 5000 : 10000) : 300;
			make_named_call(&program, (uint8_t)(is_long ? 20 : rand_r(&program.seed) % 8),
			                (uint32_t)rand_r(&program.seed) << 8, ferrys, false, us, us + 500, 0);
		}
		assert_int_equal(ferry_veto_hold(&program.veto), FERRY_VETO_TUNED);
		assert_in_range(program.compared, 0, program.made / 50);
	}
}

/* A try of Ferry that lost: nothing of it is left to compare. */
static void calls_of_a_trial_are_not_compared(void **state)
{
	(void)state;
	struct program program;
	struct phase tried = hidden, nccls = hidden;
	tried.trials = true;
	nccls.others = nccls.calls;
	open_program(&program, 1);
	for (int i = 0; i < 20; i++) {
		make_steps(&program, &tried, 1);
		make_steps(&program, &nccls, 40);
		assert_int_equal(program.compared, 0);
	}
}

/* Other kinds of calls: another phase, of which nothing is known. */
static void a_verdict_is_void_in_another_phase(void **state)
{
	(void)state;
	struct phase other = bare, gains = hidden;
	other.kind = 20;
	gains.kind = 30;
	gains.ferrys = 0.8;
	for (unsigned seed = 1; seed <= SEEDS; seed++) {
		struct program program;
		open_program(&program, seed);
		make_steps(&program, &hidden, 100);
		assert_int_equal(ferry_veto_hold(&program.veto), FERRY_VETO_HELD);
		assert_true(ferry_veto_freezes(&program.veto));
		make_steps(&program, &other, 400);
		assert_false(ferry_veto_freezes(&program.veto));
		assert_in_range(program.ferrys, 2000 - 128, 2000);
		make_steps(&program, &gains, 400);
		assert_true(program.veto.valid && !program.veto.held);
		assert_in_range(program.ferrys, 2000 - 256, 2000);
		make_steps(&program, &hidden, 400);
		assert_int_equal(ferry_veto_hold(&program.veto), FERRY_VETO_HELD);
	}
}

/* The same calls without products between them. */
static void a_verdict_is_void_where_the_same_calls_follow_one_another(void **state)
{
	(void)state;
	struct program program;
	open_program(&program, 1);
	make_steps(&program, &hidden, 100);
	assert_int_equal(ferry_veto_hold(&program.veto), FERRY_VETO_HELD);
	make_steps(&program, &bare, 100);
	assert_int_equal(ferry_veto_hold(&program.veto), FERRY_VETO_TUNED);
	assert_in_range(program.ferrys, 500 - 64, 500);
}

static void what_drifts_turns_no_verdict_round(void **state)
{
	(void)state;
	for (unsigned seed = 1; seed <= SEEDS; seed++) {
		struct program program;
		struct phase drifts = hidden;
		drifts.drift = 0.1;
		drifts.noise = 0.02;
		open_program(&program, seed);
		make_steps(&program, &drifts, 200);
		assert_true(program.veto.verdict.holds);
		drifts.ferrys = 0.9;
		open_program(&program, seed);
		make_steps(&program, &drifts, 200);
		assert_true(program.veto.verdicts > 0 && !program.veto.verdict.holds);
	}
}

/* A program's allocator may give other buffers each time: then calls repeat by kind. */
static void steps_are_found_where_buffers_wander(void **state)
{
	(void)state;
	struct program program;
	struct phase wanders = hidden;
	wanders.wanders = true;
	open_program(&program, 1);
	make_steps(&program, &wanders, 400);
	assert_true(program.veto.verdict.holds && program.veto.verdict.period == 5);
}

/* Comparisons that say the same again come ever later. */
static void what_is_settled_is_compared_ever_more_rarely(void **state)
{
	(void)state;
	struct program program;
	open_program(&program, 1);
	make_steps(&program, &hidden, 4000);
	uint64_t first = program.compared;
	make_steps(&program, &hidden, 4000);
	assert_true(first > 0 && program.compared < first && program.ferrys <= 20000 / 100);
}

/* A window's time may not be known: its pair does not count. */
static void what_could_not_be_timed_does_not_count(void **state)
{
	(void)state;
	struct program program;
	open_program(&program, 1);
	for (int step = 0; step < 400 && !program.veto.verdicts; step++)
		for (int at = 0; at < hidden.calls; at++) {
			make_call(&program, &hidden, at);
			for (int i = 0; i < FERRY_VETO_WINDOWS; i++)
				program.begun_us[i] = step % 3 ? program.begun_us[i] : INFINITY;
		}
	assert_true(program.veto.verdicts == 1 && program.veto.verdict.holds);
	assert_true(program.veto.verdict.pairs < program.veto.exam.known / 2);
}

/* Of calls that are shorter than a clock's tick. What is said about a window is said by calls then. */
static void a_clock_that_stands_still_makes_no_endless_window(void **state)
{
	static const double clocks[][2] = {{0, 0}, {NAN, NAN}, {0, 1e-9}, {1e-9, 1e-9}, {0, INFINITY}};
	(void)state;
	for (size_t i = 0; i < sizeof clocks / sizeof *clocks; i++) {
		struct program program;
		open_program(&program, 1);
		for (int call = 0; call < 4000; call++) {
			enum ferry_veto_hold hold = ferry_veto_hold(&program.veto);
			struct ferry_veto_marks marks = ferry_veto_call(&program.veto, 1, 1 << 8,
			                                                hold == FERRY_VETO_TUNED, true);
			ferry_veto_gap(&program.veto, clocks[i][0], clocks[i][1]);
			for (int at = 0; at < FERRY_VETO_WINDOWS; at++)
				program.took_us[at] = marks.ends == at ? clocks[i][1] : program.took_us[at];
			take_windows(&program);
			assert_true(!program.veto.compares || program.veto.exam.left <= 4000);
		}
		/* and the clock goes again */
		make_steps(&program, &hidden, 2000);
		if (!program.veto.verdicts)
			fail_msg("nothing is compared after a clock of %g of %g us", clocks[i][0], clocks[i][1]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(hidden_calls_that_cost_are_nccls),
	        cmocka_unit_test(where_there_is_no_difference_calls_are_nccls),
	        cmocka_unit_test(calls_that_shorten_steps_stay_as_tuned),
	        cmocka_unit_test(a_program_far_ahead_of_its_stream_pays_no_more),
	        cmocka_unit_test(steps_that_change_again_and_again_are_not_compared_half_of_the_time),
	        cmocka_unit_test(bare_calls_are_not_compared),
	        cmocka_unit_test(nothing_is_compared_while_an_arm_is_tried_or_ferry_has_nothing),
	        cmocka_unit_test(one_call_of_a_long_step_is_compared_too),
	        cmocka_unit_test(rare_long_calls_amid_others_that_never_repeat_are_not_compared),
	        cmocka_unit_test(calls_of_a_trial_are_not_compared),
	        cmocka_unit_test(a_verdict_is_void_in_another_phase),
	        cmocka_unit_test(a_verdict_is_void_where_the_same_calls_follow_one_another),
	        cmocka_unit_test(what_drifts_turns_no_verdict_round),
	        cmocka_unit_test(steps_are_found_where_buffers_wander),
	        cmocka_unit_test(what_is_settled_is_compared_ever_more_rarely),
	        cmocka_unit_test(what_could_not_be_timed_does_not_count),
	        cmocka_unit_test(a_clock_that_stands_still_makes_no_endless_window),
	};
	return cmocka_run_group_tests_name("veto", tests, NULL, NULL);
}
