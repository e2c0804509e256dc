/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of looking before sleeping: nobody looks where threads outnumber CPUs, and that is tried again, ever more rarely. */
#include "tests/api_ranks.h"

#include "ipc/spin.h"
#include "ipc/wait.h"

#include <pthread.h>
#include <sched.h>

#define MS 1000000ull
#define LEAST (uint64_t)FERRY_SPIN_REST_LEAST_NS
#define MOST (uint64_t)FERRY_SPIN_REST_MOST_NS

static void a_rest_is_twice_as_long_if_the_trial_before_it_was_shorter_than_the_last(void **state)
{
	(void)state;
	struct ferry_spin spin = {.limit_ns = 5};
	uint64_t now = 1000 * MS, rest = LEAST;
	assert_int_equal(ferry_spin_ns(&spin, now), 5);
	for (int trial = 0; trial < 10; trial++) {
		ferry_spin_rest(&spin, now);
		assert_int_equal(ferry_spin_ns(&spin, now + rest - 1), 0);
		assert_int_equal(ferry_spin_ns(&spin, now + rest), 5);
		now += rest + rest / 2;
		rest = rest < MOST / 2 ? 2 * rest : MOST;
	}
	assert_int_equal(rest, MOST);
	now += MOST + 1; /* all of this time nobody found CPUs short */
	ferry_spin_rest(&spin, now);
	assert_int_equal(ferry_spin_ns(&spin, now + LEAST), 5);
}

static void who_is_late_to_say_so_makes_no_rest_longer(void **state)
{
	(void)state;
	struct ferry_spin spin = {.limit_ns = 5};
	ferry_spin_rest(&spin, 1000 * MS);
	ferry_spin_rest(&spin, 1000 * MS + LEAST - 1);
	assert_int_equal(ferry_spin_ns(&spin, 1000 * MS + LEAST), 5);
}

static void a_gap_without_loss_of_the_cpu_is_no_reason(void **state)
{
	(void)state;
	struct ferry_spin spin = {.limit_ns = 5};
	struct ferry_looker looker;
	int rested = 0;
	for (int trial = 0; trial < 20; trial++) { /* in some the CPU may be lost between these two lines */
		ferry_looker_begin(&looker);
		ferry_spin_looked(&spin, &looker, 1000 * MS);
		ferry_spin_looked(&spin, &looker, 1000 * MS + 2 * FERRY_SPIN_GAP_NS);
		rested += !ferry_spin_ns(&spin, 1000 * MS + 2 * FERRY_SPIN_GAP_NS);
		spin = (struct ferry_spin){.limit_ns = 5};
	}
	assert_in_range(rested, 0, 10);
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
	assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0); /* of this thread, and of those that it makes from now on */
}

static void who_looks_on_a_cpu_that_another_needs_learns_it(void **state)
{
	(void)state;
	static struct ferry_spin spin = {.limit_ns = 5};
	_Atomic bool over = false;
	struct ferry_looker looker;
	pthread_t thread;
	run_on_one_cpu();
	assert_int_equal(pthread_create(&thread, NULL, keep_busy, &over), 0);
	ferry_looker_begin(&looker);
	for (uint64_t now = ferry_now_ns(); ferry_spin_ns(&spin, now); now = ferry_now_ns()) /* for ever: ctest's timeout tells */
		ferry_spin_looked(&spin, &looker, now);
	atomic_store(&over, true);
	pthread_join(thread, NULL);
}

/* Nanoseconds of the best of some loops of calls. */
static uint64_t time_calls(const char *spin_us)
{
	struct ranks ranks;
	uint64_t best = UINT64_MAX;
	double data[2] = {0};
	setenv("FERRY_SPIN_US", spin_us, 1);
	open_ranks(&ranks, 2, 1);
	for (int loop = 0; loop < 20; loop++) {
		uint64_t begun = ferry_now_ns();
		for (int i = 0; i < 20; i++) {
			OK(ferryGroupStart());
			for (int rank = 0; rank < 2; rank++)
				OK(ferryAllReduce(&data[rank], &data[rank], 1, ferryFloat64, ferrySum, ranks.comms[rank], NULL));
			OK(ferryGroupEnd());
			OK(ferryStreamSynchronize(NULL));
		}
		uint64_t took = ferry_now_ns() - begun;
		best = took < best ? took : best;
	}
	close_ranks(&ranks);
	return best;
}

/* Each hand-over from one thread to the next would wait for a time slice, of some milliseconds, to end. */
static void lanes_and_workers_that_share_a_cpu_wait_for_no_time_slices(void **state)
{
	(void)state;
	run_on_one_cpu();
	uint64_t asleep = time_calls("0"), looking = time_calls("1000000");
	printf("20 calls: %llu us where all sleep, %llu where they look\n", (unsigned long long)asleep / 1000, (unsigned long long)looking / 1000);
	assert_in_range(looking, 0, 4 * asleep);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_rest_is_twice_as_long_if_the_trial_before_it_was_shorter_than_the_last),
		cmocka_unit_test(who_is_late_to_say_so_makes_no_rest_longer),
		cmocka_unit_test(a_gap_without_loss_of_the_cpu_is_no_reason),
		cmocka_unit_test(who_looks_on_a_cpu_that_another_needs_learns_it),
		cmocka_unit_test(lanes_and_workers_that_share_a_cpu_wait_for_no_time_slices),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
