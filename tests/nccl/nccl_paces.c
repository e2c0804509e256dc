/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of shared calls in time, where it is made (virtual.h): how soon they go the faster way, that they are never
 * much slower than NCCL's own, and what becomes of them beside others' bursts. The machines are two H200s as they were
 * measured (docs/performance.md, docs/lab/nccl-programs.md).
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "orchestrator/meter.h"
#include "orchestrator/shadow_comm.h"
#include "tests/nccl/virtual.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (1u << 20)

static struct virtual_machine with_limits(const struct virtual_machine *machine)
{
	struct virtual_machine known = *machine;
	known.tuned = true;
	return known;
}

static double of_nccl_us(const struct virtual_calls *what)
{
	return virtual_expected_us(what, FERRY_SHARES_NONE, false);
}

/* ---- from a cold start ---- */

#define SOON   5
#define CALLS  12
#define WITHIN 1.10 /* of the faster one, */
#define CALLER 8.0  /* and so many us: a caller takes so long for Ferry's call, while its stream has nothing to do */

/* A call's plan takes longer than the call: those that are made meanwhile are NCCL's. */
static int calls_of_a_plan(const struct virtual_machine *machine, const struct virtual_calls *what)
{
	return (int)ceil(machine->plan_us / of_nccl_us(what));
}

/* Nothing is known of the collective, routers know the buffers, each call is waited for. Returns how many are late. */
static int start_cold(const struct virtual_machine *machine, enum ferry_collective collective, uint64_t mib,
                      unsigned seed)
{
	struct virtual_calls what = {.collective = collective, .bytes = mib * MIB, .calls = 1};
	struct virtual_call calls[CALLS + 8];
	uint32_t best;
	int late = 0;
	virtual_open(machine, seed);
	virtual_map(0);
	int soon = SOON + (calls_of_a_plan(machine, &what) > 1 ? calls_of_a_plan(machine, &what) : 0);
	double best_us = virtual_best_us(&what, false, &best);
	for (int i = 0; i < soon + CALLS - SOON; i++) {
		virtual_run(&what, &calls[i]);
		late += i >= soon && virtual_expected_us(&what, calls[i].word, false) > WITHIN * best_us + CALLER;
	}
	if (late || virtual_late_plans())
		virtual_print(&what, calls, soon + CALLS - SOON);
	assert_int_equal(virtual_late_plans(), 0);
	virtual_close();
	return late;
}

static void shares_are_good_after_five_calls(void **state)
{
	(void)state;
	static const uint64_t sizes[] = {16, 32, 64, 256, 1024};
	static const enum ferry_collective which[] = {FERRY_ALLREDUCE, FERRY_ALLGATHER, FERRY_REDUCESCATTER};
	const struct virtual_machine machines[] = {with_limits(&virtual_nvlink), with_limits(&virtual_pcie)};
	int starts = 0, late = 0;
	for (int m = 0; m < 2; m++)
		for (int c = 0; c < 3; c++)
			for (int size = 0; size < 5; size++)
				for (unsigned seed = 1; seed < 11; seed++, starts++)
					late += start_cold(&machines[m], which[c], sizes[size], seed) > 0;
	print_message("%d of %d starts were late\n", late, starts);
	assert_int_equal(late, 0);
}

/* What a call takes in all, its plan included, from the first one on. */
static void no_call_of_a_cold_start_waits_for_its_plan(void **state)
{
	(void)state;
	for (int known = 0; known < 2; known++)
		for (uint64_t mib = 128; mib <= 1024; mib *= 2)
			for (unsigned seed = 1; seed < 11; seed++) {
				struct virtual_machine machine = known ? with_limits(&virtual_nvlink) : virtual_nvlink;
				struct virtual_calls what = {FERRY_ALLREDUCE, mib * MIB, false, 0, 1, 0};
				struct virtual_call call;
				int ferrys = 0;
				virtual_open(&machine, seed);
				virtual_map(0);
				for (int i = 0; i < 40; i++) {
					virtual_run(&what, &call);
					ferrys += call.word != FERRY_SHARES_NONE;
					if (call.us > 1.15 * of_nccl_us(&what))
						fail_msg("call %d of %d MiB takes %.0f us, NCCL's own %.0f", i,
						         (int)mib, call.us, of_nccl_us(&what));
				}
				assert_int_equal(virtual_late_plans(), 0);
				/* from the sixth one on, and where rates are known as soon as all is ready */
				assert_true(ferrys >= (known ? 38 : 35));
				virtual_close();
			}
}

