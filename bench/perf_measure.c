/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One row: a checked call, warm-up, then rounds of samples: Ferry's, then one of each setting of the other library. Before
 * each sample the ranks meet in a small AllReduce of Ferry's in host memory, which sleeps while it waits, so that no side is
 * timed beside another's busy waiting. A sample's time is that of its slowest rank.
 *
 * On GPUs a sample is as many calls as take about 4 ms, put into the stream back to back and waited for once; before it go calls
 * that are not timed: the GPU and the caches have just worked for another process, cores that had nothing to do may have slowed,
 * and ranks that a meeting has woken start unevenly. About 20 ms of them, and two at least, as libraries have two sets of
 * buffers that calls take turns with. On the host a sample is one call, as the peer's calls block.
 *
 * With --pause a sample is one call after so many milliseconds in which the callers compute: what an application sees whose calls
 * do not follow one another at once.
 */
#include "bench/limits.h"
#include "bench/perf_nccl.h"
#include "bench/perf_work.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST_ITERATIONS 1000
#define MOST_CALLS      1000
#define SIDE_US         250000.0 /* how long the samples of one side take in a row's half, about */
#define SAMPLE_US       4000.0   /* on GPUs */
#define LEAD_US         20000.0
#define LEAD_CALLS      2
#define TRIAL_ROUNDS    3        /* after so many rounds, settings a third slower than the best are left out */

/* A row's samples: of Ferry, then of each of the other library's settings. Microseconds per call, of the slowest rank. */
static double samples[1 + PERF_MOST_SETTINGS][MOST_ITERATIONS];
/* Of Ferry's samples: CPU time per call over all ranks, with and without the calling threads. */
static double cpu_us[MOST_ITERATIONS], engine_us[MOST_ITERATIONS];

