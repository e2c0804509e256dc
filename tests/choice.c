/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of the choice between NCCL and Ferry for calls that one of them has whole. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "orchestrator/balance/choice.h"

#include <string.h>

#define MIB     (1u << 20)
#define POISON  9000.0 /* us more of Ferry's first call of a size */
#define AHEAD   40     /* calls that a program makes before what one took is known */
#define MOST    4000

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
	if (!program->measured[n])
		return;
	bool ours = program->ours[n];
	double us = ferry_pace_us(&program->paces[ours], (double)program->call.bytes);
	if (ours && program->poisoned)
		us += POISON;
	program->poisoned &= !ours;
	ferry_choice_feed(&program->choice, &program->call, ours, us);
}

static void make(struct program *program, int calls)
{
	for (int i = 0; i < calls; i++) {
		int n = program->calls++;
		program->ours[n] = ferry_choice_ours(&program->choice, &program->call, (uint64_t)n,
		                                     &program->measured[n]);
		program->ferrys += program->ours[n];
		if (program->ours[n])
			ferry_choice_tried(&program->choice, &program->call);
		if (program->calls - program->fed > program->late)
			feed(program);
	}
}

static struct program fast = {.paces = {{25, 490e3}, {20, 720e3}}}, slow = {.paces = {{25, 300e3}, {60, 45e3}}};

static void the_faster_one_is_found_though_its_first_call_is_slow(void **state)
{
	(void)state;
	for (int late = 0; late <= AHEAD; late += AHEAD) {
		memset(&fast.choice, 0, sizeof fast.choice);
		program_start(&fast, 256 * MIB, late);
		make(&fast, 10 + 4 * late);
		make(&fast, 200);
		assert_in_range(fast.ferrys, 190, 210 + 4 * (unsigned)late);
		assert_true(fast.ours[fast.calls - 1] || fast.ours[fast.calls - 2]);
	}
}

/* However far a program runs ahead of its results. */
static void a_slower_one_is_tried_a_few_times(void **state)
{
	(void)state;
	memset(&slow.choice, 0, sizeof slow.choice);
	program_start(&slow, 16 * MIB, AHEAD);
	make(&slow, 1000);
	assert_in_range(slow.ferrys, 4, 8);
	/* The next size is not even tried, as all is known that a line needs. */
	program_start(&slow, 64 * MIB, AHEAD);
	make(&slow, 30);
	assert_int_equal(slow.ferrys, 0);
}

static void a_size_that_has_not_been_seen_goes_by_the_others(void **state)
{
	(void)state;
	memset(&fast.choice, 0, sizeof fast.choice);
	program_start(&fast, 16 * MIB, 0);
	make(&fast, 100);
	program_start(&fast, 256 * MIB, 0);
	make(&fast, 100);
	program_start(&fast, 64 * MIB, 0);
	make(&fast, 20);
	assert_int_equal(fast.ferrys, 20);
}

static void another_job_begins_with_what_one_has_learned(void **state)
{
	struct ferry_share_course learned;
	uint32_t index;
	(void)state;
	memset(&fast.choice, 0, sizeof fast.choice);
	program_start(&fast, 256 * MIB, 0);
	make(&fast, 100);
	assert_true(ferry_choice_tell(&fast.choice, &fast.call, FERRY_CARRIER_PEER, &index, &learned));
	assert_int_equal(index, 0);
	memset(&fast.choice, 0, sizeof fast.choice);
	ferry_choice_adopt(&fast.choice, &learned, FERRY_CARRIER_PEER);
	program_start(&fast, 256 * MIB, AHEAD);
	make(&fast, 20);
	assert_int_equal(fast.ferrys, 20);
	fast.call.collective = FERRY_ALLTOALL;
	assert_false(ferry_choice_tell(&fast.choice, &fast.call, FERRY_CARRIER_PEER, &index, &learned));
}

static void who_becomes_faster_is_found_in_time(void **state)
{
	(void)state;
	memset(&slow.choice, 0, sizeof slow.choice);
	program_start(&slow, 16 * MIB, 0);
	slow.paces[1] = (struct ferry_pace){40, 250e3}; /* close */
	make(&slow, 100);
	assert_in_range(slow.ferrys, 2, 8);
	slow.paces[1] = (struct ferry_pace){20, 600e3};
	make(&slow, 3500);
	assert_true(slow.ours[slow.calls - 1] && slow.ours[slow.calls - 2]);
	slow.paces[1] = (struct ferry_pace){60, 45e3};
}

/* AllToAll copies first then: what is faster out of place need not be so in place. */
static void in_place_is_chosen_for_itself(void **state)
{
	(void)state;
	memset(&fast.choice, 0, sizeof fast.choice);
	program_start(&fast, 64 * MIB, 0);
	make(&fast, 100);
	assert_true(fast.ferrys > 90);
	program_start(&fast, 64 * MIB, 0);
	fast.call.in_place = true;
	fast.paces[1].rate = 300e3;
	make(&fast, 300);
	assert_in_range(fast.ferrys, 3, 20);
	program_start(&fast, 64 * MIB, 0);
	fast.paces[1].rate = 720e3;
	make(&fast, 20);
	assert_int_equal(fast.ferrys, 20);
}

static void no_call_is_measured_that_has_no_line(void **state)
{
	static struct ferry_choice choice;
	struct ferry_balancer_call call = {FERRY_ALLGATHER, ferryFloat32, 1, false};
	bool measure;
	(void)state;
	for (int i = 0; i < 200; i++) {
		call.type = (ferryDataType_t)(i % 10);
		call.bytes = 1ull << (10 + i / 10);
		assert_false(ferry_choice_ours(&choice, &call, (uint64_t)i, &measure));
		assert_int_equal(measure, i < FERRY_CHOICE_LINES);
		ferry_choice_feed(&choice, &call, true, 10);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(the_faster_one_is_found_though_its_first_call_is_slow),
	        cmocka_unit_test(a_slower_one_is_tried_a_few_times),
	        cmocka_unit_test(a_size_that_has_not_been_seen_goes_by_the_others),
	        cmocka_unit_test(another_job_begins_with_what_one_has_learned),
	        cmocka_unit_test(who_becomes_faster_is_found_in_time),
	        cmocka_unit_test(in_place_is_chosen_for_itself),
	        cmocka_unit_test(no_call_is_measured_that_has_no_line),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