/* Where GPUs reach each other and do not add up: all that is known of the host there is its link. */
static void sums_by_a_host_that_cannot_keep_up_are_not_tried(void **state)
{
	(void)state;
	for (int known = 0; known < 2; known++)
		for (int c = 0; c < 2; c++)
			for (uint64_t mib = 16; mib <= 1024; mib *= 4) {
				struct virtual_machine machine = known ? with_limits(&virtual_nvlink) : virtual_nvlink;
				struct virtual_curve *curve = &machine.curves[c];
				struct virtual_calls what = {curve->collective, mib * MIB, false, 0, 1, 0};
				struct virtual_call call;
				machine.adds = false;
				memcpy(curve->ours, virtual_pcie.curves[c].ours, sizeof curve->ours);
				virtual_open(&machine, 1);
				virtual_map(0);
				for (int i = 0; i < 1000; i++) {
					virtual_run(&what, &call);
					assert_int_equal(call.word, FERRY_SHARES_NONE);
				}
				virtual_close();
			}
}

/* ---- ahead of what is known ---- */

#define BATCH   20
#define BATCHES 8 /* 16, 64, 256 MiB and 1 GiB, each out of place and in place */

/* As nccl-tests: of each size and place a call that is waited for, 20 that are not, and one more. */
static void run_sweep(const struct virtual_machine *machine, enum ferry_collective collective, unsigned seed,
                      bool alone, double us[BATCHES])
{
	struct virtual_calls what = {.collective = collective};
	virtual_open(machine, seed);
	virtual_map(0);
	if (alone)
		virtual_leave_to_nccl();
	for (int i = 0; i < BATCHES; i++) {
		what.bytes = (uint64_t)(16 << 2 * (i / 2)) * MIB;
		what.in_place = i % 2;
		what.calls = 1;
		virtual_run(&what, NULL);
		what.calls = BATCH;
		us[i] = virtual_run(&what, NULL);
		what.calls = 1;
		virtual_run(&what, NULL);
	}
	virtual_close();
}

/* Of NCCL alone over it, the worst and the middle one of some seeds; of a size, both its batches together. */
struct gains {
	double worst[BATCHES], middle[BATCHES], worst_size[BATCHES / 2];
};

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static struct gains sweep(const struct virtual_machine *machine, enum ferry_collective collective)
{
	enum { SEEDS = 9 };
	struct gains gains;
	double all[BATCHES][SEEDS];
	for (int i = 0; i < BATCHES / 2; i++)
		gains.worst_size[i] = INFINITY;
	for (unsigned seed = 0; seed < SEEDS; seed++) {
		double us[BATCHES], alone[BATCHES];
		run_sweep(machine, collective, seed + 1, true, alone);
		run_sweep(machine, collective, seed + 1, false, us);
		for (int i = 0; i < BATCHES; i++)
			all[i][seed] = alone[i] / us[i];
		for (int i = 0; i < BATCHES / 2; i++)
			gains.worst_size[i] = fmin(gains.worst_size[i], (alone[2 * i] + alone[2 * i + 1]) /
			                                                        (us[2 * i] + us[2 * i + 1]));
	}
	print_message("%-6s %-9s %-13s", machine->name,
	              machine->tuned ? "limits" : "no limits",
	              ferry_collective_name(collective));
	for (int i = 0; i < BATCHES; i++) {
		qsort(all[i], SEEDS, sizeof all[i][0], compare);
		gains.worst[i] = all[i][0];
		gains.middle[i] = all[i][SEEDS / 2];
		print_message("  %.2f (%.2f)", gains.middle[i], gains.worst[i]);
	}
	print_message("\n");
	return gains;
}

/*
 * One try of short calls finds lanes asleep: that is up to 3% of 20 calls of 16 MiB, and 6% where Ferry's are slower by
 * a tenth, of which nothing is known.
 */
