/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises to programs that do one thing after the other, where time is made (virtual.h): whatever was before, each
 * phase takes what it takes best, as soon as twenty calls of each kind have been made.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "tests/nccl/virtual.h"

#include <math.h>
#include <stdlib.h>

#define MIB        (1u << 20)
#define MOST_CALLS 32
#define MEMORIES   32
#define ORDERS     60
#define FIRST      20 /* calls of a kind that may be spent */
#define CALLS      100 /* that are looked at then, at least */

static struct virtual_machine pcie; /* that of all suites, beside programs */

/* A step: calls of two kinds at most, each behind products. */
struct phase {
	const char *name;
	struct {
		enum ferry_collective collective;
		uint32_t mib;
		int calls;
		double gap_us;
	} parts[2];
	bool waits; /* for each call */
};

static const struct phase phases[] = {
        {"DDP, 28 MiB, hidden", {{FERRY_ALLREDUCE, 28, 10, 3500}}, false},
        {"DDP, 64 MiB, half of it hidden", {{FERRY_ALLREDUCE, 64, 10, 1800}}, false},
        {"FSDP", {{FERRY_ALLGATHER, 48, 8, 600}, {FERRY_REDUCESCATTER, 48, 4, 600}}, false},
        {"prefill, 64 MiB", {{FERRY_ALLREDUCE, 64, 12, 300}}, true},
        {"prefill, 96 MiB", {{FERRY_ALLREDUCE, 96, 12, 300}}, true},
        {"calls in a row, 256 MiB", {{FERRY_ALLREDUCE, 256, 10, 10}}, false},
        {"gathers in a row, 16 MiB", {{FERRY_ALLGATHER, 16, 20, 10}}, false},
};

#define PHASES ((int)(sizeof phases / sizeof *phases))

static int calls_of(const struct phase *phase)
{
	return phase->parts[0].calls + phase->parts[1].calls;
}

static void make_steps(const struct phase *phase, int steps)
{
	for (int step = 0; step < steps; step++) {
		int memory = 0;
		for (int part = 0; part < 2; part++)
			for (int i = 0; i < phase->parts[part].calls; i++) {
				virtual_make(&(struct virtual_calls){phase->parts[part].collective,
				                                     (uint64_t)phase->parts[part].mib * MIB, false,
				                                     memory++, 1, phase->parts[part].gap_us});
				if (phase->waits)
					virtual_wait();
			}
		virtual_wait();
	}
}

static int ascending(const void *a, const void *b)
{
	const double *x = a, *y = b;
	return (*x > *y) - (*x < *y);
}

/*
 * What a step of the phase takes behind the first twenty calls of each of its kinds: the median, as a few steps may be
 * NCCL's, with which the veto compares the others; and the mean, with these.
 */
static double step_us(const struct phase *phase, double *mean)
{
	int first = phase->parts[0].calls, second = phase->parts[1].calls;
	int least = second && second < first ? second : first,
	    steps = (CALLS + calls_of(phase) - 1) / calls_of(phase);
	double us[CALLS], all = 0;
	make_steps(phase, (FIRST + least - 1) / least);
	for (int i = 0; i < steps; i++) {
		double begun = virtual_now_us();
		make_steps(phase, 1);
		all += us[i] = virtual_now_us() - begun;
	}
	qsort(us, (size_t)steps, sizeof *us, ascending);
	if (mean)
		*mean = all / steps;
	return us[steps / 2];
}

static void start(const struct virtual_machine *machine, unsigned seed)
{
	virtual_open(machine, seed);
	for (int i = 0; i < MEMORIES; i++)
		virtual_map(i);
}

/* Alone, with NCCL, or with what calls take once that is known; whichever is shorter. */
static double best_us(const struct virtual_machine *machine, const struct phase *phase)
{
	double least;
	start(machine, 1);
	virtual_leave_to_nccl();
	least = step_us(phase, NULL);
	virtual_close();
	start(machine, 1);
	virtual_leave_to_calls();
	make_steps(phase, 40);
	least = fmin(least, step_us(phase, NULL));
	virtual_close();
	return least;
}

