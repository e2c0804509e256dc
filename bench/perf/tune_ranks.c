/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/perf/tune_ranks.h"

#include "bench/command/record.h"
#include "bench/limits/progress.h"
#include "bench/peers/peers.h"
#include "bench/perf/work.h"
#include "bench/rank/gpu.h"
#include "ipc/error.h"
#include "ipc/launcher.h"
#include "ipc/nccl_settings.h"
#include "rank-lib/program/limits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME        "ferry-perf tune"
#define MOST_SIDES  3 /* Ferry, then NCCL's settings */
#define MOST_ROUNDS 5
#define LEAD_CALLS  2      /* of a row, as nccl-tests' default leaves out a few, */
#define LEAD_US     1000.0 /* and short ones for so long: the GPU has just worked for another process */
#define MOST_CALLS  50
#define BUS_GUESS   1e3 /* bytes per microsecond that the slowest side has before anything is known */

/* How long it may take. */
struct pace {
	uint32_t rounds, least_calls; /* of a size; of a row */
	double row_us;                /* of a row, about, but for least_calls */
	/* of a collective: then no new round begins; a size is left out if a round of it would take longer */
	double collective_us;
};
static const struct pace paces[] = {{5, 5, 10e3, 1000e3}, {3, 3, 2.5e3, 300e3}}; /* quick: the second */

static const enum ferry_collective collectives[] = {FERRY_ALLREDUCE, FERRY_ALLGATHER, FERRY_REDUCESCATTER,
                                                    FERRY_BROADCAST, FERRY_REDUCE_TO_ROOT, FERRY_GATHER,
                                                    FERRY_SCATTER,   FERRY_ALLTOALL,       FERRY_SENDRECV};
#define MOST_ROWS (sizeof collectives / sizeof *collectives * 8)

struct tune {
	struct perf_run run;
	struct perf_options asked; /* the run's: which collective, and the largest size */
	const struct pace *pace;
	CUevent first, last;
	double begun_us; /* this collective */
	struct ferry_limits_collective rows[MOST_ROWS];
	int nrows;
};

static bool fail(const struct tune *tune, const char *what, const char *why)
{
	fprintf(stderr, NAME ": rank %d: %s: %s\n", tune->run.rank.rank, what, why);
	return false;
}

/* ---- one sample ---- */

static bool enqueue(struct tune *tune, const struct ferry_trial_call *call, uint32_t calls)
{
	const struct bench_rank *rank = &tune->run.rank;
	for (uint32_t i = 0; i < calls; i++)
		if (ferry_trial_start(&call->trial, call->rank, call->send, call->receive, call->trial.op, rank->comm,
		                      rank->buffers.stream))
			return fail(tune, ferry_collective_name(call->trial.collective), ferryGetLastError(rank->comm));
	return true;
}

static bool mark(struct tune *tune, CUevent event)
{
	return !gpu_good(gpu_driver->EventRecord(event, (CUstream)tune->run.rank.buffers.stream),
	                 "recording an event") ||
	       fail(tune, "a row of calls", ferry_last_message());
}

static bool time_ferry(struct tune *tune, const struct ferry_trial_call *call, const struct peer_sampling *how,
                       double *us)
{
	struct bench_rank *rank = &tune->run.rank;
	ferryResult_t error = ferrySuccess;
	float ms = 0;
	if (!enqueue(tune, call, how->lead) || !mark(tune, tune->first) || !enqueue(tune, call, how->calls) ||
	    !mark(tune, tune->last) || !bench_buffers_wait(&rank->buffers))
		return false;
	if (ferryCommGetAsyncError(rank->comm, &error) || error)
		return fail(tune, ferry_collective_name(call->trial.collective), ferryGetLastError(rank->comm));
	if (gpu_good(gpu_driver->EventElapsedTime(&ms, tune->first, tune->last), "timing calls"))
		return fail(tune, "a row of calls", ferry_last_message());
	*us = ms * 1e3 / how->calls;
	return true;
}

/* Whether the side takes part. Not NCCL with 16 channels in what it sends as messages, which have other channels. */
static bool takes(const struct tune *tune, unsigned side)
{
	enum ferry_collective collective = tune->asked.collective;
	bool messages = collective == FERRY_GATHER || collective == FERRY_SCATTER || collective == FERRY_ALLTOALL ||
	                collective == FERRY_SENDRECV;
	return !side || (peers_runs(&tune->run.peers, side - 1) && !(side > 1 && messages));
}

/*
 * A row of one side: *us of the slowest rank, per call; 0 where NCCL refuses the setting on some rank, which then is
 * out. *spent: how long this collective has been measured, on the slowest rank.
 */