static void who_runs_ahead_of_a_cold_start_is_never_slower_than_nccl(void **state)
{
	(void)state;
	for (int known = 0; known < 2; known++)
		for (int m = 0; m < 2; m++)
			for (int c = 0; c < 4; c++) {
				struct virtual_machine machine = m ? virtual_pcie : virtual_nvlink;
				machine = known ? with_limits(&machine) : machine;
				struct gains gains = sweep(&machine, machine.curves[c].collective);
				for (int i = 0; i < BATCHES; i++)
					assert_true(gains.worst[i] > (i > 1 ? 0.98 : known ? 0.965 : 0.935) &&
					            gains.worst_size[i / 2] > (i > 1 || known ? 0.98 : 0.965));
			}
}

/* The second batch of a size has it without a prior; with one the first has it. */
static void who_runs_ahead_has_what_is_faster_in_the_second_batch(void **state)
{
	(void)state;
	struct virtual_machine known = with_limits(&virtual_pcie);
	struct gains gains = sweep(&virtual_pcie, FERRY_ALLGATHER);
	assert_true(gains.middle[5] > 1.75 && gains.middle[7] > 1.8);
	gains = sweep(&virtual_pcie, FERRY_ALLREDUCE);
	assert_true(gains.middle[5] > 1.5 && gains.middle[7] > 1.55);
	gains = sweep(&known, FERRY_ALLREDUCE);
	assert_true(gains.middle[0] > 1.15 && gains.middle[2] > 1.4 && gains.middle[4] > 1.5);
	known = with_limits(&virtual_nvlink);
	gains = sweep(&known, FERRY_ALLREDUCE);
	assert_true(gains.middle[4] > 1.15 && gains.middle[5] > 1.15);
}

/*
 * nccl-tests -b 1M -e 1G -f 4 -w 5 -n 20: before the first size all powers of two have five calls in a row, or the
 * largest one alone, as where Ferry's communicator came then. Buffers are of 1 GiB, not known to routers, and calls
 * shift in them. us: of 16, 64 and 256 MiB out of place, each in its first batch.
 */
static void run_nccl_tests(const struct virtual_machine *machine, enum ferry_collective collective, bool late,
                           bool alone, double us[3])
{
	struct virtual_calls what = {.collective = collective};
	virtual_open(machine, 1);
	virtual_shift();
	if (alone)
		virtual_leave_to_nccl();
	for (what.bytes = (late ? 1024ull : 1) * MIB; what.bytes <= 1024ull * MIB; what.bytes *= 2) {
		what.calls = 5;
		virtual_run(&what, NULL);
	}
	for (int i = 0; i < 3; i++) {
		what.bytes = (16ull << 2 * i) * MIB;
		what.calls = 1;
		virtual_run(&what, NULL);
		what.calls = BATCH;
		us[i] = virtual_run(&what, NULL);
		what.calls = 1;
		virtual_run(&what, NULL);
	}
	virtual_close();
}

/* A plan takes longer than a call of 16 MiB: all ranks wait for it as long as their streams have something to do. */
static void nccl_tests_has_what_is_faster_in_the_first_batch_of_a_size(void **state)
{
	(void)state;
	struct virtual_machine machine = with_limits(&virtual_pcie);
	machine.plan_us = 1000;
	for (int c = 0; c < 4; c++)
		for (int late = 0; late < 2; late++) {
			enum ferry_collective collective = machine.curves[c].collective;
			double us[3], alone[3];
			run_nccl_tests(&machine, collective, late, true, alone);
			run_nccl_tests(&machine, collective, late, false, us);
			print_message("%-13s %s: %.2f %.2f %.2f\n", ferry_collective_name(collective),
			              late ? "of a size that was not warmed up" : "of one that was",
			              alone[0] / us[0], alone[1] / us[1], alone[2] / us[2]);
			bool sums = ferry_collective_reduces(collective);
			if (collective == FERRY_REDUCESCATTER)
				assert_true(alone[0] / us[0] > 0.99 && alone[1] / us[1] > 0.99);
			else
				assert_true(alone[0] / us[0] > (sums ? 1.13 : 1.2) && alone[1] / us[1] > 1.4);
		}
}

/* Of sizes whose calls were NCCL's the first batch knows what Ferry has taken in those before. */
static void without_limits_it_has_so_from_the_second_size_on(void **state)
{
	(void)state;
	struct virtual_machine machine = virtual_pcie;
	machine.plan_us = 1000;
	for (int c = 0; c < 4; c++) {
		double us[3], alone[3];
		run_nccl_tests(&machine, machine.curves[c].collective, false, true, alone);
		run_nccl_tests(&machine, machine.curves[c].collective, false, false, us);
		print_message("%-13s without limits: %.2f %.2f %.2f\n",
		              ferry_collective_name(machine.curves[c].collective), alone[0] / us[0], alone[1] / us[1],
		              alone[2] / us[2]);
		assert_true(alone[0] / us[0] > 0.99 && alone[1] / us[1] > 1.4 && alone[2] / us[2] > 1.5);
	}
}

