/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/program/synth/cuts.h"

#include "ipc/rankset.h"

#include <math.h>
#include <string.h>

/* The links of the cut, and what each adds to the capacity: its speed, or 0 once a port or shared link covers it. */
struct cover {
	const struct ferry_links *links;
	uint32_t nranks;
	float adds[FERRY_MAX_RANKS][FERRY_MAX_RANKS];
	uint64_t shared; /* bit k: a link that counts goes through it */
	double capacity;
};

/* `shared`: a shared link, or FERRY_MAX_SHARED_LINKS + a rank: its port. */
static bool goes_through(const struct ferry_links *links, uint32_t from, uint32_t to, uint32_t shared)
{
	return shared < FERRY_MAX_SHARED_LINKS ? links->through[from][to] >> shared & 1
	                                       : shared - FERRY_MAX_SHARED_LINKS == from;
}

/* What all links through a shared link or port add by themselves, less its speed. */
static double find_saving(const struct cover *cover, uint32_t shared, double speed)
{
	double alone = 0;
	for (uint32_t from = 0; from < cover->nranks; from++)
		for (uint32_t to = 0; to < cover->nranks; to++)
			if (cover->adds[from][to] > 0 && goes_through(cover->links, from, to, shared))
				alone += cover->adds[from][to];
	return alone - speed;
}

static double speed_of(const struct ferry_links *links, uint32_t shared)
{
	double port = shared < FERRY_MAX_SHARED_LINKS ? links->shared[shared]
	                                              : links->port[shared - FERRY_MAX_SHARED_LINKS];
	return port > 0 ? port : INFINITY;
}

/*
 * Whether all links of the cut through a shared link come out of one rank (`out`), or go into one: then it is a port.
 */
static bool is_port(const struct cover *cover, uint32_t shared, bool out)
{
	uint32_t rank = FERRY_MAX_RANKS;
	for (uint32_t from = 0; from < cover->nranks; from++)
		for (uint32_t to = 0; to < cover->nranks; to++) {
			uint32_t end = out ? from : to;
			if (!(cover->adds[from][to] > 0) || !goes_through(cover->links, from, to, shared))
				continue;
			if (rank != FERRY_MAX_RANKS && rank != end)
				return false;
			rank = end;
		}
	return true;
}

enum covers { ALL, PORTS_OUT, PORTS_IN };

/*
 * Covers links by shared links and ports as long as that lowers the capacity, the one that lowers it most first: by all
 * of them, or only by ports in one direction. Any cover is an upper bound.
 */
static double lower_by(struct cover *cover, enum covers covers)
{
	uint32_t n = cover->nranks;
	while (1) {
		double most = 0;
		uint32_t best = 0;
		for (uint32_t shared = 0; shared < FERRY_MAX_SHARED_LINKS + n; shared++) {
			if (shared < FERRY_MAX_SHARED_LINKS && !(cover->shared >> shared & 1))
				continue;
			double speed = speed_of(cover->links, shared);
			double saving = speed < INFINITY ? find_saving(cover, shared, speed) : 0;
			if (saving > most && covers != ALL && !is_port(cover, shared, covers == PORTS_OUT))
				continue;
			best = saving > most ? shared : best;
			most = saving > most ? saving : most;
		}
		if (!(most > 1e-9 * cover->capacity))
			return cover->capacity;
		cover->capacity -= most;
		for (uint32_t from = 0; from < n; from++)
			for (uint32_t to = 0; to < n; to++)
				if (goes_through(cover->links, from, to, best))
					cover->adds[from][to] = 0;
	}
}

static double lower(const struct cover *cover)
{
	double least = cover->capacity;
	for (enum covers covers = ALL; covers <= PORTS_IN; covers++) {
		struct cover copy = *cover;
		least = fmin(least, lower_by(&copy, covers));
	}
	return least;
}

static void count(struct cover *cover, uint32_t from, uint32_t to)
{
	cover->adds[from][to] = cover->links->speed[from][to];
	cover->capacity += cover->links->speed[from][to];
	cover->shared |= cover->links->through[from][to];
}

