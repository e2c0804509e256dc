/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of the balancer, on fabrics that are not there (tests/orchestrator/fabrics.h): within five calls it is as
 * good as the best fixed shares, whatever it knew before; it follows bursts and drift, and no outliers; it is never
 * slower than NCCL alone. Prints what it reached beside what can be reached.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "tests/orchestrator/program_of_calls.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- from a cold start ---- */

static void five_calls(const char *name, const struct fabrics *machine, uint32_t usable, double know_host,
                       double know_nccl, double *worst)
{
	static const double sizes[] = {1, 4, 16, 64, 256, 1024};
	for (size_t i = know_host > 0 ? 0 : 3; i < sizeof sizes / sizeof *sizes; i++) {
		struct program program;
		struct ferry_shares shares, best;
		double taken[6];
		program_start(&program, machine, usable, sizes[i] * MIB);
		program.fabrics.noise = 0.02;
		if (know_host > 0)
			program_know(&program, know_host, know_nccl);
		double least = fabrics_best(&program.fabrics, sizes[i] * MIB, usable, 128 << 10, &best);
		for (int n = 0; n < 5; n++)
			taken[n] = program_call(&program, 0) / least;
		taken[5] = program_excess(&program, &shares);
		print_message("%-22s %5.0f MiB  best %4u %4u %4u  ends %4u %4u %4u  calls %.2f %.2f %.2f %.2f %.2f "
		              " then %.3f\n",
		              name, sizes[i], best.part[0], best.part[1], best.part[2], shares.part[0], shares.part[1],
		              shares.part[2], taken[0], taken[1], taken[2], taken[3], taken[4], taken[5]);
		*worst = fmax(*worst, taken[5]);
	}
}

static void five_calls_are_enough(void **state)
{
	(void)state;
	double worst = 0, three = 0;
	five_calls("pcie, right rates", &pcie, TWO, 1, 1, &worst);
	five_calls("pcie, host half", &pcie, TWO, 2, 1, &worst);
	five_calls("pcie, NCCL half", &pcie, TWO, 1, 2, &worst);
	five_calls("pcie, no rates", &pcie, TWO, 0, 0, &worst);
	five_calls("nvlink, right rates", &nvlink, TWO, 1, 1, &worst);
	five_calls("nvlink, host half", &nvlink, TWO, 2, 1, &worst);
	five_calls("nvlink, no rates", &nvlink, TWO, 0, 0, &worst);
	assert_true(worst < 1.10);
	/* of three fabrics that hinder each other there are more sets than calls */
	five_calls("pushes, right rates", &pushes, ALL, 1, 1, &three);
	five_calls("pushes, NCCL half", &pushes, ALL, 1, 2, &three);
	five_calls("pushes, no rates", &pushes, ALL, 0, 0, &three);
	assert_true(three < 1.30);
}

/*
 * As a program begins: of the host ferry-perf limits has measured copies, which sums may fall short of; of NCCL nothing
 * is known. Five sizes of three collectives, each from a cold start.
 */
static void a_cold_start_is_good_after_five_calls(void **state)
{
	(void)state;
	static const double sizes[] = {4, 16, 64, 256, 1024}, wrong[] = {0.8, 1, 1.3};
	static const struct {
		const char *name;
		enum ferry_collective collective;
		const struct fabrics *machine;
	} cases[] = {{"AllReduce, NVLink", FERRY_ALLREDUCE, &nvlink},
	             {"AllReduce, PCIe", FERRY_ALLREDUCE, &pcie},
	             {"ReduceScatter, PCIe", FERRY_REDUCESCATTER, &pcie},
	             {"Broadcast, PCIe", FERRY_BROADCAST, &pcie}};
	for (size_t which = 0; which < sizeof cases / sizeof *cases * 3; which++)
		for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
			struct program program;
			struct ferry_shares shares;
			const struct fabrics *machine = cases[which / 3].machine;
			program_start(&program, machine, TWO, sizes[i] * MIB);
			program.balancer.rules.paces[HOST] = machine->paces[HOST];
			program.balancer.rules.paces[HOST].rate *= wrong[which % 3];
			program.call.collective = cases[which / 3].collective;
			program.fabrics.noise = 0.03;
			program.fabrics.seed = (unsigned)(100 * which + i);
			for (int n = 0; n < 5; n++)
				program_call(&program, 0);
			double left = program_excess(&program, &shares);
			print_message("%-20s %5.0f MiB, host's rate known as %.1f of what it is: host %u of 1024, "
			              "%.3f of the best\n",
			              cases[which / 3].name, sizes[i], wrong[which % 3], shares.part[HOST], left);
			assert_true(left < 1.10);
		}
}