/* ---- how long what is worse is kept ---- */

#define LONG   600
#define WINDOW 100

/* The worst and all of so many calls, by what their shares take without noise, over NCCL alone. */
struct course {
	double worst, all;
};

static struct course run_long(const struct virtual_machine *machine, enum ferry_collective collective, uint64_t mib,
                              int batch, unsigned seed)
{
	static struct virtual_call calls[LONG];
	struct virtual_calls what = {.collective = collective, .bytes = mib * MIB, .calls = batch};
	struct course course = {INFINITY, 0};
	double window = 0;
	virtual_open(machine, seed);
	virtual_map(0);
	for (int i = 0; i < LONG; i += batch)
		virtual_run(&what, &calls[i]);
	for (int i = 0; i < LONG; i++) {
		double us = virtual_expected_us(&what, calls[i].word, false);
		window += us;
		course.all += us;
		if (i >= WINDOW)
			window -= virtual_expected_us(&what, calls[i - WINDOW].word, false);
		if (i >= WINDOW - 1)
			course.worst = fmin(course.worst, WINDOW * of_nccl_us(&what) / window);
	}
	course.all = LONG * of_nccl_us(&what) / course.all;
	virtual_close();
	return course;
}

/* Ferry's whole calls and parts vary by 8%, NCCL's by 4, and one in a hundred takes three times as long. */
static void what_is_worse_is_not_kept_for_long(void **state)
{
	(void)state;
	enum { SEEDS = 10 };
	for (int m = 0; m < 3; m++)
		for (int c = 0; c < 4; c++)
			for (uint64_t mib = 16; mib <= 1024; mib *= 4)
				for (int batch = 1; batch <= 20; batch += 19) {
					struct virtual_machine machine = m ? virtual_pcie : virtual_nvlink;
					double worst = INFINITY, least = INFINITY;
					machine = m == 2 ? machine : with_limits(&machine);
					machine.nccl_noise = 0.04;
					machine.ferry_noise = 0.08;
					machine.outliers = 0.01;
					for (unsigned seed = 1; seed <= SEEDS; seed++) {
						struct course course = run_long(&machine, machine.curves[c].collective,
						                                mib, batch, seed);
						worst = fmin(worst, course.worst);
						least = fmin(least, course.all);
					}
					if (worst < 0.985 || least < 0.99)
						print_message("%s, %s of %d MiB, %d at a time: all calls %.3f of "
						              "NCCL alone, the worst %d %.3f\n", machine.name,
						              ferry_collective_name(machine.curves[c].collective),
						              (int)mib, batch, least, WINDOW, worst);
					assert_true(worst > 0.96 && least > 0.985);
				}
}

/* Calls in a row that the stream has sooner by Ferry, but for which a thread needs longer than NCCL's calls take. */
static void what_its_caller_makes_late_is_nccls(void **state)
{
	(void)state;
	enum { TIMES = 30, ROW = 20 };
	struct virtual_calls what = {.collective = FERRY_REDUCESCATTER, .bytes = 16 * MIB, .calls = ROW};
	struct virtual_machine machine = with_limits(&virtual_nvlink);
	struct virtual_call calls[ROW];
	machine.curves[1].ours[2] = 1.12 * machine.curves[1].nccl[2];
	machine.caller_us = 62;
	double most = 0;
	for (unsigned seed = 1; seed <= 5; seed++) {
		virtual_open(&machine, seed);
		virtual_map(0);
		for (int i = 0; i < TIMES; i++)
			virtual_run(&what, calls);
		double begun = virtual_now_us();
		for (int i = 0; i < TIMES; i++)
			virtual_run(&what, calls);
		most = fmax(most, (virtual_now_us() - begun) / (TIMES * ROW) / of_nccl_us(&what));
		virtual_close();
	}
	print_message("calls that their caller makes late: %.3f of NCCL's time at most\n", most);
	assert_true(most < 1.1); /* 1.03 by NCCL alone, each time twenty calls are waited for */
}

