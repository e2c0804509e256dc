/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One row: a checked call, warm-up, then timed calls. Before each the ranks meet in a small AllReduce of Ferry's, which
 * sleeps while it waits, so that neither side is timed beside the other's busy waiting. A call's time is that of its slowest
 * rank.
 */
#include "bench/perf.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST_ITERATIONS 1000
#define SIDE_US         250000.0 /* how long the timed calls of one side take in a row's half, about */

/* One row's work, as the trial that checks it and as the peer sees it. */
struct work {
	struct ferry_trial trial;
	struct ferry_trial_counts counts;
	struct perf_call call;
	char *send, *receive;
};

double perf_now_us(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
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

static bool good(ferryResult_t result, const struct perf_run *run, const char *what)
{
	if (result)
		fprintf(stderr, "ferry-perf: rank %d: %s: %s: %s\n", run->rank, what, ferryGetErrorString(result),
		        ferryGetLastError(run->comm));
	return result == ferrySuccess;
}

/* Element-wise maximum or sum over the ranks; with one element also a barrier. */
static bool over_ranks(struct perf_run *run, double *values, size_t count, ferryRedOp_t op)
{
	return good(ferryAllReduce(values, values, count, ferryFloat64, op, run->comm, NULL), run,
	            "meeting the other ranks") &&
	       good(ferryStreamSynchronize(NULL), run, "meeting the other ranks");
}

static bool meet(struct perf_run *run)
{
	double nothing = 0;
	return over_ranks(run, &nothing, 1, ferryMax);
}

static ferryResult_t start(const struct perf_run *run, const struct work *work)
{
	const struct ferry_trial *trial = &work->trial;
	if (run->options->program)
		return ferryRunProgram(run->options->program, work->send, work->receive, trial->count, trial->type, run->op,
		                       run->comm, NULL);
	return ferry_trial_start(trial, run->rank, work->send, work->receive, run->op, run->comm, NULL);
}

static bool run_ferry(struct perf_run *run, const struct work *work, double *us)
{
	double before = perf_now_us();
	if (!good(start(run, work), run, "call") || !good(ferryStreamSynchronize(NULL), run, "call"))
		return false;
	*us = perf_now_us() - before;
	return true;
}

static void run_peer(const struct perf_run *run, const struct work *work, double *us)
{
	double before = perf_now_us();
	run->peer->run(&work->call);
	*us = perf_now_us() - before;
}

/* ---- shapes ---- */

size_t perf_room(const struct perf_options *options, int nranks)
{
	return options->most + (size_t)nranks * 4096;
}

static bool divided(enum ferry_collective collective)
{
	return collective != FERRY_ALLREDUCE && collective != FERRY_BROADCAST && collective != FERRY_REDUCE_TO_ROOT &&
	       collective != FERRY_SENDRECV;
}

/* Elements as the API counts them. nccl-tests keeps the blocks of most divided collectives aligned to 16 bytes. */
static size_t count_of(const struct perf_options *options, uint64_t bytes, size_t nranks)
{
	size_t element = ferry_type_size(options->type), whole = bytes / element;
	if (!divided(options->collective))
		return whole;
	if (options->collective == FERRY_GATHER || options->collective == FERRY_SCATTER)
		return whole / nranks;
	return whole / nranks & ~(16 / element - 1);
}

/* The size that nccl-tests prints: of the larger buffer. Of alltoallv's uneven ones, what a rank sends on average. */
static uint64_t bytes_of(const struct ferry_trial *trial)
{
	size_t element = ferry_type_size(trial->type), sent = 0, n = (size_t)trial->nranks;
	struct ferry_trial_counts counts;
	if (trial->collective != FERRY_ALLTOALLV)
		return trial->count * element * (divided(trial->collective) ? n : 1);
	for (int rank = 0; rank < trial->nranks; rank++) {
		ferry_trial_counts(trial, rank, &counts);
		for (size_t peer = 0; peer < n; peer++)
			sent += counts.sendcounts[peer];
	}
	return sent * element / n;
}

static void describe(const struct perf_run *run, uint64_t bytes, bool in_place, struct work *work)
{
	const struct perf_options *options = run->options;
	work->trial = (struct ferry_trial){.collective = options->collective,
	                                   .type = options->type,
	                                   .op = options->op,
	                                   .count = count_of(options, bytes, (size_t)run->nranks),
	                                   .root = options->root,
	                                   .nranks = run->nranks,
	                                   .ndomains = (unsigned)run->ndomains,
	                                   .in_place = in_place,
	                                   .seed = bytes};
	work->send = run->send;
	work->receive = run->receive;
	ferry_trial_place(&work->trial, run->rank, &work->send, &work->receive);
	ferry_trial_counts(&work->trial, run->rank, &work->counts);
	work->call = (struct perf_call){.collective = options->collective,
	                                .send = work->send,
	                                .receive = work->receive,
	                                .count = work->trial.count,
	                                .sendcounts = work->counts.sendcounts,
	                                .senddispls = work->counts.senddispls,
	                                .recvcounts = work->counts.recvcounts,
	                                .recvdispls = work->counts.recvdispls,
	                                .type = options->type,
	                                .op = options->op,
	                                .root = options->root,
	                                .rank = run->rank,
	                                .nranks = run->nranks};
}

const char *perf_peer_refuses(const struct perf_run *run)
{
	struct work work;
	describe(run, run->options->most, false, &work);
	if (bytes_of(&work.trial) > INT_MAX)
		return "its counts are 32-bit: -e 2047M at most";
	return run->peer->supports(&work.call);
}

/* ---- the row ---- */

static bool check(struct perf_run *run, struct work *work, long long *wrong)
{
	struct ferry_trial *trial = &work->trial;
	size_t room = ferry_trial_room(trial, run->rank) * ferry_type_size(trial->type);
	double us, total = 0;
	memset(run->receive, 0x5a, room);
	if (!ferry_trial_open(trial)) {
		fprintf(stderr, "ferry-perf: no memory to check %zu elements\n", trial->count);
		ferry_trial_close(trial);
		return false;
	}
	ferry_trial_fill(trial, run->rank, work->send);
	bool fine = run_ferry(run, work, &us);
	if (fine && work->receive)
		total = (double)ferry_trial_wrong(trial, run->rank, work->receive, 0x5a);
	ferry_trial_close(trial);
	/* Timed calls in place feed on their own results; zeros stay zeros, where others would run into infinities or
	 * subnormals. */
	if (trial->in_place && ferry_collective_reduces(trial->collective))
		memset(run->receive, 0, room);
	fine = fine && over_ranks(run, &total, 1, ferrySum);
	*wrong = (long long)total;
	return fine;
}

/* Enough calls for a good median, few enough for a row to take about half a second. The same on every rank. */
static bool choose_iterations(struct perf_run *run, const struct work *work, uint32_t *iterations)
{
	double us = 0, slowest = 1;
	for (uint32_t i = 0; i < run->options->warmups; i++) {
		if (!meet(run) || !run_ferry(run, work, &us))
			return false;
		slowest = us;
		if (run->peer) {
			if (!meet(run))
				return false;
			run_peer(run, work, &us);
			slowest = us > slowest ? us : slowest;
		}
	}
	if (!over_ranks(run, &slowest, 1, ferryMax))
		return false;
	double fit = SIDE_US / slowest;
	*iterations = run->options->iterations ? run->options->iterations : fit < 7 ? 7 : fit > 200 ? 200 : (uint32_t)fit;
	return true;
}

static double bus_factor(enum ferry_collective collective, double n)
{
	if (collective == FERRY_ALLREDUCE)
		return 2 * (n - 1) / n;
	return divided(collective) ? (n - 1) / n : 1;
}

bool perf_measure(struct perf_run *run, uint64_t bytes, bool in_place, struct perf_row *row)
{
	static double ferry_us[MOST_ITERATIONS], peer_us[MOST_ITERATIONS];
	struct work work;
	uint32_t iterations;
	describe(run, bytes, in_place, &work);
	*row = (struct perf_row){
	        .bytes = bytes_of(&work.trial), .count = work.trial.count, .in_place = in_place, .wrong = -1};
	if (run->options->check && !check(run, &work, &row->wrong))
		return false;
	if (!choose_iterations(run, &work, &iterations))
		return false;
	for (uint32_t i = 0; i < iterations; i++) {
		if (!meet(run) || !run_ferry(run, &work, &ferry_us[i]))
			return false;
		if (run->peer) {
			if (!meet(run))
				return false;
			run_peer(run, &work, &peer_us[i]);
		}
		perf_progress(run, bytes, i + 1, iterations);
	}
	if (!over_ranks(run, ferry_us, iterations, ferryMax) ||
	    (run->peer && !over_ranks(run, peer_us, iterations, ferryMax)))
		return false;
	row->time = perf_summarize(ferry_us, iterations);
	if (run->peer)
		row->peer_time = perf_summarize(peer_us, iterations);
	row->algbw = (double)row->bytes / row->time.median_us / 1e3;
	row->busbw = row->algbw * bus_factor(work.trial.collective, run->nranks);
	return true;
}
