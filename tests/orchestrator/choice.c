/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of the choice between NCCL and Ferry for calls that one of them has whole; what it costs: choice_runs.c. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "orchestrator/balance/choice.h"

#include <string.h>

#define MIB    (1u << 20)
#define POISON 9000.0 /* us more of Ferry's first call of a size */
#define AHEAD  40     /* calls that a program makes before what one took is known */
#define MOST   9000

/* A program that runs ahead: call n is fed when n + late is made. */
struct program {
	struct ferry_choice choice;
	struct ferry_balancer_call call;
	struct ferry_pace paces[2];
	bool ours[MOST], measured[MOST];
	int late, calls, ferrys, fed;
	bool poisoned;
};

static void program_start(struct program *program, uint64_t bytes, int late)
{
	program->call = (struct ferry_balancer_call){FERRY_ALLGATHER, ferryFloat32, bytes, false};
	program->late = late;
	program->calls = program->ferrys = program->fed = 0;
	program->poisoned = true;
}

static void feed(struct program *program)
{
	int n = program->fed++;
	bool ours = program->ours[n];
	double us = ferry_pace_us(&program->paces[ours], (double)program->call.bytes);
	if (ours && program->poisoned)
		us += POISON;
	program->poisoned &= !ours;
	if (program->measured[n])
		ferry_choice_feed(&program->choice, &program->call, ours, us);
}

static void make(struct program *program, int calls)
{
	for (int i = 0; i < calls; i++) {
		int n = program->calls++;
		assert_in_range(n, 0, MOST - 1);
		program->ours[n] = ferry_choice_ours(&program->choice, &program->call, (uint64_t)n, true);
		program->measured[n] =
		        ferry_choice_agreed(&program->choice, &program->call, (uint64_t)n, program->ours[n], true);
		program->ferrys += program->ours[n];
		if (program->calls - program->fed > program->late)
			feed(program);
	}
}

static struct program fast = {.paces = {{25, 490e3}, {20, 720e3}}}, slow = {.paces = {{25, 300e3}, {60, 45e3}}};

static void choice_start(struct program *program, double limits)
{
	struct ferry_pace paces[FERRY_NUM_FABRICS] = {[FERRY_FABRIC_PEER] = {0, limits}};
	ferry_choice_init(&program->choice, true, 1, paces);
}

static void the_faster_one_is_found_though_its_first_call_is_slow(void **state)
{
	(void)state;
	for (int late = 0; late <= AHEAD; late += AHEAD) {
		choice_start(&fast, 700e3);
		program_start(&fast, 256 * MIB, late);
		make(&fast, 10 + 4 * late);
		make(&fast, 200);
		assert_in_range(fast.ferrys, 190, 210 + 4 * (unsigned)late);
		assert_true(fast.ours[fast.calls - 1] || fast.ours[fast.calls - 2]);
	}
}

/* However far a program runs ahead of its results, and whether limits are known or not. */
static void a_slower_one_is_tried_a_few_times(void **state)
{
	(void)state;
	for (int limits = 0; limits < 2; limits++) {
		choice_start(&slow, limits ? 400e3 : 0);
		program_start(&slow, 16 * MIB, AHEAD);
		make(&slow, 1000);
		assert_in_range(slow.ferrys, 2, 4);
		/* The next size is not even tried, as all is known that it takes. */
		program_start(&slow, 64 * MIB, AHEAD);
		make(&slow, 300);
		assert_int_equal(slow.ferrys, 0);
	}
}

static void a_size_between_two_that_are_known_goes_by_them(void **state)
{
	(void)state;
	choice_start(&fast, 0);
	program_start(&fast, 16 * MIB, 0);
	make(&fast, 300);
	program_start(&fast, 256 * MIB, 0);
	make(&fast, 100);
	program_start(&fast, 64 * MIB, AHEAD);
	make(&fast, 20);
	assert_int_equal(fast.ferrys, 20);
}