/* Of what Ferry has faster it has most calls, though its first one disappoints: in that a lane was late, or a plan. */
static void one_bad_sample_does_not_turn_ferry_away(void **state)
{
	(void)state;
	int starts = 0, few = 0;
	for (int c = 0; c < 4; c++)
		for (uint64_t mib = 64; mib <= 256; mib *= 4)
			for (unsigned seed = 1; seed <= 20; seed++, starts++) {
				struct virtual_machine machine = with_limits(&virtual_pcie);
				static struct virtual_call calls[200];
				struct virtual_calls what = {machine.curves[c].collective, mib * MIB, false, 0, 1, 0};
				uint32_t best;
				int ferrys = 0;
				machine.ferry_noise = 0.05;
				machine.outliers = 0.1;
				virtual_open(&machine, seed);
				virtual_map(0);
				for (int i = 0; i < 200; i++)
					virtual_run(&what, &calls[i]);
				for (int i = 100; i < 200; i++)
					ferrys += calls[i].word != FERRY_SHARES_NONE;
				virtual_best_us(&what, false, &best);
				few += best != FERRY_SHARES_NONE && ferrys < 60;
				virtual_close();
			}
	print_message("%d of %d programs have NCCL's for long\n", few, starts);
	assert_in_range(few, 0, 14); /* of 160: all four collectives gain */
}

/* ---- beside bursts ---- */

/* Others' copies, a second on, a second off: so many times slower are the host's part or Ferry's calls, and NCCL's. */
struct burst {
	const struct virtual_machine *machine;
	enum ferry_collective collective;
	uint64_t mib;
	double host, nccl;
};

/* Time of an oracle, and of the shares that are best without bursts, over what 20 seconds of calls take. */
struct reached {
	double oracle, calm;
};

static struct reached run_bursts(const struct burst *burst, int batch, unsigned seed)
{
	struct virtual_machine machine = with_limits(burst->machine);
	struct virtual_calls what = {burst->collective, burst->mib * MIB, false, 0, batch, 0};
	struct virtual_call calls[BATCH];
	uint32_t words[2];
	double us = 0, oracle = 0, calm = 0;
	machine.burst_s = 1;
	machine.burst[FERRY_FABRIC_HOST] = burst->host;
	machine.burst[FERRY_FABRIC_NCCL] = burst->nccl;
	virtual_open(&machine, seed);
	virtual_map(0);
	double best[2] = {virtual_best_us(&what, false, &words[0]), virtual_best_us(&what, true, &words[1])};
	while (virtual_now_us() < 20e6) {
		virtual_run(&what, calls);
		for (int i = 0; i < batch; i++) {
			us += calls[i].us;
			oracle += best[calls[i].burst];
			calm += virtual_expected_us(&what, words[0], calls[i].burst);
		}
	}
	virtual_close();
	return (struct reached){oracle / us, calm / us};
}

static void bursts_are_left_and_met_again(void **state)
{
	(void)state;
	static const struct burst bursts[] = {
	        {&virtual_pcie, FERRY_ALLREDUCE, 256, 4, 1.2},   {&virtual_pcie, FERRY_ALLREDUCE, 64, 4, 1.2},
	        {&virtual_pcie, FERRY_ALLREDUCE, 256, 2, 2},     {&virtual_pcie, FERRY_ALLGATHER, 256, 2.5, 1.2},
	        {&virtual_nvlink, FERRY_ALLREDUCE, 256, 4, 1},   {&virtual_nvlink, FERRY_ALLREDUCE, 1024, 4, 1},
	        {&virtual_nvlink, FERRY_ALLREDUCE, 256, 2, 1},
	};
	for (size_t i = 0; i < sizeof bursts / sizeof *bursts; i++)
		for (int batch = 1; batch <= 4; batch += 3) {
			const struct burst *burst = &bursts[i];
			struct reached least = {INFINITY, INFINITY};
			for (unsigned seed = 1; seed <= 3; seed++) {
				struct reached one = run_bursts(burst, batch, seed);
				least.oracle = fmin(least.oracle, one.oracle);
				least.calm = fmin(least.calm, one.calm);
			}
			print_message("%-6s %s of %d MiB, %d at a time, Ferry's %.1f and NCCL's %.1f times as slow: "
			              "%.3f of an oracle, %.2f of what is best without\n", burst->machine->name,
			              ferry_collective_name(burst->collective), (int)burst->mib, batch, burst->host,
			              burst->nccl, least.oracle, least.calm);
			assert_true(least.oracle > 0.9 && least.calm > (burst->host < 4 ? 0.96 : 1.3));
		}
}