static bool time_side(struct tune *tune, const struct ferry_trial_call *call, unsigned side, bool first,
                      const struct peer_sampling *how, double *us, double *spent)
{
	struct bench_rank *rank = &tune->run.rank;
	struct peers *peers = &tune->run.peers;
	double values[3] = {0}; /* microseconds; refused; spent */
	if (!bench_rank_over(rank, values, 1, ferryMax)) /* they meet */
		return false;
	if (!side && !time_ferry(tune, call, how, &values[0]))
		return false;
	if (side) {
		enum peer_result result = peers_run(peers, rank, side - 1, call, first, how, &values[0]);
		if (result == PEER_BROKEN)
			return false;
		values[1] = result == PEER_REFUSED;
		if (result == PEER_REFUSED && side == 1)
			fail(tune, "NCCL", peers->settings[0].refused);
	}
	values[2] = sample_now_us() - tune->begun_us;
	if (!bench_rank_over(rank, values, 3, ferryMax))
		return false;
	if (values[1] > 0)
		peers_drop(peers, side - 1);
	*us = values[1] > 0 ? 0 : values[0];
	*spent = values[2];
	return peers_runs(peers, 0);
}

/* ---- a size ---- */

static uint32_t between(double value, uint32_t least, uint32_t most)
{
	return value < least ? least : value > most ? most : (uint32_t)value;
}

static struct peer_sampling sampling_for(const struct pace *pace, double slowest_us)
{
	return (struct peer_sampling){.lead = between(LEAD_US / slowest_us, LEAD_CALLS, MOST_CALLS),
	                              .row = true,
	                              .calls = between(pace->row_us / slowest_us, pace->least_calls, MOST_CALLS)};
}

/*
 * The lower quartile, of few samples the least: what disturbs a row makes it longer. As four calls of a quarter of the
 * size do as much, it is no more than these take: quarter_us each, 0 if that is not known.
 */
static double usual_us(double *samples, uint32_t count, double quarter_us)
{
	double us = count ? sample_summarize(samples, count).low : 0;
	return quarter_us > 0 && us > 4 * quarter_us ? 4 * quarter_us : us;
}

/*
 * *slowest_us: what a call of the slowest side is expected to take, and then took; *all_us: one of each side. quarter:
 * the row of a quarter of the size; NULL if there is none.
 */
static bool measure_size(struct tune *tune, uint64_t bytes, double *slowest_us, double *all_us,
                         const struct ferry_limits_collective *quarter, struct ferry_limits_collective *row)
{
	const struct ferry_limits_collective none = {.ranks = 0}, *less = quarter ? quarter : &none;
	const double quarters_us[MOST_SIDES] = {less->ferry_us, less->nccl_us, less->nccl_16_channels_us};
	static struct ferry_trial_call call;
	double samples[MOST_SIDES][MOST_ROUNDS] = {{0}}, us[MOST_SIDES] = {0}, spent = 0;
	uint32_t counts[MOST_SIDES] = {0};
	unsigned sides = 1 + tune->run.peers.count;
	struct peer_sampling how = sampling_for(tune->pace, *slowest_us);
	perf_work_describe(&tune->run, bytes, false, &call);
	for (uint32_t round = 0; round < tune->pace->rounds && (!round || spent < tune->pace->collective_us); round++)
		for (unsigned side = 0; side < sides; side++) {
			double *sample = &samples[side][counts[side]];
			if (!takes(tune, side))
				continue;
			if (!time_side(tune, &call, side, !round, &how, sample, &spent))
				return false;
			counts[side] += *sample > 0;
		}
	*slowest_us = 1;
	*all_us = 0;
	for (unsigned side = 0; side < sides; side++) {
		us[side] = usual_us(samples[side], counts[side], quarters_us[side]);
		*slowest_us = us[side] > *slowest_us ? us[side] : *slowest_us;
		*all_us += us[side];
	}
	*row = (struct ferry_limits_collective){.ranks = tune->run.rank.nranks,
	                                        .bytes = perf_work_bytes(&call.trial),
	                                        .nccl_us = us[1],
	                                        .nccl_16_channels_us = us[2],
	                                        .ferry_us = us[0]};
	snprintf(row->collective, sizeof row->collective, "%s", ferry_collective_name(call.trial.collective));
	return true;
}

/*
 * The first size is measured twice: in its first calls libraries connect, plan and map, which takes many times what the
 * calls do. Times grow with the size at most: a size that would take too long is left out, as readers go on with the
 * rate of the one before.
 */
