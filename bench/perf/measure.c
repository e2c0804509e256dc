/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One row: a checked call, warm-up, then rounds of samples: Ferry's, then one of each setting of the other library.
 * Before each sample the ranks meet in a small AllReduce of Ferry's in host memory, which sleeps while it waits, so
 * that no side is timed beside another's busy waiting. A sample's time is that of its slowest rank.
 *
 * A sample is as many calls, one after another, as take about 4 ms on GPUs and 10 ms on the host. Before it go calls
 * that are not timed: ranks that a meeting has woken start unevenly, maybe on one CPU until the scheduler moves one
 * of them. On the host they take about 10 ms too; on GPUs about 20 ms, because the GPU and the caches have just worked
 * for another process, and two at least, as libraries have two sets of buffers that calls take turns with. On GPUs
 * calls are put into the stream and waited for once; on the host each is waited for before the next, as MPI's block.
 *
 * With --pause a sample is one call after so many milliseconds in which the callers compute: what an application sees
 * that computes between its calls.
 */
#include "bench/perf/measure.h"

#include "bench/peers/peers.h"
#include "bench/perf/table.h"
#include "bench/perf/work.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MOST_ITERATIONS 1000
#define MOST_CALLS      1000
#define SIDE_US         250000.0 /* how long the samples of one side take in a row's half, about */
#define GPU_SAMPLE_US   4000.0   /* of the fastest side */
#define HOST_SAMPLE_US  10000.0
#define MOST_SAMPLE_US  50000.0  /* of a slow side, where a sample has more than one call */
#define GPU_LEAD_US     20000.0
#define LEAD_CALLS      2
#define TRIAL_ROUNDS    3        /* after so many rounds, settings a third slower than the best are left out */

/* A row's samples: of Ferry, then of each of the other library's settings. Microseconds per call, of the slowest rank.
 */
static double samples[1 + PEERS_MOST_SETTINGS][MOST_ITERATIONS];

static bool meet(struct perf_run *run)
{
	double nothing = 0;
	return bench_rank_over(&run->rank, &nothing, 1, ferryMax);
}

/* ---- one sample ---- */

static bool sample_ferry(struct perf_run *run, const struct ferry_trial_call *work, const struct peer_sampling *how,
                         uint32_t round)
{
	double us;
	if (!meet(run) || (how->lead && !perf_work_run(run, work, how->lead, &us)))
		return false;
	sample_pause(how->pause_us);
	return perf_work_run(run, work, how->calls, &samples[0][round]);
}

/* In the rounds a refusal is a failure: the setting has done the same work in the warm-up. */
static bool sample_all(struct perf_run *run, const struct ferry_trial_call *work, const struct peer_sampling *how,
                       uint32_t round, const bool *left_out)
{
	struct peers *peers = &run->peers;
	if (!sample_ferry(run, work, how, round))
		return false;
	for (unsigned i = 0; i < peers->count; i++) {
		if (left_out[i] || !peers_runs(peers, i))
			continue;
		if (!meet(run))
			return false;
		enum peer_result result = peers_run(peers, &run->rank, i, work, false, how, &samples[1 + i][round]);
		if (result == PEER_DONE)
			continue;
		if (result == PEER_REFUSED)
			fprintf(stderr, "ferry-perf: rank %d: NCCL (%s) failed: %s\n", run->rank.rank,
			        peers->settings[i].name, peers->settings[i].refused);
		run->rank.failed_alone = true;
		return false;
	}
	return true;
}

/* ---- warm-up ---- */