/* ---- the end ---- */

static void a_communicator_that_is_given_up_gets_no_more_calls(void **state)
{
	(void)state;
	struct virtual_machine machine = with_limits(&virtual_pcie);
	struct virtual_calls what = {FERRY_ALLGATHER, 256 * MIB, false, 0, 1, 0};
	struct virtual_call call;
	virtual_open(&machine, 1);
	virtual_map(0);
	for (int i = 0; i < 10; i++)
		virtual_run(&what, &call);
	assert_true(call.word != FERRY_SHARES_NONE);
	virtual_abandon();
	for (int i = 0; i < 10; i++) {
		virtual_run(&what, &call);
		assert_int_equal(call.word, FERRY_SHARES_NONE);
	}
	virtual_close();
}

/* ---- what is kept for the next job ---- */

/* Under which an earlier job's shares are found, with that in the environment. */
static uint64_t signature_with(const char *name, const char *value)
{
	static struct ferry_meter meter;
	struct ferry_share_table *table = calloc(1, ferry_share_table_bytes(2));
	assert_non_null(table);
	setenv(name, value, 1);
	assert_int_equal(ferry_meter_init(&meter), ferrySuccess);
	ferry_meter_open(&meter, table, 2, 0, true, false, false, 50e3);
	uint64_t signature = table->signature;
	ferry_meter_free(&meter);
	unsetenv(name);
	free(table);
	return signature;
}

static void what_only_names_a_run_lets_it_find_what_others_have_learned(void **state)
{
	static const char *const names[] = {"NCCL_COMM_ID", "NCCL_HOSTID", "NCCL_DEBUG_FILE", "NCCL_GRAPH_DUMP_FILE",
	                                    "NCCL_CUMEM_ENABLE"},
	                  *const settings[] = {"NCCL_ALGO", "NCCL_P2P_DISABLE", "NCCL_TOPO_FILE", "FERRY_FABRICS"};
	uint64_t plain = signature_with("FERRY_UNUSED", "");
	(void)state;
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (signature_with(names[i], "a.b:1") != plain)
			fail_msg("with %s a job begins anew", names[i]);
	for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
		if (signature_with(settings[i], "1") == plain || signature_with(settings[i], "0") == plain ||
		    signature_with(settings[i], "1") == signature_with(settings[i], "0"))
			fail_msg("with %s a job begins with what others have learned", settings[i]);
}

static struct ferry_meter meter;

/* Of AllReduces of 64 MiB, with 16 channels as NCCL's fastest. */
static struct ferry_share_table *table_of_an_earlier_job(void)
{
	struct ferry_share_table *table = calloc(1, ferry_share_table_bytes(2));
	struct ferry_share_line line = {.collective = FERRY_ALLREDUCE, .type = ferryFloat32, .bytes = 64 * MIB};
	struct ferry_shares ferry = {.part = {FERRY_SHARES_WHOLE, 0, 0}};
	assert_non_null(table);
	line.size_class = ferry_tuner_size_class(line.bytes);
	line.word = line.nccl = 1;
	line.ferry = ferry_shares_pack(&ferry);
	line.nccl_us = 400;
	line.ferry_us = 800;
	ferry_share_line_write(&table->saved[0][0], &line);
	table->saved_signatures[0] = signature_with("FERRY_UNUSED", "");
	return table;
}

static void a_job_knows_the_tuning_that_an_earlier_one_has_found(void **state)
{
	const struct ferry_tuner_call call = {FERRY_ALLREDUCE, ferryFloat32, 64 * MIB, false, FERRY_FABRIC_HOST};
	(void)state;
	for (int tuned = 0; tuned < 2; tuned++) {
		struct ferry_share_table *table = table_of_an_earlier_job();
		assert_int_equal(ferry_meter_init(&meter), ferrySuccess);
		ferry_meter_open(&meter, table, 2, 0, false, false, true, 50e3);
		ferry_meter_adopt(&meter, tuned);
		assert_int_equal(ferry_meter_propose(&meter, &call, false, true).nccl, tuned);
		ferry_meter_free(&meter);
		free(table);
	}
}