/* Where nothing is known, two fabrics that hinder each other need a probe. */
static void without_rates_it_gets_there_too(void **state)
{
	(void)state;
	static const double sizes[] = {1, 4, 16, 64};
	for (int i = 0; i < 4; i++)
		for (int all = 0; all < 1 + (i > 0); all++) { /* 1 MiB is too short to try two */
			struct program program;
			struct ferry_shares shares;
			program_start(&program, all ? &pushes : &pcie, all ? ALL : TWO, sizes[i] * MIB);
			program.fabrics.noise = 0.02;
			for (int n = 0; n < 12000; n++)
				program_call(&program, LATE);
			double left = program_excess(&program, &shares);
			print_message("%s, no rates, %4.0f MiB: after 12000 calls %u %u %u, %.3f of the best\n",
			              all ? "pushes" : "pcie", sizes[i], shares.part[0], shares.part[1], shares.part[2],
			              left);
			assert_true(left < (all ? 1.25 : 1.10)); /* of three a set may need a probe yet */
		}
}

static void a_new_size_starts_from_what_others_have_seen(void **state)
{
	(void)state;
	struct program program;
	struct ferry_shares shares;
	program_start(&program, &pcie, TWO, 4 * MIB);
	program.fabrics.noise = 0.02;
	static const double sizes[] = {4, 64, 512, 16};
	for (int i = 0; i < 4; i++) {
		program.call.bytes = (uint64_t)(sizes[i] * MIB);
		if (i == 3)
			break;
		for (int n = 0; n < 20; n++)
			program_call(&program, 0);
	}
	double first = program_excess(&program, &shares);
	print_message("16 MiB, never seen: host %u of 1024, %.3f of the best\n", shares.part[HOST], first);
	assert_true(first < 1.10);
}

/* ---- in the long run ---- */

/* Bytes and time of calls: of all, and of those that began in a burst. */
struct tally {
	double bytes, us, burst_bytes, burst_us;
};

static void count(struct tally *tally, double bytes, double us, bool burst)
{
	tally->bytes += bytes;
	tally->us += us;
	tally->burst_bytes += burst ? bytes : 0;
	tally->burst_us += burst ? us : 0;
}

static struct tally run_fixed(const struct fabrics *machine, double bytes, double seconds, uint32_t word)
{
	struct tally tally = {0};
	struct fabrics fabrics = *machine;
	struct ferry_shares shares = ferry_shares_unpack(word);
	double us[FERRY_NUM_FABRICS];
	for (fabrics.seed = 7; fabrics.now_us < seconds * 1e6;) {
		bool burst = fabrics_in_burst(&fabrics);
		count(&tally, bytes, fabrics_call(&fabrics, bytes, &shares, us), burst);
	}
	return tally;
}

static struct tally run_oracle(const struct fabrics *machine, double bytes, double seconds, uint32_t usable)
{
	struct tally tally = {0};
	struct fabrics fabrics = *machine;
	struct ferry_shares shares = {{0}};
	double us[FERRY_NUM_FABRICS];
	int since = 0, phase = -1;
	for (fabrics.seed = 7; fabrics.now_us < seconds * 1e6;) {
		bool burst = fabrics_in_burst(&fabrics);
		if (burst != phase || (fabrics.drift > 0 && ++since % 100 == 0))
			fabrics_best(&fabrics, bytes, usable, 128 << 10, &shares);
		phase = burst;
		count(&tally, bytes, fabrics_call(&fabrics, bytes, &shares, us), burst);
	}
	return tally;
}

static struct tally run_adaptive(struct program *program, double seconds)
{
	struct tally tally = {0};
	while (program->fabrics.now_us < seconds * 1e6) {
		bool burst = fabrics_in_burst(&program->fabrics);
		count(&tally, (double)program->call.bytes, program_call(program, LATE), burst);
	}
	return tally;
}

