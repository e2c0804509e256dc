/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of the balancer to programs that run ahead of what their calls take, as nccl-tests does: of each size, out
 * of place and in place, one call that is waited for, 20 that are enqueued together, and one more. Carriers are those
 * of two H200s as measured with nccl-tests, with their noise; the first call after a wait finds lanes asleep.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "orchestrator/balance/balancer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB  ((double)(1 << 20))
#define GB_S 1000.0 /* bytes per microsecond */
#define HOST FERRY_FABRIC_HOST
#define NCCL FERRY_FABRIC_NCCL
#define TWO  ((1u << HOST) | (1u << NCCL))

#define SIZES  6
#define BATCH  20
#define JOBS   20 /* of other noise; the median of what they reach is looked at */
#define PLACES 2

struct machine {
	const char *name;
	double nccl[SIZES];       /* GB/s from 1 MiB on, by factors of 4 */
	struct ferry_pace host;
	double slow[2];           /* NCCL beside the host: so much slower, at least and at most */
	double host_noise, nccl_noise;
	double asleep_us;         /* more of the host's part, behind a wait */
	double divided_us;        /* more of each call that is divided */
};

static const struct machine nvlink = {.name = "NVLink",
                                      .nccl = {54, 119, 214, 269, 300, 329},
                                      .host = {90, 40 * GB_S},
                                      .slow = {0.02, 0.06},
                                      .host_noise = 0.2,
                                      .nccl_noise = 0.03,
                                      .asleep_us = 100,
                                      .divided_us = 2};
static const struct machine pcie = {.name = "PCIe",
                                    .nccl = {16, 25, 27, 27, 27, 27},
                                    .host = {60, 24 * GB_S},
                                    .slow = {0.2, 0.3},
                                    .host_noise = 0.1,
                                    .nccl_noise = 0.03,
                                    .asleep_us = 100,
                                    .divided_us = 2};
static const struct machine useless = {.name = "slow host",
                                       .nccl = {54, 119, 214, 269, 300, 329},
                                       .host = {150, 10 * GB_S},
                                       .slow = {0.02, 0.06},
                                       .host_noise = 0.2,
                                       .nccl_noise = 0.03,
                                       .asleep_us = 100,
                                       .divided_us = 2};

static double uniform(unsigned *seed, double from, double to)
{
	return from + (to - from) * (rand_r(seed) + 0.5) / (RAND_MAX + 1.0);
}

/* Between the sizes, and outside, by the power that fits the two next ones. */
static double nccl_us(const struct machine *machine, double bytes)
{
	double at = log2(bytes / MIB) / 2;
	int i = (int)fmin(fmax(floor(at), 0), SIZES - 2);
	double low = exp2(2 * i) * MIB / machine->nccl[i] / GB_S,
	       high = exp2(2 * i + 2) * MIB / machine->nccl[i + 1] / GB_S;
	return bytes > 0 ? low * pow(high / low, at - i) : 0;
}

/* seed NULL: without noise. */
static double call_us(const struct machine *machine, double bytes, uint32_t word, bool waited, unsigned *seed,
                      double us[FERRY_NUM_FABRICS])
{
	struct ferry_shares shares = ferry_shares_unpack(word);
	double host = bytes * shares.part[HOST] / FERRY_SHARES_WHOLE,
	       middle = (machine->slow[0] + machine->slow[1]) / 2;
	us[FERRY_FABRIC_PEER] = 0;
	us[HOST] = ferry_pace_us(&machine->host, host);
	us[NCCL] = nccl_us(machine, bytes - host);
	/* as long as the host works */
	us[NCCL] += fmin(us[HOST], us[NCCL]) * (seed ? uniform(seed, machine->slow[0], machine->slow[1]) : middle);
	us[HOST] *= seed ? uniform(seed, 1 - machine->host_noise, 1 + machine->host_noise) : 1;
	us[NCCL] *= seed ? uniform(seed, 1 - machine->nccl_noise, 1 + machine->nccl_noise) : 1;
	us[HOST] += waited && host > 0 ? machine->asleep_us : 0;
	return fmax(us[HOST], us[NCCL]) + (host > 0 ? machine->divided_us : 0);
}