/* The most that a phase takes over its best, in any order. *mean: the same of means. */
static double in_any_order(const struct virtual_machine *machine, double *mean)
{
	double best[PHASES], worst[PHASES], most = 0, of_means = 0;
	for (int i = 0; i < PHASES; i++) {
		best[i] = best_us(machine, &phases[i]);
		worst[i] = 0;
	}
	for (unsigned seed = 1; seed <= ORDERS; seed++) {
		int order[PHASES];
		unsigned random = seed;
		for (int i = 0; i < PHASES; i++) {
			int at = rand_r(&random) % (i + 1);
			order[i] = order[at];
			order[at] = i;
		}
		start(machine, seed);
		for (int i = 0; i < PHASES; i++) {
			double mean_us, over = step_us(&phases[order[i]], &mean_us) / best[order[i]];
			worst[order[i]] = fmax(worst[order[i]], over);
			of_means = fmax(of_means, mean_us / best[order[i]]);
		}
		virtual_close();
	}
	for (int i = 0; i < PHASES; i++) {
		print_message("%-8s %-32s %8.2f ms at best, %.3f of that at most\n", machine->name, phases[i].name,
		              best[i] / 1e3, worst[i]);
		most = fmax(most, worst[i]);
	}
	print_message("%-8s %-32s %.3f of the best at most, means\n", machine->name, "all", of_means);
	*mean = of_means;
	return most;
}

/* ---- promises ---- */

static void each_phase_has_its_best_after_twenty_calls(void **state)
{
	double mean;
	(void)state;
	assert_true(in_any_order(&pcie, &mean) < 1.05);
	assert_true(mean < 1.2); /* of nine steps three may be NCCL's */
}

static void so_it_has_where_the_machine_was_measured(void **state)
{
	(void)state;
	struct virtual_machine machine = pcie;
	machine.name = "measured";
	double mean;
	machine.tuned = true;
	assert_true(in_any_order(&machine, &mean) < 1.05);
	assert_true(mean < 1.07);
}

/* Of the same size: no other kind of call shows that another phase has begun. */
static void calls_that_are_hidden_no_more_are_gained_by(void **state)
{
	(void)state;
	const struct phase hidden = {"hidden", {{FERRY_ALLREDUCE, 64, 10, 8000}}, false}, bare = phases[3];
	double best = best_us(&pcie, &bare), most = 0;
	for (unsigned seed = 1; seed <= ORDERS; seed++) {
		start(&pcie, seed);
		make_steps(&hidden, 100);
		make_steps(&bare, 4);
		most = fmax(most, step_us(&bare, NULL) / best);
		virtual_close();
	}
	print_message("calls of 64 MiB that were hidden: %.3f of their best at most\n", most);
	assert_true(most < 1.05);
}

/* DDP of 124 M parameters: nothing is to be gained, and nothing is lost, from the first step on. */
static void calls_of_28_mib_behind_products_lose_nothing(void **state)
{
	(void)state;
	struct virtual_machine machine = pcie;
	double least = INFINITY;
	for (int tuned = 0; tuned < 2; tuned++)
		for (unsigned seed = 1; seed <= ORDERS; seed++) {
			double us[2];
			machine.tuned = tuned;
			for (int both = 0; both < 2; both++) {
				start(&machine, seed);
				if (!both)
					virtual_leave_to_nccl();
				make_steps(&phases[0], 200);
				us[both] = virtual_now_us();
				virtual_close();
			}
			least = fmin(least, us[0] / us[1]);
		}
	print_message("200 steps with calls of 28 MiB behind products: %.4f of NCCL's rate\n", least);
	assert_true(least > 0.99);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(each_phase_has_its_best_after_twenty_calls),
	        cmocka_unit_test(so_it_has_where_the_machine_was_measured),
	        cmocka_unit_test(calls_that_are_hidden_no_more_are_gained_by),
	        cmocka_unit_test(calls_of_28_mib_behind_products_lose_nothing),
	};
	pcie = virtual_pcie;
	pcie.drag = 0.03;
	pcie.jitter = 0.01;
	return cmocka_run_group_tests_name("nccl_phases", tests, NULL, NULL);
}
