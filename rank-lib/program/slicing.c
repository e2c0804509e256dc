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
 * Where copy engines move the slices (docs/performance.md has the measurements): each copy costs about 3 us to issue and leaves
 * a gap, so slices are longer; and windows are as deep as the staging allows where cores reduce, because the staging must be
 * larger than what the workers' private caches hold, but shallow where data only passes through.
 */
#define DIRECT_ONE_SLICE (128u << 10)
#define DIRECT_LEAST (128u << 10)
#define DIRECT_MOST (1u << 20)
#define DIRECT_REDUCE_WINDOW 16
#define DIRECT_MOVE_WINDOW 4
#define DIRECT_CACHES 9 / 4 /* staging per worker, in private caches */

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

static uint64_t wanted_slice(uint64_t longest, bool direct)
{
	if (direct && longest > DIRECT_ONE_SLICE) {
		uint64_t slice = up_to_line(longest / DEPTH);
		return slice < DIRECT_LEAST ? DIRECT_LEAST : slice > DIRECT_MOST ? DIRECT_MOST : slice;
	}
	if (longest <= ONE_SLICE)
		return longest ? up_to_line(longest) : 64;
	uint64_t slice = up_to_line(longest / DEPTH);
	return slice < SLICE_LEAST ? SLICE_LEAST : slice > SLICE_MOST ? SLICE_MOST : slice;
}

ferryResult_t ferry_choose_slices(const struct ferry_program *program, const struct ferry_compile_options *options,
                                  uint64_t longest, const uint32_t *nwindows, uint32_t *chosen_slice, uint32_t *chosen_window)
{
	bool variable = program->collective == FERRY_ALLTOALLV; /* lengths unknown: as for a long chunk */
	uint64_t slice = options->slice ? options->slice
	                 : variable     ? (options->direct ? DIRECT_LEAST : SLICE_LEAST)
	                                : wanted_slice(longest, options->direct);
	uint64_t deepest = !options->direct                                ? WINDOW_MOST
	                   : ferry_collective_reduces(program->collective) ? DIRECT_REDUCE_WINDOW
	                                                                   : DIRECT_MOVE_WINDOW;
	uint64_t nslices = variable ? deepest : (longest + slice - 1) / slice;
	uint64_t window = options->window ? options->window : nslices < deepest ? nslices : deepest;
	if (!window)
		window = 1;
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

uint32_t ferry_choose_workers(const struct ferry_compile_options *options, const uint64_t *staging, uint32_t ndomains)
{
	uint64_t least = 0;
	if (!options->direct || !options->core_cache)
		return 0;
	for (uint32_t domain = 0; domain < ndomains; domain++)
		if (staging[domain] && (!least || staging[domain] < least))
			least = staging[domain];
	uint64_t workers = least / (options->core_cache * DIRECT_CACHES);
	return workers < 1 ? 1 : (uint32_t)workers;
}