struct reached {
	/* adaptive over the oracle, over NCCL alone, over the shares that are best in calm, and that in bursts alone */
	double oracle, alone, calm, calm_in_bursts;
};

static double rate_of(const struct tally *tally)
{
	return tally->bytes / tally->us;
}

static struct reached run_long(const char *name, const struct fabrics *machine, double bytes, uint32_t usable,
                               double seconds)
{
	struct program program;
	struct ferry_shares best;
	struct fabrics calm = *machine;
	calm.burst_s = 0;
	fabrics_best(&calm, bytes, usable, 128 << 10, &best);
	program_start(&program, machine, usable, bytes);
	program_know(&program, 1, 1);
	program.name = name;
	if (getenv("FERRY_TEST_LOG"))
		program.log = fopen(getenv("FERRY_TEST_LOG"), "a");
	struct tally adaptive = run_adaptive(&program, seconds);
	if (program.log)
		fclose(program.log);
	struct tally fixed = run_fixed(machine, bytes, seconds, ferry_shares_pack(&best));
	struct tally oracle = run_oracle(machine, bytes, seconds, usable);
	struct tally alone = run_fixed(machine, bytes, seconds, FERRY_SHARES_NONE);
	struct reached reached = {rate_of(&adaptive) / rate_of(&oracle), rate_of(&adaptive) / rate_of(&alone),
	                          rate_of(&adaptive) / rate_of(&fixed), 1};
	if (fixed.burst_us > 0)
		reached.calm_in_bursts = adaptive.burst_bytes / adaptive.burst_us /
		                         (fixed.burst_bytes / fixed.burst_us);
	print_message("%-26s %5.0f MiB  GB/s: adaptive %6.1f  oracle %6.1f  best in calm %6.1f  NCCL %6.1f;  "
	              "%.3f of oracle, %.2f of calm's (in bursts %.2f), %.2f of NCCL\n",
	              name, bytes / MIB, rate_of(&adaptive) / GB_S, rate_of(&oracle) / GB_S, rate_of(&fixed) / GB_S,
	              rate_of(&alone) / GB_S, reached.oracle, reached.calm, reached.calm_in_bursts, reached.alone);
	return reached;
}

static void bursts_are_left_and_met_again_at_once(void **state)
{
	(void)state;
	static const double sizes[] = {64, 256, 1024};
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		struct fabrics machine = nvlink;
		struct reached reached;
		machine.noise = 0.03;
		machine.outliers = 0.002;
		machine.burst_s = 1;
		machine.burst[HOST] = 4;
		reached = run_long("nvlink, host in bursts", &machine, sizes[i] * MIB, TWO, 20);
		assert_true(reached.oracle > 0.95 && reached.calm_in_bursts > 1.3);
		machine = pcie;
		machine.noise = 0.03;
		machine.outliers = 0.002;
		machine.burst_s = 1;
		machine.burst[HOST] = 4;
		machine.burst[NCCL] = 1.2;
		reached = run_long("pcie, both in bursts", &machine, sizes[i] * MIB, TWO, 20);
		/* of 1 GiB a burst has 20 calls, and the balancer hears of its first when three are made */
		assert_true(reached.oracle > (i == 2 ? 0.88 : 0.95) && reached.calm_in_bursts > 1.3);
	}
}

static void noise_outliers_and_drift_cost_little(void **state)
{
	(void)state;
	struct fabrics machine = pcie;
	machine.noise = 0.06;
	assert_true(run_long("pcie, noise of 6%", &machine, 64 * MIB, TWO, 20).oracle > 0.96);
	machine.noise = 0.02;
	machine.outliers = 0.02;
	assert_true(run_long("pcie, outliers of 2%", &machine, 64 * MIB, TWO, 20).oracle > 0.96);
	machine.outliers = 0;
	machine.drift = 0.1;
	assert_true(run_long("pcie, host drifts 3 times", &machine, 64 * MIB, TWO, 20).oracle > 0.97);
	machine = pushes;
	machine.noise = 0.02;
	assert_true(run_long("pushes, three carriers", &machine, 64 * MIB, ALL, 5).oracle > 0.95);
}