static bool measure_collective(struct tune *tune, enum ferry_collective collective, const char *settings)
{
	const struct pace *pace = tune->pace;
	const struct pace once = {1, 1, 0, pace->collective_us};
	struct ferry_limits_collective unused;
	double slowest_us = TUNE_LEAST / BUS_GUESS, all_us;
	tune->asked.collective = collective;
	tune->begun_us = sample_now_us();
	tune->pace = &once;
	bool fine = measure_size(tune, TUNE_LEAST, &slowest_us, &all_us, NULL, &unused);
	tune->pace = pace;
	tune->begun_us = sample_now_us();
	for (uint64_t bytes = TUNE_LEAST; fine && bytes <= tune->asked.most; bytes *= 4) {
		struct ferry_limits_collective *row = &tune->rows[tune->nrows++];
		if (!tune->run.rank.rank)
			limits_progress("%s of %llu MiB by NCCL and Ferry on %d GPUs",
			                ferry_collective_name(collective), (unsigned long long)bytes >> 20,
			                tune->run.rank.nranks);
		fine = measure_size(tune, bytes, &slowest_us, &all_us, bytes > TUNE_LEAST ? row - 1 : NULL, row);
		memcpy(row->settings, settings, sizeof row->settings);
		slowest_us *= 4;
		if (4 * all_us * (LEAD_CALLS + pace->least_calls) > pace->collective_us)
			break;
	}
	return fine;
}

/* ---- the whole ---- */

static double ratio(double nccl, double ferry)
{
	return ferry > 0 ? nccl / ferry : 0;
}

static void print_rows(const struct tune *tune)
{
	const struct ferry_limits_collective *rows = tune->rows;
	printf("# What one call of a row takes, in microseconds: %d GPUs, NCCL %d.%d.%d, settings %s\n", rows->ranks,
	       tune->run.peers.version / 10000, tune->run.peers.version / 100 % 100, tune->run.peers.version % 100,
	       rows->settings);
	printf("# %-13s %9s %12s %12s %12s  %s\n", "collective", "MiB", "NCCL", "16 channels", "Ferry",
	       "best NCCL / Ferry");
	for (int i = 0; i < tune->nrows; i++) {
		const struct ferry_limits_collective *row = &rows[i];
		double channels = row->nccl_16_channels_us, best = row->nccl_us;
		char text[16] = "-";
		if (channels > 0)
			snprintf(text, sizeof text, "%.1f", channels);
		if (channels > 0 && channels < best)
			best = channels;
		printf("  %-13s %9.0f %12.1f %12s %12.1f  %.2f\n", row->collective, (double)row->bytes / (1 << 20),
		       row->nccl_us, text, row->ferry_us, ratio(best, row->ferry_us));
	}
}

/* What others have written meanwhile is kept: the file is read again. */
static bool keep_rows(const struct tune *tune)
{
	static struct ferry_limits limits;
	char path[512];
	bool found;
	if (ferry_limits_path(path, sizeof path) || ferry_limits_load(&limits, &found))
		return fail(tune, "the file of limits", ferry_last_message());
	if (!found)
		snprintf(limits.command, sizeof limits.command, NAME);
	ferry_limits_replace(&limits, tune->rows, tune->nrows);
	if (!record_write(NAME, path, ferry_limits_json(&limits), true))
		return false;
	printf("\nwritten to %s\n", path);
	return record_printed(NAME);
}

static bool measure(struct tune *tune)
{
	struct bench_rank *rank = &tune->run.rank;
	char settings[20];
	ferry_limits_print_settings(ferry_nccl_settings(), settings);
	double failed = !bench_buffers_take(&rank->buffers, perf_room(&tune->asked, rank->nranks)) ||
	                gpu_good(gpu_driver->EventCreate(&tune->first, CU_EVENT_DEFAULT), "making an event") ||
	                gpu_good(gpu_driver->EventCreate(&tune->last, CU_EVENT_DEFAULT), "making an event");
	if (!bench_rank_over(rank, &failed, 1, ferryMax) || failed > 0)
		return false; /* a message is printed */
	if (!peers_open(&tune->run.peers, rank, FERRY_ALLREDUCE, NCCL_SWEEP_CHANNELS))
		return false;
	for (size_t i = 0; i < sizeof collectives / sizeof *collectives; i++)
		if (!measure_collective(tune, collectives[i], settings))
			return false;
	if (rank->rank)
		return true;
	limits_progress("%s", "");
	print_rows(tune);
	return keep_rows(tune);
}

int tune_rank(const struct tune_options *options)
{
	static struct tune tune;
	struct ferry_launch launch;
	struct bench_rank *rank = &tune.run.rank;
	tune.pace = &paces[options->quick];
	tune.asked = (struct perf_options){.most = options->most, .type = ferryFloat32, .op = ferrySum};
	tune.run.options = &tune.asked;
	if (ferry_launch_read(&launch) || launch.rank < 0) {
		fprintf(stderr, NAME ": %s\n", launch.rank < 0 ? "no rank" : ferry_last_message());
		return 1;
	}
	if (!peers_find(&tune.run.peers, "nccl") || !bench_buffers_open(&rank->buffers, "cuda", launch.local_rank))
		return 1;
	bool fine = bench_rank_join(rank) && measure(&tune);
	fine = bench_rank_leave(rank) && fine;
	peers_close(&tune.run.peers);
	bench_buffers_close(&rank->buffers);
	return fine ? 0 : 1;
}
