/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of looking before sleeping: nobody looks where threads outnumber CPUs, and that is tried again, ever more
 * rarely.
 */
#include "tests/api_ranks.h"

#include "ipc/wait.h"

#include <pthread.h>
#include <sched.h>

#define MS 1000000ull
#define LEAST (uint64_t)FERRY_SPIN_REST_LEAST_NS
#define MOST (uint64_t)FERRY_SPIN_REST_MOST_NS

static void a_rest_is_twice_as_long_if_the_last_one_was_too_short(void **state)
{
	(void)state;
	struct ferry_spin spin = {.limit_ns = 5};
	uint64_t now = 1000 * MS, rest = LEAST;
	assert_int_equal(ferry_spin_ns(&spin, now), 5);
	for (int trial = 0; trial < 10; trial++) {
		ferry_spin_rest(&spin, now);
		assert_int_equal(ferry_spin_ns(&spin, now + rest - 1), 0);
		assert_int_equal(ferry_spin_ns(&spin, now + rest), 5);
		now += 2 * rest;
		rest = rest < MOST / 2 ? 2 * rest : MOST;
	}
	assert_int_equal(rest, MOST);
	now += MOST + FERRY_SPIN_TRIAL_NS + 1; /* all of this time nobody found CPUs short */
	ferry_spin_rest(&spin, now);
	assert_int_equal(ferry_spin_ns(&spin, now + LEAST), 5);
}

static void who_says_so_during_a_rest_makes_it_no_longer(void **state)
{
	(void)state;
	struct ferry_spin spin = {.limit_ns = 5};
	ferry_spin_rest(&spin, 1000 * MS);
	ferry_spin_rest(&spin, 1000 * MS + LEAST - 1);
	assert_int_equal(ferry_spin_ns(&spin, 1000 * MS + LEAST), 5);
}

/* Whether a thread that has run and waited for so long since it was last judged rests. */
static bool rests(uint64_t ran, uint64_t waited)
{
	struct ferry_spin spin = {.limit_ns = 5};
	struct ferry_idle idle = {.spin = &spin};
	ferry_idle_judge(&idle, 7000 * MS, 9000 * MS, 1000 * MS); /* its life until then is not what counts */
	assert_int_equal(ferry_spin_ns(&spin, 1000 * MS), 5);
	ferry_idle_judge(&idle, 7000 * MS + ran, 9000 * MS + waited, 1100 * MS);
	return !ferry_spin_ns(&spin, 1100 * MS);
}

static void cpus_are_short_for_who_waits_more_than_a_third_of_its_time(void **state)
{
	(void)state;
	assert_true(rests(6 * MS, 4 * MS));
	assert_true(rests(0, 10 * MS));
	assert_false(rests(7 * MS, 3 * MS));
	assert_false(rests(300 * MS, 100 * MS));
	assert_false(rests(5 * MS, 4 * MS)); /* too little to judge by */
}

static void what_is_too_little_to_judge_by_is_added_up(void **state)
{
	(void)state;
	struct ferry_spin spin = {.limit_ns = 5};
	struct ferry_idle idle = {.spin = &spin};
	for (uint64_t i = 0; i < 3; i++) {
		assert_int_equal(ferry_spin_ns(&spin, (1000 + i) * MS), 5);
		ferry_idle_judge(&idle, i * 3 * MS, i * 3 * MS, (1000 + i) * MS);
	}
	assert_int_equal(ferry_spin_ns(&spin, 1002 * MS), 0);
}

static void waits_before_the_end_of_a_rest_do_not_count(void **state)
{
	(void)state;
	struct ferry_spin spin = {.limit_ns = 5};
	struct ferry_idle idle = {.spin = &spin};
	ferry_idle_judge(&idle, 1 * MS, 0, 1000 * MS);
	ferry_spin_rest(&spin, 1010 * MS);
	ferry_idle_judge(&idle, 2 * MS, 60 * MS, 1011 * MS + LEAST); /* the first time after it */
	assert_int_equal(ferry_spin_ns(&spin, 1011 * MS + LEAST), 5);
	ferry_idle_judge(&idle, 2 * MS, 120 * MS, 1020 * MS + LEAST);
	assert_int_equal(ferry_spin_ns(&spin, 1020 * MS + LEAST), 0);
}