static void it_is_never_slower_than_nccl_alone(void **state)
{
	(void)state;
	struct fabrics machine = pcie;
	machine.noise = 0.02;
	machine.together[NCCL][HOST] = machine.together[HOST][NCCL] = 2; /* worse together than either alone */
	assert_true(run_long("worse together", &machine, 64 * MIB, TWO, 20).alone > 0.98);
	machine = nvlink;
	machine.noise = 0.02;
	machine.paces[HOST].start_us = 400;
	assert_true(run_long("a late host", &machine, 1 * MIB, TWO, 2).alone > 0.98);
	assert_true(run_long("a late host", &machine, 4 * MIB, TWO, 2).alone > 0.98);
	machine.paces[HOST].rate = 1 * GB_S;
	assert_true(run_long("a slow host", &machine, 64 * MIB, TWO, 5).alone > 0.98);
}

/* What is left of blocks NCCL moves one by one: three alternatives, of which the best one is had. */
static void nccl_with_gaps_has_a_pace_of_its_own(void **state)
{
	(void)state;
	static const double gaps[] = {1.02, 1.15, 1.33, 2};
	for (size_t i = 0; i < sizeof gaps / sizeof *gaps; i++) {
		struct fabrics machine = nvlink;
		machine.noise = 0.02;
		machine.gaps = gaps[i];
		struct reached reached = run_long("nvlink, NCCL with gaps", &machine, 256 * MIB, TWO, 5);
		assert_true(reached.oracle > 0.97 && reached.alone > 0.98);
		machine = pcie;
		machine.noise = 0.02;
		machine.gaps = gaps[i];
		reached = run_long("pcie, NCCL with gaps", &machine, 64 * MIB, TWO, 10);
		assert_true(reached.oracle > 0.97 && reached.alone > 0.98);
	}
}

static void what_fell_to_zero_is_tried_again(void **state)
{
	(void)state;
	struct program program;
	struct ferry_shares shares;
	program_start(&program, &pcie, TWO, 4 * MIB);
	program_know(&program, 1, 1);
	program.fabrics.noise = 0.02;
	for (int n = 0; n < 50; n++)
		program_call(&program, LATE);
	program_excess(&program, &shares);
	assert_true(shares.part[HOST] > 100);
	program.fabrics.paces[HOST].rate /= 100; /* gone */
	for (int n = 0; n < 50; n++)
		program_call(&program, LATE);
	program_excess(&program, &shares);
	assert_int_equal(shares.part[HOST], 0);
	program.fabrics.paces[HOST].rate *= 100;
	int n = 0;
	for (; n < 4000 && (program_excess(&program, &shares), shares.part[HOST] == 0); n++)
		program_call(&program, LATE);
	print_message("the host is back, and is used after %d calls\n", n);
	assert_true(n < 2000);
}

/* As while its buffers are not known to the routers: then a call is NCCL's, whatever a rank proposes. */
static void a_probe_is_proposed_until_it_is_made(void **state)
{
	(void)state;
	struct program program;
	program_start(&program, &nvlink, TWO, 64 * MIB);
	program_know(&program, 1, 1);
	for (int n = 0; n < 300; n++)
		program_call(&program, 0);
	struct ferry_balancer_line *line = ferry_balancer_line(&program.balancer, &program.call);
	uint64_t n = program.n;
	assert_true(line->probe_every > 1 && line->probe != line->word);
	while (ferry_balancer_propose(&program.balancer, &program.call, n, 0) == line->word)
		assert_true(n++ < 1000000);
	for (int i = 0; i < 10; i++) {
		assert_int_equal(ferry_balancer_propose(&program.balancer, &program.call, ++n, 0), line->probe);
		assert_true(ferry_balancer_measures(&program.balancer, &program.call, n));
	}
	assert_int_equal(ferry_balancer_propose(&program.balancer, &program.call, ++n, 1), line->word);
	ferry_balancer_probed(line);
	while (ferry_balancer_picks(++n, line->probe_every))
		;
	assert_int_equal(ferry_balancer_propose(&program.balancer, &program.call, n, 0), line->word);
}

