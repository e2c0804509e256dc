/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The policy. A message that fits one slice goes as one: cutting it costs wake-ups and gains nothing. Beyond that a
 * chunk is cut into about DEPTH slices, so that the stages of the pipeline overlap, between SLICE_LEAST (below it the
 * cost per slice dominates) and SLICE_MOST (a slice of every stage should stay in a core's cache). Windows deeper than
 * WINDOW_MOST slots would only take cache from others.
 */
#include "rank-lib/program/tuning.h"

#include "ipc/error.h"
#include "rank-lib/program/chunks.h"

#include <math.h>

#define ONE_SLICE (64u << 10)
#define SLICE_LEAST (16u << 10)
#define SLICE_MOST (512u << 10)
#define DEPTH 8
#define VARIABLE_MOST ONE_SLICE /* for an alltoallv with PUTs, whose lengths come with each call */
#define WINDOW_MOST 4

/*
 * For sums on host devices' links, up trees in ranks' memory. To fill and drain all trees takes a slice's time for each
 * hop, so a root's chunks are cut finely. If the sum comes down over the same links, data that goes up far ahead of it
 * is in its way: then windows are only as deep as a link needs, which carries several trees (docs/lab/trees.md).
 */
#define TREE_LEAST (4u << 10)
#define TREE_DEPTH 64
/* On GPUs, not measured: */
#define ADDS_LEAST (256u << 10)
#define ADDS_MOST  (4u << 20)
#define ADDS_DEPTH 32
#define TREE_SLOTS 8 /* of all trees of an allreduce together, but at least two for each */

/*
 * If copy engines move the slices (docs/lab has the measurements), a slice of s bytes costs a lane `issue` for each of
 * its t transfers, and the pipeline takes the time of `stages` slices to fill and drain. A chunk of L bytes over a link
 * of rate R (issue and R as `ferry-perf limits` has measured them, on this machine or on another: limits.h) takes
 *     time = L / R + t issue L / s + stages s / R,  least for  s = sqrt(t issue R L / stages).
 *
 * If cores reduce, each call begins in the windows where the last one stopped: a slot should be written again only when
 * its lines have left the private caches of the cores that read it, because copy engines access lines that a core holds
 * at a fraction of their speed. Large messages have windows as deep as the staging allows. Small ones have few workers,
 * and windows only as deep as those workers' caches require: some calls use all of the windows, and the smaller they
 * are, the more of them is still in the last-level cache after other work. If data only passes through, windows are
 * shallow: what D2H has just written is read fastest.
 *
 * Nor does a copy engine run far ahead of the cores: data that it has written and no core has read has only a few ways
 * of the last-level cache, and goes to memory beyond them. Cores that are late once would read it from memory, slowly,
 * and stay late.
 */
#define DMA_LEAST         (128u << 10)
#define DMA_ROUND         (64u << 10)
#define DMA_REDUCE_STAGES 3
#define DMA_REDUCE_MOST   (2u << 20)
/*
 * Least slots of a window: longer slices are not worth fewer slots. More if a lane serves several windows at a time: a
 * ReduceScatter of four GPUs had 19 GB/s with 3 slots and 30 with 10.
 */
#define DMA_REDUCE_SLOTS(transfers) between(6, 4 + 2 * (transfers), 10)
#define DMA_MOVE_STAGES             2
/* bytes; up to LONGEST if DMA_MOVE_STAGING and the staging have room for MOVE_SLOTS: with 2, both ends take turns */
#define DMA_MOVE_MOST    (2u << 20)
#define DMA_MOVE_LONGEST (4u << 20)
#define DMA_MOVE_SLOTS   3
/* bytes of all windows, to stay in a cache; but at least two slots each, and at most eight, of long slices four */
#define DMA_MOVE_STAGING   (24u << 20)
#define DMA_MOVE_LONG      (1u << 20)
#define DMA_AHEAD(staging) ((staging) / 3) /* bytes written and not read yet, at most; at least two slots */
#define DMA_CACHES       3            /* staging per worker, in private caches */
#define DMA_WORKER_BYTES (128u << 10) /* of result per worker, at least */

/*
 * PUTs are cut only if data is forwarded, as a copy is fastest whole. A forwarded chunk takes a slice's time for each
 * hop beyond the first: it is cut, but not so finely that the start of copies counts.
 */
#define PUT_MOST (1u << 30) /* the longest slice of a plan */
#define PUT_DEPTH 64
#define PUT_FORWARD_LEAST (64u << 10)
#define PUT_FORWARD_MOST (16u << 20)
/* For a broadcast by cores, which each hop delays by the slices under way (router/engine/slices.c). */
#define PUT_HURRY_DEPTH 256
#define PUT_HURRY_LEAST (16u << 10)

static uint64_t up_to_line(uint64_t bytes)
{
	return (bytes + 63) / 64 * 64;
}

/* A version's window is rounded up to a pair of cache lines, as the compiler does. */
static uint64_t window_bytes(uint64_t slice, uint64_t window)
{
	return (slice * window + 127) / 128 * 128;
}

/* Returns the bytes for windows there: of a domain's staging, or of a rank's memory. */
static uint64_t room_in(const struct ferry_tuning_facts *facts, uint32_t home)
{
	return home < FERRY_MAX_DOMAINS ? facts->options->staging[home] : facts->options->memory;
}

/* Returns the first home that has no room for its windows; FERRY_HOMES: all fit. */
static uint32_t too_small(const struct ferry_tuning_facts *facts, uint64_t slice, uint64_t window)
{
	uint32_t home = 0;
	while (home < FERRY_HOMES && (!facts->nwindows[home] ||
	                              window_bytes(slice, window) <= room_in(facts, home) / facts->nwindows[home]))
		home++;
	return home;
}

static uint64_t between(uint64_t least, uint64_t value, uint64_t most)
{
	return value > most ? most : value < least ? least : value;
}

/* Returns the bytes that each window may have, in the home where that is least. */
static uint64_t room(const struct ferry_tuning_facts *facts)
{
	const uint32_t *nwindows = facts->nwindows;
	uint64_t least = UINT64_MAX;
	for (uint32_t home = 0; home < FERRY_HOMES; home++)
		if (nwindows[home] && room_in(facts, home) / nwindows[home] < least)
			least = room_in(facts, home) / nwindows[home];
	return least;
}

/* Returns the D2Hs or H2Ds of the lane that has most. */
static uint64_t transfers_of_lane(const struct ferry_program *program)
{
	uint32_t counts[2][FERRY_MAX_RANKS] = {{0}}, most = 1;
	for (uint32_t i = 0; i < program->nstatements; i++) {
		const struct ferry_statement *statement = &program->statements[i];
		if (statement->opcode != FERRY_D2H && statement->opcode != FERRY_H2D)
			continue;
		uint32_t count = ++counts[statement->opcode == FERRY_H2D][statement->rank];
		most = count > most ? count : most;
	}
	return most;
}

static uint32_t most_windows(const struct ferry_tuning_facts *facts)
{
	uint32_t most = 0;
	for (uint32_t domain = 0; domain < facts->program->ndomains; domain++)
		most = facts->nwindows[domain] > most ? facts->nwindows[domain] : most;
	return most ? most : 1;
}

static uint64_t move_staging(const struct ferry_compile_options *options)
{
	return DMA_MOVE_STAGING / between(1, options->sharing, UINT32_MAX);
}

static bool adds_on_trees(const struct ferry_tuning_facts *facts)
{
	const struct ferry_program *program = facts->program;
	bool adds = false;
	for (uint32_t i = 0; i < program->nstatements && !adds; i++)
		adds = program->statements[i].opcode == FERRY_REDUCE &&
		       ferry_statement_uses_memory(&program->statements[i]);
	return adds;
}

/*
 * The same where copy engines and kernels do that: slices as long as copies want that many queues share, in windows as
 * other copies have.
 */
static bool adds_on_gpus(const struct ferry_tuning_facts *facts)
{
	return facts->options->dma && adds_on_trees(facts);
}

static uint64_t wanted_slice(const struct ferry_tuning_facts *facts)
{
	const struct ferry_program *program = facts->program;
	const struct ferry_compile_options *options = facts->options;
	uint64_t longest = facts->longest;
	bool dma = options->dma;
	bool reduces = ferry_collective_reduces(program->collective);
	uint64_t roots = program->collective == FERRY_REDUCESCATTER ? program->nranks : 1;
	if (adds_on_gpus(facts) && longest > ADDS_LEAST)
		return between(ADDS_LEAST, up_to_line(longest * roots / ADDS_DEPTH), ADDS_MOST);
	if (adds_on_trees(facts) && !dma && longest > TREE_LEAST)
		return between(TREE_LEAST, up_to_line(longest * roots / TREE_DEPTH), SLICE_MOST);
	if (longest <= (dma ? DMA_LEAST : ONE_SLICE))
		return longest ? up_to_line(longest) : 64;
	if (!dma)
		return between(SLICE_LEAST, up_to_line(longest / DEPTH), SLICE_MOST);
	uint64_t stages = reduces ? DMA_REDUCE_STAGES : DMA_MOVE_STAGES, transfers = transfers_of_lane(program), most;
	if (reduces) {
		uint64_t slots = DMA_REDUCE_SLOTS(transfers);
		/* windows must still fit when they are rounded up to pairs of cache lines */
		uint64_t lines = slots % 2 ? 128 : 64;
		most = between(64, room(facts) / slots / lines * lines, DMA_REDUCE_MOST);
	} else {
		uint64_t cached = move_staging(options) / most_windows(facts);
		uint64_t share = between(0, cached, room(facts)) / DMA_MOVE_SLOTS;
		most = between(DMA_MOVE_MOST, share / 128 * 128, DMA_MOVE_LONGEST);
	}
	double loss = (double)(transfers * options->costs.issue_ns) * options->costs.link / (double)stages;
	uint64_t best = (uint64_t)sqrt(loss * (double)longest);
	/* Slices of equal length: the last one is not a stub. */
	uint64_t nslices = best ? (longest + best - 1) / best : longest;
	return between(DMA_LEAST, (longest / nslices + DMA_ROUND - 1) / DMA_ROUND * DMA_ROUND, most);
}

/* Returns the bytes of the result of all ranks together, as if all chunks had this length. */
static uint64_t result_bytes(const struct ferry_program *program, uint64_t chunk)
{
	uint32_t send, receive;
	ferry_collective_chunks(program->collective, program->nranks, program->nchunks, program->root, 0, &send,
	                        &receive);
	return chunk * send;
}

static uint64_t wanted_workers(const struct ferry_compile_options *options, uint64_t staging, uint64_t bytes)
{
	return between(1, staging / (options->core_cache * DMA_CACHES),
	               between(1, bytes / DMA_WORKER_BYTES, UINT32_MAX));
}

/* Returns the slots that the workers' private caches may hold, and a quarter more. slot: bytes in all windows. */
static uint64_t held_slots(const struct ferry_compile_options *options, uint64_t workers, uint64_t slot)
{
	return (workers * options->core_cache * 5 / 4 + slot - 1) / slot;
}

static uint64_t wanted_window(const struct ferry_tuning_facts *facts, uint64_t slice, uint64_t nslices)
{
	const struct ferry_program *program = facts->program;
	const struct ferry_compile_options *options = facts->options;
	bool both_ways = program->collective == FERRY_ALLREDUCE && adds_on_trees(facts);
	uint64_t slots = both_ways ? between(2, TREE_SLOTS / program->nchunks, WINDOW_MOST) : WINDOW_MOST;
	if (!options->dma || adds_on_gpus(facts))
		return between(1, nslices, slots);
	uint64_t slot = slice * most_windows(facts);
	if (ferry_collective_reduces(program->collective)) {
		uint64_t bytes = result_bytes(program, slice * nslices),
		         staging = room(facts) / slice * slot;
		uint64_t held = options->core_cache ? held_slots(options, wanted_workers(options, staging, bytes), slot)
		                                    : nslices;
		return between(1, held + 2 * nslices, FERRY_MAX_WINDOW); /* two calls beyond what may be held */
	}
	return between(1, nslices, between(2, move_staging(options) / slot, slice < DMA_MOVE_LONG ? 8 : 4));
}

/* Chooses slice and window. If the staging is too small, takes fewer slots first, then shorter slices. */
static ferryResult_t choose_windows(const struct ferry_tuning_facts *facts, struct ferry_tuning *tuning)
{
	const struct ferry_compile_options *options = facts->options;
	bool variable = facts->program->collective == FERRY_ALLTOALLV; /* lengths unknown: as for a long chunk */
	uint64_t slice = options->slice ? options->slice
	                 : variable     ? (options->dma ? DMA_MOVE_MOST / 2 : SLICE_LEAST)
	                                : wanted_slice(facts);
	uint64_t nslices = variable ? UINT32_MAX : (facts->longest + slice - 1) / slice;
	uint64_t window = options->window ? options->window : wanted_window(facts, slice, nslices);
	uint64_t fitting = room(facts) / slice;
	if (!options->window && window > 2 && fitting < window)
		window = fitting > 2 ? fitting : 2;
	while (too_small(facts, slice, window) < FERRY_HOMES) {
		if (!options->window && window > 2)
			window--;
		else if (!options->slice && slice > SLICE_LEAST / 4)
			slice = up_to_line(slice / 2);
		else if (!options->window && window > 1)
			window = 1;
		else if (!options->slice && slice > 64)
			slice = up_to_line(slice / 2);
		else
			break;
	}
	uint32_t home = too_small(facts, slice, window);
	if (home < FERRY_HOMES)
		return ferry_fail(ferryProgramError,
		                  "%s: %u chunk versions with windows of %llu slot%s of %llu bytes do not fit "
		                  "the %llu bytes of %s %u%s",
		                  facts->program->name, facts->nwindows[home], (unsigned long long)window,
		                  window == 1 ? "" : "s", (unsigned long long)slice,
		                  (unsigned long long)room_in(facts, home),
		                  home < FERRY_MAX_DOMAINS ? "staging per call in domain" : "memory per call of rank",
		                  home < FERRY_MAX_DOMAINS ? home : home - FERRY_MAX_DOMAINS,
		                  home < FERRY_MAX_DOMAINS ? "; raise FERRY_STAGING" : "");
	tuning->slice = (uint32_t)slice;
	tuning->window = (uint32_t)window;
	return ferrySuccess;
}

/* For PUTs alone. */
static uint32_t put_slice(const struct ferry_tuning_facts *facts)
{
	uint64_t longest = facts->longest_of_all, best = PUT_MOST;
	bool hurry = facts->program->collective == FERRY_BROADCAST && !facts->options->dma;
	if (facts->forwards)
		best = between(hurry ? PUT_HURRY_LEAST : PUT_FORWARD_LEAST,
		               up_to_line(longest / (hurry ? PUT_HURRY_DEPTH : PUT_DEPTH)), PUT_FORWARD_MOST);
	/* Slices of equal length: the last one is not a stub. */
	uint64_t nslices = (longest + best - 1) / best;
	if (facts->program->collective == FERRY_ALLTOALLV) /* lengths unknown */
		return facts->options->slice ? facts->options->slice : PUT_MOST;
	best = nslices ? up_to_line((longest + nslices - 1) / nslices) : 64;
	return facts->options->slice ? facts->options->slice : (uint32_t)best;
}

/*
 * All parts have one slice size, which windows decide if any part has some. If a chunk in windows is one slice, longer
 * slices do not change that: then PUTs of the other parts get longer slices.
 */
static ferryResult_t choose_slices(const struct ferry_tuning_facts *facts, struct ferry_tuning *tuning)
{
	uint32_t put = put_slice(facts);
	*tuning = (struct ferry_tuning){.slice = put, .window = facts->options->window ? facts->options->window : 1};
	ferryResult_t result = facts->windows || !facts->puts ? choose_windows(facts, tuning) : ferrySuccess;
	if (!result && facts->windows && facts->puts && !facts->options->slice && facts->longest <= tuning->slice) {
		uint64_t most = room(facts) / tuning->window / 128 * 128; /* a window is whole pairs of lines */
		if (facts->program->collective == FERRY_ALLTOALLV && most > VARIABLE_MOST) /* lengths unknown */
			most = VARIABLE_MOST;
		tuning->slice = (uint32_t)between(tuning->slice, put, most > tuning->slice ? most : tuning->slice);
	}
	if (!result && (facts->longest_of_all + tuning->slice - 1) / tuning->slice > UINT32_MAX / 64)
		result = ferry_fail(ferryProgramError, "%s: a chunk of %llu bytes in slices of %u",
		                    facts->program->name, (unsigned long long)facts->longest_of_all, tuning->slice);
	return result;
}

/* Returns the bytes of all windows, in the domain with least of them; 0: there are none. */
static uint64_t taken(const struct ferry_tuning_facts *facts, const struct ferry_tuning *tuning)
{
	uint64_t least = 0;
	for (uint32_t domain = 0; domain < facts->program->ndomains; domain++) {
		uint64_t bytes = facts->nwindows[domain] * window_bytes(tuning->slice, tuning->window);
		if (bytes && (!least || bytes < least))
			least = bytes;
	}
	return least;
}

/* Returns the staging for windows, in the domain with least of it. */
static uint64_t offered(const struct ferry_tuning_facts *facts)
{
	uint64_t least = UINT64_MAX;
	for (uint32_t domain = 0; domain < facts->program->ndomains; domain++)
		if (facts->nwindows[domain] && facts->options->staging[domain] < least)
			least = facts->options->staging[domain];
	return least;
}

/*
 * For sums with copy engines: so few workers that a slot has left the cores' private caches when it is used again, and
 * no more than the result keeps busy.
 */
static uint32_t choose_workers(const struct ferry_tuning_facts *facts, const struct ferry_tuning *tuning)
{
	const struct ferry_compile_options *options = facts->options;
	if (!options->dma || !options->core_cache || !ferry_collective_reduces(facts->program->collective) ||
	    adds_on_gpus(facts))
		return 0;
	uint64_t staging = options->window ? taken(facts, tuning) : offered(facts);
	return (uint32_t)wanted_workers(options, staging, result_bytes(facts->program, facts->longest));
}

/* Returns how many windows copy engines write, in the domain with most. */
static uint32_t most_written(const struct ferry_program *program)
{
	uint32_t counts[FERRY_MAX_DOMAINS] = {0}, most = 1;
	for (uint32_t i = 0; i < program->nstatements; i++) {
		const struct ferry_statement *statement = &program->statements[i];
		if (statement->opcode != FERRY_D2H)
			continue;
		uint32_t domain = ferry_place_domain(program, statement->destination);
		if (++counts[domain] > most)
			most = counts[domain];
	}
	return most;
}

/*
 * Returns as many slots as the cores' private caches may still hold, at most half of the window; more if a copy engine
 * would else be further ahead than the last-level cache keeps what it has written.
 */
static uint32_t choose_guard(const struct ferry_tuning_facts *facts, const struct ferry_tuning *tuning)
{
	uint64_t slot = taken(facts, tuning) / tuning->window; /* of all versions together */
	if (!tuning->workers || !slot)
		return 0;
	uint64_t held = between(0, held_slots(facts->options, tuning->workers, slot), tuning->window / 2);
	uint64_t written = tuning->slice * (uint64_t)most_written(facts->program);
	uint64_t ahead = between(2, DMA_AHEAD(offered(facts)) / written, UINT32_MAX);
	return (uint32_t)between(held, tuning->window > ahead ? tuning->window - ahead : 0, tuning->window);
}

/* The next call begins behind the slots of this one, which cores have just read. */
static uint32_t choose_advance(const struct ferry_tuning_facts *facts, const struct ferry_tuning *tuning)
{
	if (!facts->options->dma || !ferry_collective_reduces(facts->program->collective) || adds_on_gpus(facts))
		return 0;
	return (uint32_t)((facts->longest + tuning->slice - 1) / tuning->slice % tuning->window);
}

ferryResult_t ferry_tune(const struct ferry_tuning_facts *facts, struct ferry_tuning *tuning)
{
	ferryResult_t result = choose_slices(facts, tuning);
	if (result)
		return result;
	tuning->workers = choose_workers(facts, tuning);
	tuning->guard = choose_guard(facts, tuning);
	tuning->advance = choose_advance(facts, tuning);
	return ferrySuccess;
}