/* Its first use in this process may be that one, and connects GPUs. */
static void a_captured_call_has_no_algorithm_of_ferrys_choice(void **state)
{
	const struct ferry_tuner_call call = {FERRY_ALLREDUCE, ferryFloat32, 64 * MIB, false, FERRY_FABRIC_HOST};
	struct ferry_share_table *table = table_of_an_earlier_job();
	struct ferry_share_line line;
	(void)state;
	assert_true(ferry_share_line_read(&table->saved[0][0], &line));
	line.word = line.nccl = FERRY_TUNING_STEPS + FERRY_TUNING_16_CHANNELS;
	ferry_share_line_write(&table->saved[0][0], &line);
	assert_int_equal(ferry_meter_init(&meter), ferrySuccess);
	ferry_meter_open(&meter, table, 2, 0, false, false, true, 50e3);
	ferry_meter_adopt(&meter, true);
	assert_int_equal(ferry_meter_propose(&meter, &call, false, true).word, line.nccl);
	assert_int_equal(ferry_meter_propose(&meter, &call, true, false).word, FERRY_SHARES_NONE);
	ferry_meter_free(&meter);
	free(table);
}

/* ---- whatever the table says ---- */

static uint32_t propose_tuned(void *argument, uint64_t n)
{
	(void)n;
	return *(uint32_t *)argument;
}

static void agree(void *argument, uint64_t n, uint32_t word)
{
	(void)argument, (void)n, (void)word;
}

/* Any rank may have written a line that has one. NCCL hangs where some ranks run a call otherwise than others. */
static void a_tuning_that_some_ranks_NCCL_does_not_take_is_no_calls(void **state)
{
	const struct ferry_shares half = {.part = {64, 0, 64}, .tuning = 3};
	uint32_t words[] = {3, ferry_shares_pack(&half)};
	uint64_t n;
	(void)state;
	virtual_open(&virtual_pcie, 1);
	for (int i = 0; i < 2; i++)
		for (int rank = 0; rank < VIRTUAL_RANKS; rank++) {
			const struct ferry_shadow_comm_caller caller = {propose_tuned, agree, &words[i]};
			uint32_t word = ferry_shadow_comm_take(virtual_shadow_comm(rank), &caller, &n);
			assert_int_equal(word, words[i] - ferry_shares_tuning(words[i]));
		}
	virtual_close();
}

static uint64_t scribbled(unsigned *seed)
{
	uint64_t word = 0;
	for (int i = 0; i < 8; i++)
		word = word << 8 | ((unsigned)rand_r(seed) >> 8 & 0xff);
	return word;
}

/* One of the ranks writes what it likes, where it likes; of lines that are valid at first sight the most. */
static void scribble(struct ferry_share_table *table, unsigned *seed)
{
	struct ferry_share_line_words *line = &table->lines[rand_r(seed) % 4];
	struct ferry_share_readiness *ready = &table->ranks[rand_r(seed) % 2].ready;
	_Atomic uint64_t *const words[] = {&line->shares, &line->trial, &line->bytes, &line->us, &line->key,
	                                   &table->hold, &table->signature,
	                                   &ready->kinds[rand_r(seed) % FERRY_SHARE_KINDS]};
	*words[rand_r(seed) % (sizeof words / sizeof *words)] = scribbled(seed) >> (rand_r(seed) % 48);
}

/* The virtual ranks check that a call has the same parts on all of them. */
static void who_scribbles_in_the_table_changes_no_rank_alone(void **state)
{
	(void)state;
	for (unsigned seed = 1; seed <= 10; seed++) {
		struct virtual_machine machine = with_limits(seed % 2 ? &virtual_pcie : &virtual_nvlink);
		unsigned chance = seed;
		virtual_open(&machine, seed);
		virtual_map(0);
		for (int i = 0; i < 500; i++) {
			struct virtual_calls what = {i % 3 ? FERRY_ALLREDUCE : FERRY_ALLGATHER, (64u << i % 3) * MIB,
			                             false, 0, 1, 0};
			scribble(virtual_shadow_comm(0)->meter.table, &chance);
			virtual_run(&what, NULL);
		}
		virtual_close();
	}
}