static double best_us(const struct machine *machine, double bytes, uint32_t *word)
{
	double least = INFINITY, us[FERRY_NUM_FABRICS];
	for (int part = 0; part <= 1000; part += 2) {
		struct ferry_shares shares = {{(uint16_t)part, 0, (uint16_t)((int)FERRY_SHARES_WHOLE - part)}};
		double took = call_us(machine, bytes, ferry_shares_pack(&shares), false, NULL, us);
		if ((part && bytes * part / FERRY_SHARES_WHOLE < 128 << 10) || took >= least)
			continue;
		least = took;
		*word = ferry_shares_pack(&shares);
	}
	return least;
}

struct program {
	const struct machine *machine;
	struct ferry_balancer balancer;
	unsigned seed;
	uint64_t n;
};

/* So many calls enqueued at once, then waited for. Returns the mean of what they take. */
static double enqueue(struct program *program, double bytes, int calls, bool waited)
{
	struct ferry_balancer_call call = {FERRY_ALLREDUCE, ferryFloat32, (uint64_t)bytes, false};
	double us[BATCH][FERRY_NUM_FABRICS], sum = 0;
	bool measured[BATCH];
	uint32_t words[BATCH], trying = 0;
	for (int i = 0; i < calls; i++) {
		words[i] = ferry_balancer_propose(&program->balancer, &call, program->n, trying);
		trying += words[i] != ferry_balancer_line(&program->balancer, &call)->word;
		measured[i] = ferry_balancer_measures(&program->balancer, &call, program->n++);
		sum += call_us(program->machine, bytes, words[i], waited && !i, &program->seed, us[i]);
	}
	for (int i = 0; i < calls; i++)
		if (measured[i])
			ferry_balancer_feed(&program->balancer, &call, words[i], us[i]);
	return sum / calls;
}

/* What nccl-tests would print: the time of the 20, by size and place. */
static void run_job(struct program *program, double taken[SIZES][PLACES])
{
	enqueue(program, 1024 * MIB, 5, true);
	enqueue(program, 1 * MIB, 5, false);
	for (int size = 0; size < SIZES; size++)
		for (int place = 0; place < PLACES; place++) {
			double bytes = exp2(2 * size) * MIB;
			enqueue(program, bytes, 1, true);
			taken[size][place] = enqueue(program, bytes, BATCH, false);
			enqueue(program, bytes, 1, false);
		}
}

static void start(struct program *program, const struct machine *machine, unsigned seed, const struct ferry_pace *host)
{
	struct ferry_balancer_rules rules = ferry_balancer_default_rules();
	memset(program, 0, sizeof *program);
	program->machine = machine;
	program->seed = seed;
	rules.usable = TWO;
	rules.least_bytes = 256 << 10;
	ferry_balancer_init(&program->balancer, &rules);
	if (host)
		program->balancer.rules.paces[HOST] = *host;
}