static void *keep_busy(void *argument)
{
	while (!atomic_load((_Atomic bool *)argument))
		;
	return NULL;
}

static void run_on_one_cpu(void)
{
	cpu_set_t allowed, one;
	assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
	CPU_ZERO(&one);
	for (int cpu = 0; cpu < CPU_SETSIZE && !CPU_COUNT(&one); cpu++)
		if (CPU_ISSET(cpu, &allowed))
			CPU_SET(cpu, &one);
	/* of this thread, and of those that it makes from now on */
	assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
}

/* Whether this kernel counts. */
static bool is_told(void)
{
	struct ferry_spin spin = {.limit_ns = 5};
	struct ferry_idle idle;
	ferry_idle_open(&idle, &spin);
	for (uint64_t now = ferry_now_ns(), begun = now; now - begun < 200 * MS && !idle.ran_ns; now = ferry_now_ns())
		ferry_idle_looked(&idle, now);
	bool logged = idle.ran_ns > 0;
	ferry_idle_close(&idle);
	return logged;
}

static void who_looks_on_a_cpu_that_another_needs_learns_it(void **state)
{
	(void)state;
	static struct ferry_spin spin = {.limit_ns = 5};
	_Atomic bool over = false;
	struct ferry_idle idle;
	pthread_t thread;
	if (!is_told())
		skip();
	ferry_idle_open(&idle, &spin);
	run_on_one_cpu();
	assert_int_equal(pthread_create(&thread, NULL, keep_busy, &over), 0);
	uint64_t begun = ferry_now_ns(), now = begun;
	for (; ferry_spin_ns(&spin, now) && now - begun < 60000 * MS; now = ferry_now_ns())
		ferry_idle_looked(&idle, now);
	atomic_store(&over, true);
	pthread_join(thread, NULL);
	ferry_idle_close(&idle);
	assert_int_equal(ferry_spin_ns(&spin, now), 0);
}

static uint64_t cpu_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Nanoseconds of the CPU that the best of some loops of calls takes; what other programs take does not count. */
static uint64_t time_calls(const char *spin_us)
{
	struct ranks ranks;
	uint64_t best = UINT64_MAX;
	double data[2] = {0};
	setenv("FERRY_SPIN_US", spin_us, 1);
	open_ranks(&ranks, 2, 1);
	for (int loop = 0; loop < 20; loop++) {
		uint64_t begun = cpu_ns();
		for (int i = 0; i < 20; i++) {
			OK(ferryGroupStart());
			for (int rank = 0; rank < 2; rank++)
				OK(ferryAllReduce(&data[rank], &data[rank], 1, ferryFloat64, ferrySum,
				                  ranks.comms[rank], NULL));
			OK(ferryGroupEnd());
			OK(ferryStreamSynchronize(NULL));
		}
		uint64_t took = cpu_ns() - begun;
		best = took < best ? took : best;
	}
	close_ranks(&ranks);
	return best;
}

/* Each hand-over from one thread to the next would take the rest of a time slice of some milliseconds. */
static void lanes_and_workers_that_share_a_cpu_wait_for_no_time_slices(void **state)
{
	(void)state;
	if (!is_told())
		skip();
	run_on_one_cpu();
	uint64_t asleep = time_calls("0"), looking = time_calls("1000000");
	printf("20 calls: %llu us where all sleep, %llu where they look\n", (unsigned long long)asleep / 1000,
	       (unsigned long long)looking / 1000);
	assert_in_range(looking, 0, 4 * asleep);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_rest_is_twice_as_long_if_the_last_one_was_too_short),
		cmocka_unit_test(who_says_so_during_a_rest_makes_it_no_longer),
		cmocka_unit_test(cpus_are_short_for_who_waits_more_than_a_third_of_its_time),
		cmocka_unit_test(what_is_too_little_to_judge_by_is_added_up),
		cmocka_unit_test(waits_before_the_end_of_a_rest_do_not_count),
		cmocka_unit_test(who_looks_on_a_cpu_that_another_needs_learns_it),
		cmocka_unit_test(lanes_and_workers_that_share_a_cpu_wait_for_no_time_slices),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