/* A call is Ferry's when all ranks have just said that they are ready for it: so at the second one that is wanted. */
static void what_was_slower_is_tried_again_though_nobody_is_ready_at_once(void **state)
{
	(void)state;
	bool wanted = false;
	int ferrys = 0;
	struct ferry_balancer_call call = {FERRY_ALLGATHER, ferryFloat32, 256 * MIB, false};
	choice_start(&slow, 0);
	for (uint64_t n = 0; n < 50000; n++) {
		bool proposed = ferry_choice_ours(&slow.choice, &call, n, true), ours = proposed && wanted;
		wanted = proposed;
		ferrys += ours;
		if (ferry_choice_agreed(&slow.choice, &call, n, ours, true))
			ferry_choice_feed(&slow.choice, &call, ours, !ours ? 500 : n < 1000 ? 600 : 400);
	}
	assert_true(ferrys > 25000);
}

static void another_job_begins_with_what_one_has_learned(void **state)
{
	struct ferry_share_line learned;
	uint32_t index;
	(void)state;
	choice_start(&fast, 0);
	program_start(&fast, 256 * MIB, 0);
	make(&fast, 100);
	assert_true(ferry_choice_record(&fast.choice, &fast.call, &index, &learned));
	assert_int_equal(index, 0);
	assert_true(learned.whole && !learned.in_place);
	assert_int_equal(learned.why, FERRY_BALANCE_SETTLED);
	assert_int_equal(ferry_shares_unpack(learned.word).part[FERRY_FABRIC_PEER], FERRY_SHARES_WHOLE);
	assert_in_range(learned.us, 380, 400);
	assert_in_range(learned.paces[FERRY_FABRIC_NCCL].rate, 440e3, 490e3);
	choice_start(&fast, 0);
	ferry_choice_adopt(&fast.choice, &learned);
	program_start(&fast, 256 * MIB, AHEAD);
	make(&fast, 20);
	assert_int_equal(fast.ferrys, 20);
}

/* A job may know of one of the two alone. */
static void half_of_what_was_learned_is_adopted_too(void **state)
{
	struct ferry_share_line learned;
	uint32_t index;
	(void)state;
	choice_start(&slow, 0);
	program_start(&slow, 16 * MIB, 0);
	make(&slow, 3);
	assert_true(ferry_choice_record(&slow.choice, &slow.call, &index, &learned));
	assert_int_equal(learned.why, FERRY_BALANCE_COLD);
	assert_true(learned.paces[FERRY_FABRIC_NCCL].rate > 0 && !(learned.paces[FERRY_FABRIC_PEER].rate > 0));
	choice_start(&slow, 0);
	ferry_choice_adopt(&slow.choice, &learned);
	program_start(&slow, 16 * MIB, AHEAD);
	make(&slow, 20);
	assert_in_range(slow.ferrys, 0, 2); /* a try */
}

static void who_becomes_faster_is_found_in_time(void **state)
{
	(void)state;
	choice_start(&slow, 0);
	program_start(&slow, 16 * MIB, 0);
	slow.paces[1] = (struct ferry_pace){40, 250e3}; /* close */
	make(&slow, 300);
	assert_in_range(slow.ferrys, 1, 8);
	slow.paces[1] = (struct ferry_pace){20, 600e3};
	make(&slow, 3500);
	assert_true(slow.ours[slow.calls - 1] && slow.ours[slow.calls - 2]);
	slow.paces[1] = (struct ferry_pace){60, 45e3};
}

/* AllToAll copies first then: what is faster out of place need not be so in place. */
static void in_place_is_chosen_for_itself(void **state)
{
	(void)state;
	choice_start(&fast, 700e3);
	program_start(&fast, 64 * MIB, 0);
	make(&fast, 100);
	assert_true(fast.ferrys > 90);
	program_start(&fast, 64 * MIB, 0);
	fast.call.in_place = true;
	fast.paces[1].rate = 300e3;
	make(&fast, 300);
	assert_in_range(fast.ferrys, 1, 6);
	program_start(&fast, 64 * MIB, 0);
	fast.paces[1].rate = 720e3;
	make(&fast, 1000);
	assert_true(fast.ours[fast.calls - 1] && fast.ours[fast.calls - 2]);
}

