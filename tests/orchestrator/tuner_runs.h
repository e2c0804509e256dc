/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Runs of calls for suites of the tuner, where time is made: a call takes what its arm takes here, with noise, modes,
 * bursts and cold first calls, and the tuner hears of it `late` calls later. All words are what a rank proposes that
 * does what rank 0 has published.
 */
#ifndef FERRY_TESTS_TUNER_RUNS_H
#define FERRY_TESTS_TUNER_RUNS_H

#include "orchestrator/tuner/tuner.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MIB        (1ull << 20)
#define FIRST      20 /* calls of a kind that may be spent */
#define MOST_LATE  16
#define MOST_CALLS 4096
#define SEEDS      20

/* What calls of a kind take: with each of NCCL's tunings, and by Ferry. */
struct world {
	struct ferry_tuner_call call;
	double nccl_us[FERRY_TUNINGS], ferry_us;
	double noise;      /* of each call, relative, uniform, to either side */
	double cold;       /* the first call of a run takes so many times as long; 0: 1, */
	double cold_second; /* and the second one of Ferry's first run */
	double second;     /* and the kind's second call */
	double slow_mode;  /* Ferry's calls in two modes: so much slower, */
	int modes;         /* one in so many; 0: one mode */
	double drift;      /* all take so much more and less, over a thousand calls */
	double burst;      /* Ferry's calls are so many times slower in calls */
	int from, to;      /* from this one to before that one */
	int late;
	bool overlaps; /* another stream has a call meanwhile */
};

struct kind {
	const struct world *world;
	struct ferry_tuner *tuner;
	struct ferry_tuner_line *line;
	uint8_t turn, used;
	uint32_t last;
	int made, fed, ferrys;
	struct {
		uint32_t word;
		double us;
		bool measured;
	} calls[MOST_CALLS];
};

static unsigned seed;
static struct ferry_prior nothing;
static struct ferry_tuner rank0;
static struct kind single; /* of a run with one */

static inline double chance(void)
{
	return (rand_r(&seed) + 0.5) / (RAND_MAX + 1.0);
}

static inline double steady_us(const struct world *world, uint32_t word)
{
	return ferry_shares_divide(word) ? world->ferry_us : world->nccl_us[ferry_shares_tuning(word)];
}

static inline double us_of(const struct kind *kind, uint32_t word)
{
	const struct world *world = kind->world;
	bool ferrys = ferry_shares_divide(word);
	double us = steady_us(world, word) * (1 + world->noise * (2 * chance() - 1));
	us *= 1 + world->drift * sin(2 * M_PI * kind->made / 1000);
	if (world->cold > 0 && (word != kind->last || !kind->made))
		us *= world->cold;
	if (world->cold_second > 0 && ferrys && kind->ferrys == 1)
		us *= world->cold_second;
	if (world->second > 0 && kind->made == 1)
		us *= world->second;
	if (ferrys && world->modes && chance() * world->modes < 1)
		us *= world->slow_mode;
	if (ferrys && kind->made >= world->from && kind->made < world->to)
		us *= world->burst;
	return us;
}

static inline void open_kind(struct kind *kind, struct ferry_tuner *tuner, const struct world *world)
{
	memset(kind, 0, sizeof *kind);
	kind->world = world;
	kind->tuner = tuner;
	kind->line = ferry_tuner_line(tuner, &world->call);
	assert_non_null(kind->line);
}

/* As ferry_meter_propose: a rank bounds a trial by the calls that it has seen of it. */
static inline uint32_t propose(struct kind *kind)
{
	struct ferry_share_line record;
	ferry_tuner_record(kind->line, &record);
	if (record.turn != kind->turn)
		kind->used = 0;
	kind->turn = record.turn;
	if (!record.run || kind->used >= record.run)
		return record.word;
	kind->used++;
	return record.trial;
}

static inline void feed(struct kind *kind, int until)
{
	for (; kind->fed < until; kind->fed++)
		if (kind->calls[kind->fed].measured)
			ferry_tuner_feed(kind->tuner, kind->line, kind->calls[kind->fed].word, kind->world->call.bytes,
			                 kind->calls[kind->fed].us, kind->world->overlaps, false);
}

/* Returns what the calls have taken. */
static inline double make(struct kind *kind, int calls)
{
	double all = 0;
	for (int i = 0; i < calls; i++, kind->made++) {
		feed(kind, kind->made - kind->world->late);
		uint32_t word = propose(kind);
		double us = us_of(kind, word);
		kind->calls[kind->made].word = word;
		kind->calls[kind->made].us = us;
		kind->calls[kind->made].measured = ferry_tuner_sealed(kind->tuner, kind->line, word, false, false);
		kind->last = word;
		kind->ferrys += ferry_shares_divide(word);
		all += us;
	}
	return all;
}

static const struct ferry_tuner_call whole = {FERRY_ALLREDUCE, ferryFloat32, 64 * MIB, false, FERRY_FABRIC_HOST};

/* All from the beginning: returns what `calls` calls take. */
static inline double run(const struct world *world, const struct ferry_prior *prior, unsigned with, int calls)
{
	seed = with;
	ferry_tuner_init(&rank0, prior, 2, 50e3);
	open_kind(&single, &rank0, world);
	return make(&single, calls);
}

static inline bool is_ferrys(int call)
{
	return ferry_shares_divide(single.calls[call].word);
}

static inline int count_ferrys(int from, int to)
{
	int count = 0;
	for (int i = from; i < to; i++)
		count += is_ferrys(i);
	return count;
}

static inline void print(int calls)
{
	for (int i = 0; i < calls; i++)
		print_message("%s%.0f%s", i % 16 ? " " : "\n", single.calls[i].us, is_ferrys(i) ? "F" : "");
	print_message("\n");
}

static inline double least_us(const struct world *world)
{
	uint32_t best = 0;
	double least = INFINITY;
	for (int i = 0; i < single.line->narms; i++) {
		double us = steady_us(world, single.line->arms[i].word);
		best = us < least ? single.line->arms[i].word : best;
		least = fmin(least, us);
	}
	return steady_us(world, best);
}

/* Fails where calls take more than `most` times what the best arm takes for them without noise. */
static inline void hold_against_best(const struct world *world, int calls, double us, double most, const char *what)
{
	double best_us = least_us(world) * calls;
	if (us <= most * best_us)
		return;
	print(single.made < 400 ? single.made : 400);
	fail_msg("%s: %d calls take %.4f of the best arm's time", what, calls, us / best_us);
}

static inline struct ferry_prior prior_of(double nccl_us, double ferry_us)
{
	struct ferry_prior prior;
	memset(&prior, 0, sizeof prior);
	prior.counts[FERRY_ALLREDUCE] = 2;
	for (int i = 0; i < 2; i++)
		prior.points[FERRY_ALLREDUCE][i] = (struct ferry_prior_point){
		        (16 * MIB) << 4 * i, {nccl_us * (i ? 4 : 0.25), 0, ferry_us * (i ? 4 : 0.25)}};
	return prior;
}

#endif
