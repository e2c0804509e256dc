/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A run of ferry-perf and its rows: what its parts share. The run is set up by job.c and belongs to the process's one
 * thread; a row is written by measure.c and read by the table and the record.
 */
#ifndef FERRY_BENCH_RUN_H
#define FERRY_BENCH_RUN_H

#include "bench/command/sample.h"
#include "bench/peers/peer.h"
#include "bench/perf/options.h"
#include "bench/rank/rank.h"

struct perf_run {
	const struct perf_options *options;
	struct bench_rank rank;
	struct peers peers;
	ferryRedOp_t op; /* options->op, or the reduction created for premulsum */
};

struct perf_row {
	uint64_t bytes, count; /* what nccl-tests prints: bytes of the larger buffer, elements as the API counts */
	bool in_place;
	uint32_t calls, samples; /* calls per sample, samples of Ferry */
	struct sample_summary us;
	struct sample_summary others_us[PEERS_MOST_SETTINGS]; /* the other library's, a setting each */
	uint32_t other_samples[PEERS_MOST_SETTINGS];
	int best;            /* of the others; -1: none */
	double algbw, busbw; /* GB/s = 1e9 bytes/s */
	long long wrong;     /* elements; -1: not checked */
};

/** Microseconds of the best of the others; 0 if none ran. */
static inline double perf_best_us(const struct perf_row *row)
{
	return row->best < 0 ? 0 : row->others_us[row->best].median;
}

/** What the row's calls do to their data: "sum", ...; "none" where they only move it. */
static inline const char *perf_op_name(const struct perf_options *options)
{
	return ferry_collective_reduces(options->collective) ? ferry_redop_name(options->op) : "none";
}

#endif