/* NCCL's are timed by events in the stream, which cost a little each. */
static void what_is_known_is_seldom_measured(void **state)
{
	int measured = 0;
	(void)state;
	choice_start(&slow, 0);
	program_start(&slow, 1 * MIB, AHEAD);
	make(&slow, 1000);
	for (int n = 0; n < 1000; n++)
		measured += slow.measured[n];
	assert_in_range(measured, 3, 60);
}

/* As captured ones, or several of a group: they neither try anything nor take the places of those that can. */
static void calls_that_cannot_be_measured_are_not_counted(void **state)
{
	struct ferry_balancer_call call = {FERRY_ALLGATHER, ferryFloat32, 256 * MIB, false};
	bool ours;
	(void)state;
	choice_start(&fast, 700e3);
	for (uint64_t n = 0; n < 50; n++) {
		assert_false(ferry_choice_ours(&fast.choice, &call, n, false));
		assert_false(ferry_choice_agreed(&fast.choice, &call, n, false, false));
	}
	for (uint64_t n = 50; n < 53; n++) { /* to be measured, and could not be after all */
		assert_true(ferry_choice_agreed(&fast.choice, &call, n, false, true));
		ferry_choice_unmeasured(&fast.choice, &call, false);
	}
	assert_true(ferry_choice_learns(&fast.choice, &call));
	for (uint64_t n = 53; n < 55; n++) {
		assert_true(ferry_choice_agreed(&fast.choice, &call, n, false, true));
		ferry_choice_feed(&fast.choice, &call, false, 600);
	}
	assert_true(ferry_choice_ours(&fast.choice, &call, 55, true)); /* which limits promise, and is doubted */
	assert_false(ferry_choice_ours(&fast.choice, &call, 55, false));
	assert_true(ferry_choice_learns(&fast.choice, &call));
	for (uint64_t n = 56; n < 60; n++) {
		ours = ferry_choice_ours(&fast.choice, &call, n, true);
		bool measured = ferry_choice_agreed(&fast.choice, &call, n, ours, true);
		assert_true(ours && measured == (n > 56)); /* the first one finds lanes asleep */
		if (measured)
			ferry_choice_feed(&fast.choice, &call, ours, 400);
	}
	assert_false(ferry_choice_learns(&fast.choice, &call));
	assert_true(ferry_choice_ours(&fast.choice, &call, 60, false));
}

/* Its sample was too old, or there was none: the next try does not wait for it. */
static void a_try_that_tells_nothing_is_not_waited_for(void **state)
{
	struct ferry_balancer_call call = {FERRY_ALLGATHER, ferryFloat32, 256 * MIB, false};
	uint64_t n = 0;
	(void)state;
	choice_start(&fast, 700e3);
	for (; n < 2; n++) {
		ferry_choice_agreed(&fast.choice, &call, n, false, true);
		ferry_choice_feed(&fast.choice, &call, false, 600);
	}
	for (int tries = 0; tries < 3; tries++) {
		bool measured = false;
		for (uint64_t until = n + 2; n < until; n++) {
			assert_true(ferry_choice_ours(&fast.choice, &call, n, true));
			measured = ferry_choice_agreed(&fast.choice, &call, n, true, true);
		}
		assert_true(measured);
		assert_false(ferry_choice_ours(&fast.choice, &call, n, true)); /* is waited for */
		ferry_choice_unmeasured(&fast.choice, &call, true);
		ferry_choice_agreed(&fast.choice, &call, n++, false, true);
	}
}

/* Pushes alone promise 4%, too little to be sure of; with the host beside them it is 13. */
static void what_the_host_adds_to_pushes_is_promised_too(void **state)
{
	(void)state;
	struct program program = {.paces = {{10, 360e3}, {20, 420e3}}};
	struct ferry_pace paces[FERRY_NUM_FABRICS] =
	        {[FERRY_FABRIC_HOST] = {75, 45e3}, [FERRY_FABRIC_PEER] = {0, 375e3}};
	static const enum ferry_collective all[] = {FERRY_BROADCAST, FERRY_SENDRECV};
	for (int i = 0; i < 2; i++) {
		ferry_choice_init(&program.choice, true, 2, paces);
		program_start(&program, 256 * MIB, 0);
		program.call.collective = all[i];
		make(&program, 6);
		assert_in_range(program.ferrys, i ? 0 : 3, i ? 0 : 6); /* messages are not divided */
	}
}

