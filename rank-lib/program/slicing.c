/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The policy. A message that fits one slice goes as one: cutting it costs wake-ups and gains nothing. Beyond that a chunk is cut
 * into about DEPTH slices, so that the stages of the pipeline overlap, between SLICE_LEAST (below it the cost per slice
 * dominates) and SLICE_MOST (a slice of every stage should stay in a core's cache). Windows deeper than WINDOW_MOST slots
 * would only take cache from others.
 */
#include "rank-lib/program/slicing.h"

#include "ipc/error.h"

#define ONE_SLICE (64u << 10)
#define SLICE_LEAST (16u << 10)
#define SLICE_MOST (512u << 10)
#define DEPTH 8
#define WINDOW_MOST 4

/*
 * Where copy engines move the slices (docs/performance.md has the measurements). Each copy costs 4 us to issue and leaves a gap,
 * so slices are longer. Where cores reduce, windows are as deep as the staging allows and every call goes on where the last one
 * stopped: a slot should come round again only when its lines have left the private caches of the cores that read it, because
 * copy engines write and read lines that a core holds at a fraction of their speed. Where data only passes through, windows
 * are shallow: what D2H has just written is read fastest.
 */
#define DIRECT_REDUCE_LEAST (128u << 10)
#define DIRECT_REDUCE_MOST (2u << 20)
#define DIRECT_REDUCE_DEPTH 32
#define DIRECT_REDUCE_WINDOW 1024
#define DIRECT_REDUCE_SLOTS 6 /* at least: long slices are not worth a window shallower than this */
#define DIRECT_MOVE_LEAST (1u << 20)
#define DIRECT_MOVE_MOST (2u << 20)
#define DIRECT_MOVE_DEPTH 4
#define DIRECT_MOVE_WINDOW 2
#define DIRECT_CACHES 3 /* staging per worker, in private caches */

static uint64_t up_to_line(uint64_t bytes)
{
	return (bytes + 63) / 64 * 64;
}

/* A version's window is rounded up to a pair of cache lines, as the compiler does. */
static bool fits(const struct ferry_program *program, const struct ferry_compile_options *options, const uint32_t *nwindows,
                 uint64_t slice, uint64_t window)
{
	for (uint32_t domain = 0; domain < program->ndomains; domain++)
		if (nwindows[domain] && (slice * window + 127) / 128 * 128 > options->staging[domain] / nwindows[domain])
			return false;
	return true;
}

static uint64_t between(uint64_t least, uint64_t value, uint64_t most)
{
	return value > most ? most : value < least ? least : value;
}

/* Staging that one version's window may have. */
static uint64_t room(const struct ferry_program *program, const struct ferry_compile_options *options, const uint32_t *nwindows)
{
	uint64_t least = UINT64_MAX;
	for (uint32_t domain = 0; domain < program->ndomains; domain++)
		if (nwindows[domain] && options->staging[domain] / nwindows[domain] < least)
			least = options->staging[domain] / nwindows[domain];
	return least;
}

static uint64_t wanted_slice(uint64_t longest, uint64_t room, bool direct, bool reduces)
{
	uint64_t least = !direct ? ONE_SLICE : reduces ? DIRECT_REDUCE_LEAST : DIRECT_MOVE_LEAST;
	if (longest <= least)
		return longest ? up_to_line(longest) : 64;
	if (!direct)
		return between(SLICE_LEAST, up_to_line(longest / DEPTH), SLICE_MOST);
	if (!reduces)
		return between(DIRECT_MOVE_LEAST, up_to_line(longest / DIRECT_MOVE_DEPTH), DIRECT_MOVE_MOST);
	uint64_t most = room / DIRECT_REDUCE_SLOTS / 64 * 64;
	return between(DIRECT_REDUCE_LEAST, up_to_line(longest / DIRECT_REDUCE_DEPTH), most < DIRECT_REDUCE_MOST ? most : DIRECT_REDUCE_MOST);
}

static uint64_t wanted_window(uint64_t nslices, bool direct, bool reduces)
{
	if (direct && reduces)
		return DIRECT_REDUCE_WINDOW;
	return between(1, nslices, direct ? DIRECT_MOVE_WINDOW : WINDOW_MOST);
}

ferryResult_t ferry_choose_slices(const struct ferry_program *program, const struct ferry_compile_options *options,
                                  uint64_t longest, const uint32_t *nwindows, uint32_t *chosen_slice, uint32_t *chosen_window)
{
	bool variable = program->collective == FERRY_ALLTOALLV; /* lengths unknown: as for a long chunk */
	bool direct = options->direct, reduces = ferry_collective_reduces(program->collective);
	uint64_t slice = options->slice ? options->slice
	                 : variable     ? (direct ? DIRECT_MOVE_LEAST : SLICE_LEAST)
	                                : wanted_slice(longest, room(program, options, nwindows), direct, reduces);
	uint64_t nslices = variable ? UINT32_MAX : (longest + slice - 1) / slice;
	uint64_t window = options->window ? options->window : wanted_window(nslices, direct, reduces);
	while (!fits(program, options, nwindows, slice, window)) {
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
	for (uint32_t domain = 0; domain < program->ndomains; domain++)
		if (nwindows[domain] && (slice * window + 127) / 128 * 128 > options->staging[domain] / nwindows[domain])
			return ferry_fail(ferryProgramError,
			                  "%s: %u chunk versions with windows of %llu slots of %llu bytes do not fit the %llu bytes of "
			                  "staging per call in domain %u; raise FERRY_STAGING",
			                  program->name, nwindows[domain], (unsigned long long)window, (unsigned long long)slice,
			                  (unsigned long long)options->staging[domain], domain);
	if ((longest + slice - 1) / slice > UINT32_MAX / 64)
		return ferry_fail(ferryProgramError, "%s: a chunk of %llu bytes in slices of %llu", program->name,
		                  (unsigned long long)longest, (unsigned long long)slice);
	*chosen_slice = (uint32_t)slice;
	*chosen_window = (uint32_t)window;
	return ferrySuccess;
}

uint32_t ferry_choose_advance(const struct ferry_compile_options *options, uint64_t longest, const struct ferry_plan *plan)
{
	if (!options->direct || !ferry_collective_reduces(plan->collective))
		return 0;
	return (uint32_t)((longest + plan->slice - 1) / plan->slice % plan->window);
}

uint32_t ferry_choose_workers(const struct ferry_compile_options *options, const struct ferry_plan *plan)
{
	uint64_t least = 0;
	if (!options->direct || !options->core_cache || !ferry_collective_reduces(plan->collective))
		return 0;
	for (uint32_t domain = 0; domain < plan->ndomains; domain++)
		if (plan->staging[domain] && (!least || plan->staging[domain] < least))
			least = plan->staging[domain];
	return (uint32_t)between(1, least / (options->core_cache * DIRECT_CACHES), UINT32_MAX);
}