static void measuring_costs_a_thousandth_when_settled(void **state)
{
	(void)state;
	static const double sizes[] = {1, 16, 256};
	for (int i = 0; i < 3; i++) {
		struct program program;
		int measured = 0;
		program_start(&program, &pcie, TWO, sizes[i] * MIB);
		program_know(&program, 1, 1);
		program.fabrics.noise = 0.01;
		for (int n = 0; n < 200; n++)
			program_call(&program, LATE);
		double began = program.fabrics.now_us;
		for (int n = 0; n < 1000; n++) {
			measured += ferry_balancer_measures(&program.balancer, &program.call, program.n);
			program_call(&program, LATE);
		}
		double cost = measured * program.balancer.rules.measure_us / (program.fabrics.now_us - began);
		print_message("%4.0f MiB: %d of 1000 calls measured, %.3f%% of their time\n", sizes[i], measured,
		              cost * 100);
		assert_true(measured >= 10 && cost < 0.0015);
	}
}

static void pinned_shares_stay_and_small_calls_are_nccls(void **state)
{
	(void)state;
	struct ferry_balancer balancer;
	struct ferry_balancer_rules rules = ferry_balancer_default_rules();
	struct ferry_balancer_call call = {FERRY_ALLGATHER, ferryInt8, 64 << 20, false};
	rules.pinned = true;
	rules.pins = (struct ferry_shares){{102, 0, 922}};
	ferry_balancer_init(&balancer, &rules);
	for (uint64_t n = 0; n < 1000; n++) {
		double us[FERRY_NUM_FABRICS] = {1000, 0, 1};
		uint32_t word = ferry_balancer_propose(&balancer, &call, n, 0);
		assert_int_equal(word, ferry_shares_pack(&rules.pins));
		assert_false(ferry_balancer_measures(&balancer, &call, n));
		ferry_balancer_feed(&balancer, &call, word, us);
	}
	call.bytes = (1 << 20) - 1;
	assert_int_equal(ferry_balancer_propose(&balancer, &call, 0, 0), FERRY_SHARES_NONE);
}

/* Whatever it is told, its shares are shares. */
static void nonsense_does_no_harm(void **state)
{
	(void)state;
	struct ferry_balancer balancer;
	struct ferry_balancer_rules rules = ferry_balancer_default_rules();
	unsigned seed = 3;
	static const double values[] = {0, -1, 1e-30, 1, 1e30, NAN, INFINITY, -INFINITY};
	rules.usable = ALL;
	ferry_balancer_init(&balancer, &rules);
	for (uint64_t n = 0; n < 200000; n++) {
		struct ferry_balancer_call call = {(enum ferry_collective)(rand_r(&seed) % FERRY_NUM_COLLECTIVES),
		                                   (ferryDataType_t)(rand_r(&seed) % 12),
		                                   (uint64_t)rand_r(&seed) << rand_r(&seed) % 24, false};
		double us[FERRY_NUM_FABRICS];
		for (int c = 0; c < FERRY_NUM_FABRICS; c++)
			us[c] = values[rand_r(&seed) % 8];
		uint32_t word = ferry_balancer_propose(&balancer, &call, n, 0);
		struct ferry_shares shares = ferry_shares_unpack(word);
		assert_int_equal(shares.part[0] + shares.part[1] + shares.part[2], FERRY_SHARES_WHOLE);
		assert_int_equal(ferry_shares_pack(&shares), word);
		ferry_balancer_feed(&balancer, &call, rand_r(&seed) & 0x3fffff, us);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(five_calls_are_enough),
	        cmocka_unit_test(a_cold_start_is_good_after_five_calls),
	        cmocka_unit_test(without_rates_it_gets_there_too),
	        cmocka_unit_test(a_new_size_starts_from_what_others_have_seen),
	        cmocka_unit_test(bursts_are_left_and_met_again_at_once),
	        cmocka_unit_test(noise_outliers_and_drift_cost_little),
	        cmocka_unit_test(it_is_never_slower_than_nccl_alone),
	        cmocka_unit_test(nccl_with_gaps_has_a_pace_of_its_own),
	        cmocka_unit_test(what_fell_to_zero_is_tried_again),
	        cmocka_unit_test(a_probe_is_proposed_until_it_is_made),
	        cmocka_unit_test(measuring_costs_a_thousandth_when_settled),
	        cmocka_unit_test(pinned_shares_stay_and_small_calls_are_nccls),
	        cmocka_unit_test(nonsense_does_no_harm),
	};
	return cmocka_run_group_tests_name("balancer", tests, NULL, NULL);
}