double ferry_cut_capacity(const struct ferry_links *links, uint32_t nranks, const uint8_t *part)
{
	struct cover cover = {.links = links, .nranks = nranks};
	for (uint32_t from = 0; from < nranks; from++)
		for (uint32_t to = 0; to < nranks; to++)
			if (part[from] != part[to])
				count(&cover, from, to);
	return lower(&cover);
}

double ferry_cut_into(const struct ferry_links *links, uint32_t nranks, uint64_t set)
{
	struct cover cover = {.links = links, .nranks = nranks};
	for (uint32_t from = 0; from < nranks; from++)
		for (uint32_t to = 0; to < nranks; to++)
			if (set >> to & ~(set >> from) & 1)
				count(&cover, from, to);
	return lower(&cover);
}

static double time_over(double blocks, double capacity)
{
	return blocks > 0 ? capacity > 0 ? blocks / capacity : INFINITY : 0;
}

/* The time for the blocks that the set lacks over the links into it. */
static double enter_time(const struct ferry_links *links, uint32_t nranks, uint64_t sources, uint64_t set)
{
	return time_over(__builtin_popcountll(sources & ~set), ferry_cut_into(links, nranks, set));
}

double ferry_cut_spread_time(const struct ferry_links *links, uint32_t nranks, uint64_t sources)
{
	uint64_t all = ferry_rankset_all(nranks);
	uint8_t each[FERRY_MAX_RANKS];
	double least = 0;
	for (uint32_t rank = 0; rank < nranks; rank++)
		each[rank] = (uint8_t)rank;
	for (uint64_t set = 1; nranks <= FERRY_MOST_CUT_RANKS && set < all; set++)
		least = fmax(least, enter_time(links, nranks, sources, set));
	for (uint32_t rank = 0; rank < nranks && nranks > FERRY_MOST_CUT_RANKS; rank++) {
		least = fmax(least, enter_time(links, nranks, sources, 1ull << rank));
		least = fmax(least, enter_time(links, nranks, sources, all & ~(1ull << rank)));
	}
	double pushes = __builtin_popcountll(sources) * (nranks - 1.0);
	return fmax(least, time_over(pushes, ferry_cut_capacity(links, nranks, each)));
}

/* The next partition of the ranks into numbered parts (restricted growth); false: there is none. */
static bool next_partition(uint8_t *part, uint32_t nranks)
{
	for (uint32_t at = nranks; at-- > 1;) {
		uint8_t most = 0;
		for (uint32_t before = 0; before < at; before++)
			most = part[before] > most ? part[before] : most;
		if (part[at] <= most) {
			part[at]++;
			memset(part + at + 1, 0, nranks - at - 1);
			return true;
		}
	}
	return false;
}

static double cross_time(const struct ferry_links *links, uint32_t nranks, const uint8_t *part)
{
	uint32_t parts = 0;
	for (uint32_t rank = 0; rank < nranks; rank++)
		parts = part[rank] + 1u > parts ? part[rank] + 1u : parts;
	return time_over(2 * (parts - 1.0), ferry_cut_capacity(links, nranks, part));
}

double ferry_cut_reduce_time(const struct ferry_links *links, uint32_t nranks)
{
	uint8_t part[FERRY_MAX_RANKS] = {0};
	double least = 0;
	while (nranks <= FERRY_MOST_CUT_RANKS && next_partition(part, nranks))
		least = fmax(least, cross_time(links, nranks, part));
	for (uint32_t rank = 0; rank < nranks && nranks > FERRY_MOST_CUT_RANKS; rank++) {
		memset(part, 0, sizeof part);
		part[rank] = 1;
		least = fmax(least, cross_time(links, nranks, part));
	}
	for (uint32_t rank = 0; rank < nranks; rank++)
		part[rank] = (uint8_t)rank;
	return fmax(least, cross_time(links, nranks, part));
}