/* As by way of the router's table, which keeps courses alone. */
static void start_next(struct program *program, const struct program *before)
{
	struct ferry_share_course learned;
	start(program, before->machine, before->seed, NULL);
	ferry_balancer_record(&before->balancer, &before->balancer.lines[0], &learned);
	ferry_balancer_adopt(&program->balancer, &learned);
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* NCCL alone's time over it, the median of all jobs, and the least of nine tenths. */
struct gain {
	double median, low;
};

static struct gain gain_of(const struct machine *machine, double (*taken)[SIZES][PLACES], int size, int place)
{
	double gains[JOBS], us[FERRY_NUM_FABRICS];
	double alone = call_us(machine, exp2(2 * size) * MIB, FERRY_SHARES_NONE, false, NULL, us);
	for (int job = 0; job < JOBS; job++)
		gains[job] = alone / taken[job][size][place];
	qsort(gains, JOBS, sizeof *gains, compare);
	return (struct gain){gains[JOBS / 2], gains[JOBS / 10]};
}

static void print_gains(const struct machine *machine, const char *which, double (*taken)[SIZES][PLACES],
                        struct gain gains[SIZES][PLACES])
{
	double us[FERRY_NUM_FABRICS];
	for (int size = 0; size < SIZES; size++) {
		double bytes = exp2(2 * size) * MIB,
		       alone = call_us(machine, bytes, FERRY_SHARES_NONE, false, NULL, us);
		uint32_t word;
		double best = best_us(machine, bytes, &word);
		for (int place = 0; place < PLACES; place++)
			gains[size][place] = gain_of(machine, taken, size, place);
		print_message("%-9s %-11s %5.0f MiB  best %.3f (host %3u)   median %.3f %.3f   nine of ten %.3f %.3f\n",
		              machine->name, which, bytes / MIB, alone / best, ferry_shares_unpack(word).part[HOST],
		              gains[size][0].median, gains[size][1].median, gains[size][0].low, gains[size][1].low);
	}
}

static void run_jobs(const struct machine *machine, const struct ferry_pace *host,
                     struct gain gains[2][SIZES][PLACES])
{
	static double taken[2][JOBS][SIZES][PLACES];
	for (unsigned job = 0; job < JOBS; job++) {
		struct program first, second;
		start(&first, machine, 1 + job * 7919, host);
		run_job(&first, taken[0][job]);
		start_next(&second, &first);
		run_job(&second, taken[1][job]);
	}
	print_gains(machine, host ? "known, 1st" : "first", taken[0], gains[0]);
	print_gains(machine, host ? "known, 2nd" : "second", taken[1], gains[1]);
}

/* What fixed shares can gain at most; 0: nothing. */
static double to_gain(const struct machine *machine, int size)
{
	double us[FERRY_NUM_FABRICS], bytes = exp2(2 * size) * MIB;
	uint32_t word;
	return call_us(machine, bytes, FERRY_SHARES_NONE, false, NULL, us) / best_us(machine, bytes, &word) - 1;
}

static void check(const struct machine *machine, const struct gain gains[SIZES][PLACES], double least, double part)
{
	for (int size = 0; size < SIZES; size++)
		for (int place = 0; place < PLACES; place++) {
			double can = to_gain(machine, size);
			assert_true(gains[size][place].median > least && gains[size][place].low > least - 0.06);
			/* a gain of less than 5% is within what a trial costs, and its doubt */
			assert_true(can < 0.05 || gains[size][place].median > 1 + part * can);
		}
}

/* The host's parts vary by a fifth, and NCCL is slower beside them: the best fixed shares would not gain all either. */
static void the_second_job_gains_what_there_is_to_gain(void **state)
{
	(void)state;
	struct gain gains[2][SIZES][PLACES];
	run_jobs(&nvlink, NULL, gains);
	check(&nvlink, gains[1], 0.99, 0.65);
	run_jobs(&pcie, NULL, gains);
	check(&pcie, gains[1], 0.98, 0.65);
}

static void a_cold_job_loses_nothing_and_knows_the_largest_size_in_its_second_batch(void **state)
{
	(void)state;
	static const struct ferry_pace measured = {40, 45 * GB_S};
	struct gain gains[2][SIZES][PLACES];
	for (int known = 0; known < 2; known++) {
		run_jobs(&nvlink, known ? &measured : NULL, gains);
		/* paces of copies are not those of sums */
		check(&nvlink, gains[0], known ? 0.96 : 0.985, -1);
		assert_true(gains[0][5][1].median > 1.03);
	}
	run_jobs(&pcie, NULL, gains);
	check(&pcie, gains[0], 0.98, -1);
	assert_true(gains[0][3][0].median > 1.4 && gains[0][5][1].median > 1.4);
}

static void a_host_that_is_no_use_costs_little(void **state)
{
	(void)state;
	struct gain gains[2][SIZES][PLACES];
	run_jobs(&useless, NULL, gains);
	check(&useless, gains[0], 0.97, -1);
	check(&useless, gains[1], 0.985, -1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(the_second_job_gains_what_there_is_to_gain),
	        cmocka_unit_test(a_cold_job_loses_nothing_and_knows_the_largest_size_in_its_second_batch),
	        cmocka_unit_test(a_host_that_is_no_use_costs_little),
	};
	return cmocka_run_group_tests_name("run_ahead", tests, NULL, NULL);
}