double perf_now_us(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

void perf_pause(uint32_t us)
{
	for (double until = perf_now_us() + us; us && perf_now_us() < until;)
		;
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

struct perf_timing perf_summarize(double *values, size_t count)
{
	qsort(values, count, sizeof *values, ascending);
	return (struct perf_timing){values[count / 2], values[count / 4], values[count * 3 / 4]};
}

unsigned perf_others(const struct perf_run *run)
{
	return run->nccl ? run->nccl->count : run->peer ? 1 : 0;
}

bool perf_over_ranks(struct perf_run *run, double *values, size_t count, ferryRedOp_t op)
{
	ferryResult_t result = ferryAllReduce(values, values, count, ferryFloat64, op, run->control, NULL);
	if (!result)
		result = ferryStreamSynchronize(NULL);
	if (result)
		fprintf(stderr, "ferry-perf: rank %d: meeting the other ranks: %s: %s\n", run->rank,
		        ferryGetErrorString(result), ferryGetLastError(run->control));
	return result == ferrySuccess;
}

static bool meet(struct perf_run *run)
{
	double nothing = 0;
	return perf_over_ranks(run, &nothing, 1, ferryMax);
}

/* Whether the setting is still in the run; the same on all ranks. */
static bool runs(const struct perf_run *run, unsigned other)
{
	return !run->nccl || !*run->nccl->settings[other].refused;
}

/* ---- one sample ---- */

static bool sample_ferry(struct perf_run *run, const struct perf_work *work, const struct perf_sampling *how, uint32_t round)
{
	struct perf_cpu before, after;
	double us;
	if (!meet(run) || (how->lead && !perf_work_run(run, work, how->lead, &us)))
		return false;
	perf_pause(how->pause_us);
	perf_cpu_read(&run->routers, &before);
	if (!perf_work_run(run, work, how->calls, &samples[0][round]))
		return false;
	perf_cpu_read(&run->routers, &after);
	double process = after.process_us - before.process_us, caller = after.caller_us - before.caller_us;
	double routers = run->rank ? 0 : after.routers_us - before.routers_us; /* one rank counts what all share */
	cpu_us[round] = (process + routers) / how->calls;
	engine_us[round] = (process - caller + routers) / how->calls;
	return true;
}

static bool sample_other(struct perf_run *run, const struct perf_work *work, unsigned other, bool first,
                         const struct perf_sampling *how, double *us, enum perf_nccl_result *result)
{
	*result = PERF_NCCL_DONE;
	if (!meet(run))
		return false;
	if (run->nccl) {
		*result = perf_nccl_run(run, other, &work->call, first, how, us);
		return *result != PERF_NCCL_BROKEN;
	}
	perf_pause(how->pause_us);
	double before = perf_now_us();
	run->peer->run(&work->call);
	*us = perf_now_us() - before;
	return true;
}

/* In the rounds a refusal is a failure: the setting has done this very work in the warm-up. */
static bool sample_all(struct perf_run *run, const struct perf_work *work, const struct perf_sampling *how, uint32_t round,
                       const bool *left_out)
{
	enum perf_nccl_result result;
	if (!sample_ferry(run, work, how, round))
		return false;
	for (unsigned other = 0; other < perf_others(run); other++) {
		if (left_out[other] || !runs(run, other))
			continue;
		if (!sample_other(run, work, other, false, how, &samples[1 + other][round], &result))
			return false;
		if (result == PERF_NCCL_REFUSED) {
			fprintf(stderr, "ferry-perf: rank %d: NCCL (%s) failed: %s\n", run->rank,
			        run->nccl->settings[other].name, run->nccl->settings[other].refused);
			run->failed_alone = true;
			return false;
		}
	}
	return true;
}

/* ---- warm-up ---- */

/* One call of every side; settings that refuse are taken out. us: per side, of the slowest rank; 0: it does not run. */
static bool warm_up(struct perf_run *run, const struct perf_work *work, const struct perf_sampling *how, double *us)
{
	unsigned others = perf_others(run);
	double refused[PERF_MOST_SETTINGS] = {0};
	memset(us, 0, (1 + others) * sizeof *us);
	if (!sample_ferry(run, work, how, 0))
		return false;
	us[0] = samples[0][0];
	for (unsigned other = 0; other < others; other++) {
		enum perf_nccl_result result;
		if (!runs(run, other))
			continue;
		if (!sample_other(run, work, other, true, how, &us[1 + other], &result))
			return false;
		refused[other] = result == PERF_NCCL_REFUSED;
		/* At once: the other ranks' children may hang in the call, and their ranks in waiting for them. */
		if (run->nccl && !perf_over_ranks(run, &refused[other], 1, ferryMax))
			return false;
		if (refused[other] > 0) {
			perf_nccl_drop(run, other);
			us[1 + other] = 0;
		}
	}
	return perf_over_ranks(run, us, 1 + others, ferryMax);
}

static double fastest_of(const double *us, unsigned sides)
{
	double fastest = INFINITY;
	for (unsigned side = 0; side < sides; side++)
		if (us[side] > 0 && us[side] < fastest)
			fastest = us[side];
	return fastest < 0.1 ? 0.1 : fastest;
}

static uint32_t between(double value, double least, double most)
{
	return (uint32_t)(value < least ? least : value > most ? most : ceil(value));
}

/* Enough samples for a good median, few enough for a row to take about half a second; how many calls make one. */
static bool choose_sampling(struct perf_run *run, const struct perf_work *work, struct perf_sampling *chosen)
{
	double us[1 + PERF_MOST_SETTINGS], slowest = 1;
	unsigned sides = 1 + perf_others(run);
	bool gpu = !strcmp(run->memory.kind, "cuda");
	*chosen = (struct perf_sampling){.calls = 1, .pause_us = run->options->pause_us};
	for (uint32_t i = 0; i < run->options->warmups; i++)
		if (!warm_up(run, work, chosen, us))
			return false;
	if (gpu) {
		/* Single calls are longer than calls back to back: guess by the former, then measure the latter. */
		chosen->calls = between(SAMPLE_US / fastest_of(us, sides), 1, MOST_CALLS);
		if (chosen->calls > 1) {
			if (!warm_up(run, work, chosen, us))
				return false;
			chosen->calls = between(SAMPLE_US / fastest_of(us, sides), 1, MOST_CALLS);
		}
		chosen->lead = between(LEAD_US / fastest_of(us, sides), LEAD_CALLS, MOST_CALLS);
		if (chosen->pause_us)
			chosen->calls = 1;
	}
	for (unsigned side = 0; side < sides; side++) {
		bool stays = side == 0 || !run->nccl || us[side] <= 2 * us[0]; /* about: slow settings are left out soon */
		slowest = stays && us[side] > slowest ? us[side] : slowest;
	}
	chosen->rounds = run->options->iterations
	                         ? run->options->iterations
	                         : between(floor(SIDE_US / (slowest * chosen->calls)), gpu ? 20 : 7, gpu ? 50 : 200);
	return true;
}

/* ---- the row ---- */

/* After the trial rounds: marks the settings that cannot be the best. Works on maxima over ranks, so all ranks agree. */
static bool leave_out(struct perf_run *run, bool *left_out)
{
	double medians[PERF_MOST_SETTINGS] = {0};
	unsigned others = perf_others(run);
	for (unsigned other = 0; other < others; other++) {
		double copy[TRIAL_ROUNDS];
		if (!runs(run, other))
			continue;
		memcpy(copy, samples[1 + other], sizeof copy);
		if (!perf_over_ranks(run, copy, TRIAL_ROUNDS, ferryMax))
			return false;
		medians[other] = perf_summarize(copy, TRIAL_ROUNDS).median_us;
	}
	double best = fastest_of(medians, others);
	for (unsigned other = 0; other < others; other++)
		left_out[other] = medians[other] > 1.33 * best;
	return true;
}

static bool sample_rounds(struct perf_run *run, const struct perf_work *work, const struct perf_sampling *how,
                          struct perf_row *row)
{
	bool left_out[PERF_MOST_SETTINGS] = {false};
	for (uint32_t round = 0; round < how->rounds; round++) {
		if (run->nccl && round == TRIAL_ROUNDS && !leave_out(run, left_out))
			return false;
		if (!sample_all(run, work, how, round, left_out))
			return false;
		for (unsigned other = 0; other < perf_others(run); other++)
			row->other_samples[other] += runs(run, other) && !left_out[other];
		perf_progress(run, row->bytes, "samples", round + 1, how->rounds);
	}
	row->samples = how->rounds;
	row->calls = how->calls;
	return true;
}

/* Turns the samples into the row's figures. */
static bool summarize(struct perf_run *run, struct perf_row *row)
{
	uint32_t rounds = row->samples;
	if (!perf_over_ranks(run, samples[0], rounds, ferryMax) || !perf_over_ranks(run, cpu_us, rounds, ferrySum) ||
	    !perf_over_ranks(run, engine_us, rounds, ferrySum))
		return false;
	for (uint32_t i = 0; i < rounds; i++) {
		cpu_us[i] /= samples[0][i];
		engine_us[i] /= samples[0][i];
	}
	row->cores = perf_summarize(cpu_us, rounds).median_us;
	row->engine_cores = perf_summarize(engine_us, rounds).median_us;
	row->time = perf_summarize(samples[0], rounds);
	for (unsigned other = 0; other < perf_others(run); other++) {
		if (!row->other_samples[other])
			continue;
		if (!perf_over_ranks(run, samples[1 + other], row->other_samples[other], ferryMax))
			return false;
		row->others[other] = perf_summarize(samples[1 + other], row->other_samples[other]);
		if (row->best < 0 || row->others[other].median_us < row->others[row->best].median_us)
			row->best = (int)other;
	}
	return true;
}

bool perf_measure(struct perf_run *run, uint64_t bytes, bool in_place, struct perf_row *row)
{
	static struct perf_work work;
	struct perf_sampling how;
	struct perf_work_done before = {0}, after = {0}; /* one rank asks for all */
	perf_work_describe(run, bytes, in_place, &work);
	*row = (struct perf_row){.bytes = perf_work_bytes(&work.trial),
	                         .count = work.trial.count,
	                         .in_place = in_place,
	                         .best = -1,
	                         .wrong = -1};
	if (run->options->check) {
		perf_progress(run, row->bytes, "checked calls", 0, 1);
		if (!perf_work_check(run, &work, &row->wrong))
			return false;
	}
	if (!choose_sampling(run, &work, &how))
		return false;
	if (!run->rank)
		perf_work_done_read(&before);
	if (!sample_rounds(run, &work, &how, row))
		return false;
	if (!run->rank)
		perf_work_done_read(&after);
	row->workers = perf_workers_at_work(&before, &after);
	if (!summarize(run, row))
		return false;
	row->algbw = (double)row->bytes / row->time.median_us / 1e3;
	row->busbw = row->algbw * perf_bus_factor(work.trial.collective, run->nranks);
	if (!strcmp(run->memory.kind, "cuda"))
		row->limit_algbw = perf_limit_algbw(work.trial.collective, run->nranks, row->bytes);
	return true;
}