/* One call of every side; settings that refuse are taken out. us: per side, of the slowest rank; 0: it does not run. */
static bool warm_up(struct perf_run *run, const struct ferry_trial_call *work, const struct peer_sampling *how,
                    double *us)
{
	struct peers *peers = &run->peers;
	memset(us, 0, (1 + peers->count) * sizeof *us);
	if (!sample_ferry(run, work, how, 0))
		return false;
	us[0] = samples[0][0];
	for (unsigned i = 0; i < peers->count; i++) {
		if (!peers_runs(peers, i))
			continue;
		if (!meet(run))
			return false;
		enum peer_result result = peers_run(peers, &run->rank, i, work, true, how, &us[1 + i]);
		double refused = result == PEER_REFUSED;
		/* Agreed at once: the other ranks' children may hang in the call, and their ranks wait for them. */
		if (result == PEER_BROKEN || (peers->nccl && !bench_rank_over(&run->rank, &refused, 1, ferryMax)))
			return false;
		if (refused > 0) {
			peers_drop(peers, i);
			us[1 + i] = 0;
		}
	}
	return bench_rank_over(&run->rank, us, 1 + peers->count, ferryMax);
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

/* The slowest side's time; settings of NCCL that are much slower than Ferry are left out soon, and do not count. */
static double slowest_of(const struct perf_run *run, const double *us)
{
	double slowest = 1;
	for (unsigned side = 0; side < 1 + run->peers.count; side++) {
		bool stays = side == 0 || !run->peers.nccl || us[side] <= 2 * us[0];
		slowest = stays && us[side] > slowest ? us[side] : slowest;
	}
	return slowest;
}

static uint32_t calls_of_sample(const struct perf_run *run, const double *us)
{
	double sample_us = run->rank.buffers.cuda ? GPU_SAMPLE_US : HOST_SAMPLE_US;
	double calls = sample_us / fastest_of(us, 1 + run->peers.count), most = MOST_SAMPLE_US / slowest_of(run, us);
	return between(calls < most ? calls : most, 1, MOST_CALLS);
}

/* Enough samples for a good median, few enough for a row to take about half a second; how many calls make one. */
static bool choose_sampling(struct perf_run *run, const struct ferry_trial_call *work, struct peer_sampling *chosen)
{
	double us[1 + PEERS_MOST_SETTINGS];
	bool gpu = run->rank.buffers.cuda;
	*chosen = (struct peer_sampling){.calls = 1, .pause_us = run->options->pause_us};
	for (uint32_t i = 0; i < run->options->warmups; i++)
		if (!warm_up(run, work, chosen, us))
			return false;
	/* Single calls are longer than calls one after another: guess by the former, then measure the latter. */
	if (!chosen->pause_us && (chosen->calls = calls_of_sample(run, us)) > 1) {
		if (!warm_up(run, work, chosen, us))
			return false;
		chosen->calls = calls_of_sample(run, us);
	}
	chosen->lead = gpu ? between(GPU_LEAD_US / fastest_of(us, 1 + run->peers.count), LEAD_CALLS, MOST_CALLS)
	                   : chosen->calls;
	chosen->rounds = run->options->iterations;
	if (!chosen->rounds)
		chosen->rounds = between(floor(SIDE_US / (slowest_of(run, us) * chosen->calls)), gpu ? 20 : 7,
		                         gpu ? 50 : 200);
	return true;
}

/* ---- the row ---- */

/* After the trial rounds: marks the settings that cannot be the best. Works on maxima over ranks, so all ranks agree.
 */
static bool leave_out(struct perf_run *run, bool *left_out)
{
	double medians[PEERS_MOST_SETTINGS] = {0};
	unsigned others = run->peers.count;
	for (unsigned other = 0; other < others; other++) {
		double copy[TRIAL_ROUNDS];
		if (!peers_runs(&run->peers, other))
			continue;
		memcpy(copy, samples[1 + other], sizeof copy);
		if (!bench_rank_over(&run->rank, copy, TRIAL_ROUNDS, ferryMax))
			return false;
		medians[other] = sample_summarize(copy, TRIAL_ROUNDS).median;
	}
	double best = fastest_of(medians, others);
	for (unsigned other = 0; other < others; other++)
		left_out[other] = medians[other] > 1.33 * best;
	return true;
}

static bool sample_rounds(struct perf_run *run, const struct ferry_trial_call *work, const struct peer_sampling *how,
                          struct perf_row *row)
{
	bool left_out[PEERS_MOST_SETTINGS] = {false};
	for (uint32_t round = 0; round < how->rounds; round++) {
		if (run->peers.nccl && round == TRIAL_ROUNDS && !leave_out(run, left_out))
			return false;
		if (!sample_all(run, work, how, round, left_out))
			return false;
		for (unsigned other = 0; other < run->peers.count; other++)
			row->other_samples[other] += peers_runs(&run->peers, other) && !left_out[other];
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
	if (!bench_rank_over(&run->rank, samples[0], rounds, ferryMax))
		return false;
	row->us = sample_summarize(samples[0], rounds);
	for (unsigned other = 0; other < run->peers.count; other++) {
		if (!row->other_samples[other])
			continue;
		if (!bench_rank_over(&run->rank, samples[1 + other], row->other_samples[other], ferryMax))
			return false;
		row->others_us[other] = sample_summarize(samples[1 + other], row->other_samples[other]);
		if (row->best < 0 || row->others_us[other].median < row->others_us[row->best].median)
			row->best = (int)other;
	}
	return true;
}

bool perf_measure(struct perf_run *run, uint64_t bytes, bool in_place, struct perf_row *row)
{
	static struct ferry_trial_call work;
	struct peer_sampling how;
	perf_work_describe(run, bytes, in_place, &work);
	*row = (struct perf_row){.bytes = perf_work_bytes(&work.trial), .count = work.trial.count, .in_place = in_place,
	                         .best = -1, .wrong = -1};
	if (run->options->check) {
		perf_progress(run, row->bytes, "checked calls", 0, 1);
		if (!perf_work_check(run, &work, &row->wrong))
			return false;
	}
	if (!choose_sampling(run, &work, &how))
		return false;
	if (!sample_rounds(run, &work, &how, row) || !summarize(run, row))
		return false;
	row->algbw = (double)row->bytes / row->us.median / 1e3;
	row->busbw = row->algbw * perf_bus_factor(work.trial.collective, run->rank.nranks);
	return true;
}