/* A call of Ferry's among NCCL's says nothing: lanes are asleep. So a try is two, and the second one is measured. */
static void a_try_is_two_calls_and_the_first_is_not_measured(void **state)
{
	(void)state;
	struct ferry_balancer_call call = {FERRY_ALLGATHER, ferryFloat32, 256 * MIB, false};
	bool before = false;
	int tries = 0;
	choice_start(&slow, 0);
	for (uint64_t n = 0; n < 20000; n++) {
		bool ours = ferry_choice_ours(&slow.choice, &call, n, true);
		bool measured = ferry_choice_agreed(&slow.choice, &call, n, ours, true);
		if (ours && !before)
			assert_false(measured);
		if (before && !ours)
			assert_true(tries > 0 && tries % 2 == 0);
		tries += ours;
		if (measured) /* twice as long if it was the first */
			ferry_choice_feed(&slow.choice, &call, ours, !ours ? 500 : before ? 600 : 1200);
		before = ours;
	}
	assert_in_range(tries, 4, 200);
}

/*
 * As those of a program that makes the same call now alone and now in a group. The second call of a try is measured
 * whatever has come between, or each that can be measured would be another first one.
 */
static void a_try_ends_though_every_other_call_cannot_be_measured(void **state)
{
	(void)state;
	struct ferry_balancer_call call = {FERRY_ALLGATHER, ferryFloat32, 256 * MIB, false};
	int ferrys = 0, samples = 0;
	choice_start(&slow, 0);
	for (uint64_t n = 0; n < 4000; n++) {
		bool measurable = n < 100 || n % 2;
		bool ours = ferry_choice_ours(&slow.choice, &call, n, measurable);
		bool measured = ferry_choice_agreed(&slow.choice, &call, n, ours, measurable);
		ferrys += ours;
		samples += ours && measured;
		if (measured)
			ferry_choice_feed(&slow.choice, &call, ours, ours ? 5000 : 500);
	}
	assert_true(samples > 0);
	assert_in_range(ferrys, 2, 40);
}

static void no_call_is_measured_that_has_no_line(void **state)
{
	static struct ferry_choice choice;
	struct ferry_pace paces[FERRY_NUM_FABRICS] = {{0, 0}};
	struct ferry_balancer_call call = {FERRY_ALLGATHER, ferryFloat32, 1, false};
	(void)state;
	ferry_choice_init(&choice, false, 2, paces);
	for (int i = 0; i < 200; i++) {
		call.type = (ferryDataType_t)(i % 10);
		call.bytes = 1ull << (10 + i / 10);
		assert_false(ferry_choice_ours(&choice, &call, (uint64_t)i, true));
		assert_int_equal(ferry_choice_agreed(&choice, &call, (uint64_t)i, false, true), i < FERRY_SHARE_LINES);
		ferry_choice_feed(&choice, &call, true, 10);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(the_faster_one_is_found_though_its_first_call_is_slow),
	        cmocka_unit_test(a_slower_one_is_tried_a_few_times),
	        cmocka_unit_test(a_size_between_two_that_are_known_goes_by_them),
	        cmocka_unit_test(what_was_slower_is_tried_again_though_nobody_is_ready_at_once),
	        cmocka_unit_test(another_job_begins_with_what_one_has_learned),
	        cmocka_unit_test(half_of_what_was_learned_is_adopted_too),
	        cmocka_unit_test(who_becomes_faster_is_found_in_time),
	        cmocka_unit_test(in_place_is_chosen_for_itself),
	        cmocka_unit_test(what_is_known_is_seldom_measured),
	        cmocka_unit_test(calls_that_cannot_be_measured_are_not_counted),
	        cmocka_unit_test(a_try_that_tells_nothing_is_not_waited_for),
	        cmocka_unit_test(what_the_host_adds_to_pushes_is_promised_too),
	        cmocka_unit_test(a_try_is_two_calls_and_the_first_is_not_measured),
	        cmocka_unit_test(a_try_ends_though_every_other_call_cannot_be_measured),
	        cmocka_unit_test(no_call_is_measured_that_has_no_line),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