/* FERRY_SHARES, FERRY_SPLIT_VETO, the file of limits: of one rank alone. */
static void set_apart(struct ferry_meter *one, int how)
{
	if (how == 0)
		assert_int_equal(ferry_shares_pin("nccl:0.5,host:0.5", &one->pins), ferrySuccess);
	one->pinned |= how == 0;
	one->follows &= how != 1;
	if (how == 2)
		memset(&one->prior, 0, sizeof one->prior);
	for (int i = 0; how == 3 && i < FERRY_PRIOR_SIZES; i++)
		one->prior.points[FERRY_ALLREDUCE][i].us[FERRY_PRIOR_FERRY] /= 10;
}

/* The virtual ranks check that a call has the same parts on all of them. */
static void ranks_with_other_settings_have_the_same_parts(void **state)
{
	(void)state;
	for (int how = 0; how < 4; how++)
		for (int who = 0; who < 4; who++) {
			struct virtual_machine machine = with_limits(who & 2 ? &virtual_pcie : &virtual_nvlink);
			virtual_open(&machine, 1);
			virtual_map(0);
			set_apart(&virtual_shadow_comm(who & 1)->meter, how);
			for (int i = 0; i < 300; i++) {
				struct virtual_calls what = {i % 3 ? FERRY_ALLREDUCE : FERRY_ALLGATHER,
				                             (64u << i % 3) * MIB, false, 0, 1, 0};
				virtual_run(&what, NULL);
			}
			virtual_close();
		}
}

/* Rank 0 is late, or gone: its line still has the trial, and other ranks seal it. */
static void a_trial_has_an_end_though_rank_0_does_not_end_it(void **state)
{
	const struct ferry_tuner_call call = {FERRY_ALLREDUCE, ferryFloat32, 64 * MIB, false, FERRY_FABRIC_HOST};
	struct ferry_share_table *table = table_of_an_earlier_job();
	struct ferry_share_line line;
	(void)state;
	assert_true(ferry_share_line_read(&table->saved[0][0], &line));
	line.trial = line.ferry;
	line.run = 4;
	line.turn = 1;
	ferry_share_line_write(&table->lines[0], &line);
	assert_int_equal(ferry_meter_init(&meter), ferrySuccess);
	ferry_meter_open(&meter, table, 2, 1, false, false, true, 50e3);
	ferry_meter_adopt(&meter, true);
	for (int i = 0; i < 1000; i++) {
		uint32_t word = ferry_meter_propose(&meter, &call, false, true).word;
		assert_int_equal(word, i < line.run ? line.trial : line.word);
		ferry_meter_sealed(&meter, &call, line.trial, true);
	}
	ferry_meter_free(&meter);
	free(table);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(shares_are_good_after_five_calls),
	        cmocka_unit_test(no_call_of_a_cold_start_waits_for_its_plan),
	        cmocka_unit_test(sums_by_a_host_that_cannot_keep_up_are_not_tried),
	        cmocka_unit_test(who_runs_ahead_of_a_cold_start_is_never_slower_than_nccl),
	        cmocka_unit_test(who_runs_ahead_has_what_is_faster_in_the_second_batch),
	        cmocka_unit_test(nccl_tests_has_what_is_faster_in_the_first_batch_of_a_size),
	        cmocka_unit_test(without_limits_it_has_so_from_the_second_size_on),
	        cmocka_unit_test(what_is_worse_is_not_kept_for_long),
	        cmocka_unit_test(what_its_caller_makes_late_is_nccls),
	        cmocka_unit_test(one_bad_sample_does_not_turn_ferry_away),
	        cmocka_unit_test(bursts_are_left_and_met_again),
	        cmocka_unit_test(a_communicator_that_is_given_up_gets_no_more_calls),
	        cmocka_unit_test(a_tuning_that_some_ranks_NCCL_does_not_take_is_no_calls),
	        cmocka_unit_test(who_scribbles_in_the_table_changes_no_rank_alone),
	        cmocka_unit_test(ranks_with_other_settings_have_the_same_parts),
	        cmocka_unit_test(a_trial_has_an_end_though_rank_0_does_not_end_it),
	        cmocka_unit_test(a_job_knows_the_tuning_that_an_earlier_one_has_found),
	        cmocka_unit_test(a_captured_call_has_no_algorithm_of_ferrys_choice),
	        cmocka_unit_test(what_only_names_a_run_lets_it_find_what_others_have_learned),
	};
	return cmocka_run_group_tests_name("nccl_paces", tests, NULL, NULL);
}
