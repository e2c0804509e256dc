/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matroid union (Edmonds; Roskind and Tarjan): a link that fits into no forest goes in if a chain of exchanges makes
 * room, each a link of one forest that goes into another in the place of one on the way between its ends.
 */
#include "rank-lib/program/synth/packing.h"

#include "ipc/rankset.h"
#include "rank-lib/program/synth/cuts.h"
#include "rank-lib/program/synth/load.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CLOSE      0.02 /* times that differ by less than this part count as equal */
#define ROUNDS     16   /* of a search */
#define NO_FOREST  0xff
#define MANY_RANKS 16   /* more than these: no search for exact trees */

static const uint32_t tree_counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 24};
#define TREE_COUNTS (sizeof tree_counts / sizeof *tree_counts)

/* ---- exact, over dedicated links ---- */

/* A link in a forest, or (NO_FOREST) the new link; cause: the step whose link takes its place. */
struct step {
	uint8_t forest, a, b;
	uint32_t cause;
};

struct forests {
	uint32_t nranks, count;
	uint64_t neighbours[FERRY_MOST_TREES][FERRY_MAX_RANKS]; /* bit r: linked to rank r in that forest */
	uint8_t seen[FERRY_MOST_TREES][FERRY_MAX_RANKS][FERRY_MAX_RANKS]; /* a < b: it is among the steps */
	struct step steps[FERRY_MOST_TREES * FERRY_MAX_RANKS];
	uint32_t nsteps;
};

static void toggle(struct forests *forests, uint32_t forest, uint32_t a, uint32_t b)
{
	forests->neighbours[forest][a] ^= 1ull << b;
	forests->neighbours[forest][b] ^= 1ull << a;
}

/* Finds the way from a to b in a forest; before[r]: the rank before r on it. False: they are in different trees. */
static bool find_way(const struct forests *forests, uint32_t forest, uint32_t a, uint32_t b,
                     uint8_t before[FERRY_MAX_RANKS])
{
	uint64_t reached = 1ull << a, fresh = reached;
	while (fresh && !(reached >> b & 1)) {
		uint32_t rank = (uint32_t)__builtin_ctzll(fresh);
		uint64_t next = forests->neighbours[forest][rank] & ~reached;
		fresh &= fresh - 1;
		fresh |= next;
		reached |= next;
		for (; next; next &= next - 1)
			before[__builtin_ctzll(next)] = (uint8_t)rank;
	}
	return reached >> b & 1;
}

/* Moves the link of step `last` into `forest`; its cause takes its place, and so on, down to the new link. */
static void exchange(struct forests *forests, uint32_t last, uint32_t forest)
{
	while (1) {
		const struct step *step = &forests->steps[last];
		if (step->forest != NO_FOREST)
			toggle(forests, step->forest, step->a, step->b);
		toggle(forests, forest, step->a, step->b);
		if (step->forest == NO_FOREST)
			return;
		forest = step->forest;
		last = step->cause;
	}
}

static void add_step(struct forests *forests, uint8_t forest, uint32_t a, uint32_t b, uint32_t cause)
{
	uint32_t low = a < b ? a : b, high = a < b ? b : a;
	if (forest != NO_FOREST && forests->seen[forest][low][high])
		return;
	if (forest != NO_FOREST)
		forests->seen[forest][low][high] = 1;
	forests->steps[forests->nsteps++] = (struct step){forest, (uint8_t)low, (uint8_t)high, cause};
}

/* Adds one more copy of a link. False: no exchanges make room. */
static bool add_link(struct forests *forests, uint32_t a, uint32_t b)
{
	uint8_t before[FERRY_MAX_RANKS];
	memset(forests->seen, 0, forests->count * sizeof *forests->seen);
	forests->nsteps = 0;
	add_step(forests, NO_FOREST, a, b, 0);
	for (uint32_t i = 0; i < forests->nsteps; i++)
		for (uint8_t forest = 0; forest < forests->count; forest++) {
			struct step step = forests->steps[i];
			if (forest == step.forest)
				continue;
			if (!find_way(forests, forest, step.a, step.b, before)) {
				exchange(forests, i, forest);
				return true;
			}
			for (uint32_t rank = step.b; rank != step.a; rank = before[rank])
				add_step(forests, forest, rank, before[rank], i);
		}
	return false;
}

/* Two-way speed of a link. */
static double both_ways(const struct ferry_links *links, uint32_t a, uint32_t b)
{
	return fmin(links->speed[a][b], links->speed[b][a]);
}

/* Whether so many trees fit if no link carries more chunks than it can in that time, per byte of a block. */
static bool fit(struct forests *forests, const struct ferry_links *links, uint32_t count, double time)
{
	uint32_t n = forests->nranks, missing = count * (n - 1);
	forests->count = count;
	memset(forests->neighbours, 0, sizeof forests->neighbours);
	for (uint32_t shift = 1; shift < n; shift++)
		for (uint32_t a = 0; a + shift < n; a++) {
			uint32_t copies = (uint32_t)fmin(both_ways(links, a, a + shift) * time * count + 1e-6, count);
			while (copies && missing && add_link(forests, a, a + shift)) {
				copies--;
				missing--;
			}
		}
	return !missing;
}

/* Returns the least time up to `most` in which so many trees fit, by bisection; INFINITY: none. */
static double find_time(struct forests *forests, const struct ferry_links *links, uint32_t count, double most)
{
	uint32_t n = forests->nranks;
	double best = INFINITY;
	if (!fit(forests, links, count, most))
		return INFINITY;
	double low = 0, high = most; /* high fits, low does not */
	while (high > 0) {
		double middle = 0, wanted = (low + high) / 2;
		for (uint32_t a = 0; a < n; a++)
			for (uint32_t b = a + 1; b < n; b++)
				for (uint32_t k = 1; both_ways(links, a, b) > 0 && k <= FERRY_MOST_TREES; k++) {
					double time = k / both_ways(links, a, b) / count;
					bool inside = time > low * (1 + 1e-9) && time < high * (1 - 1e-9);
					if (inside && fabs(time - wanted) < fabs(middle - wanted))
						middle = time;
				}
		best = high;
		if (!(middle > low * (1 + 1e-9) && middle < high * (1 - 1e-9)))
			break;
		if (fit(forests, links, count, middle))
			high = middle;
		else
			low = middle;
	}
	return best;
}

/* ---- rooted ---- */

static uint32_t measure_depth(const uint64_t *neighbours, uint32_t root, uint8_t *parent)
{
	uint64_t reached = 1ull << root, level = reached;
	uint32_t depth = 0;
	parent[root] = (uint8_t)root;
	while (level) {
		uint64_t next = 0;
		for (; level; level &= level - 1) {
			uint32_t rank = (uint32_t)__builtin_ctzll(level);
			for (uint64_t fresh = neighbours[rank] & ~reached; fresh; fresh &= fresh - 1)
				parent[__builtin_ctzll(fresh)] = (uint8_t)rank;
			next |= neighbours[rank] & ~reached;
			reached |= next;
		}
		level = next;
		depth += level != 0;
	}
	return depth;
}

/* Roots a tree at the rank from which it is least deep; of several, at the one that roots the fewest trees. */
static void root_tree(struct ferry_packing *packing, uint32_t tree, const uint64_t *neighbours)
{
	uint8_t parent[FERRY_MAX_RANKS];
	uint32_t least = UINT32_MAX, roots[FERRY_MAX_RANKS] = {0};
	for (uint32_t before = 0; before < tree; before++)
		roots[packing->root[before]]++;
	for (uint32_t rank = 0; rank < packing->nranks; rank++) {
		uint32_t cost = measure_depth(neighbours, rank, parent) * FERRY_MAX_RANKS + roots[rank];
		if (cost >= least)
			continue;
		least = cost;
		packing->root[tree] = (uint8_t)rank;
		memcpy(packing->parent[tree], parent, sizeof parent);
	}
}

static double measure_time(const struct ferry_packing *packing, const struct ferry_links *links)
{
	struct ferry_load load = {.links = links};
	for (uint32_t tree = 0; tree < packing->ntrees; tree++)
		for (uint32_t rank = 0; rank < packing->nranks; rank++) {
			uint32_t parent = packing->parent[tree][rank];
			if (parent == rank)
				continue;
			ferry_load_add(&load, rank, parent, 1.0 / packing->ntrees);
			ferry_load_add(&load, parent, rank, 1.0 / packing->ntrees);
		}
	return ferry_load_time(&load);
}

static void take(struct ferry_packing *packing, const struct ferry_links *links, uint32_t count,
                 uint64_t (*neighbours)[FERRY_MAX_RANKS])
{
	packing->ntrees = count;
	for (uint32_t tree = 0; tree < count; tree++)
		root_tree(packing, tree, neighbours[tree]);
	packing->time = measure_time(packing, links);
}

static bool pack_exactly(const struct ferry_links *links, struct ferry_packing *packing)
{
	struct forests *forests = malloc(sizeof *forests);
	if (!forests)
		return false;
	double slowest = INFINITY;
	forests->nranks = packing->nranks;
	for (uint32_t a = 0; a < packing->nranks; a++)
		for (uint32_t b = a + 1; b < packing->nranks; b++)
			if (both_ways(links, a, b) > 0)
				slowest = fmin(slowest, both_ways(links, a, b));
	double best = slowest < INFINITY ? 1 / slowest / (1 - CLOSE) : 0; /* one tree fits in this time, if any does */
	for (size_t i = 0; i < TREE_COUNTS; i++) {
		double time = find_time(forests, links, tree_counts[i], best * (1 - CLOSE));
		if (time == INFINITY || !fit(forests, links, tree_counts[i], time))
			continue;
		best = time;
		take(packing, links, tree_counts[i], forests->neighbours);
	}
	free(forests);
	return packing->ntrees > 0;
}

/* ---- searched, over links that share something ---- */

struct search {
	struct ferry_load load;
	uint32_t nranks, count;
	uint64_t neighbours[FERRY_MOST_TREES][FERRY_MAX_RANKS];
	uint32_t depth[FERRY_MAX_RANKS]; /* in the tree that grows */
};

static void put_link(struct search *search, uint32_t tree, uint32_t a, uint32_t b, double sign)
{
	search->neighbours[tree][a] ^= 1ull << b;
	search->neighbours[tree][b] ^= 1ull << a;
	ferry_load_add(&search->load, a, b, sign / search->count);
	ferry_load_add(&search->load, b, a, sign / search->count);
}

/* Grows a tree from a rank: by the link that ends first; links that end before `limit` compare by depth. */
static bool grow(struct search *search, uint32_t tree, uint32_t root, double limit)
{
	uint64_t reached = 1ull << root, all = ferry_rankset_all(search->nranks);
	search->depth[root] = 0;
	while (reached != all) {
		double least = INFINITY;
		uint32_t from = 0, to = FERRY_MAX_RANKS;
		for (uint64_t as = reached; as; as &= as - 1)
			for (uint64_t bs = all & ~reached; bs; bs &= bs - 1) {
				uint32_t a = (uint32_t)__builtin_ctzll(as), b = (uint32_t)__builtin_ctzll(bs);
				double time = fmax(ferry_load_after(&search->load, a, b, 1.0 / search->count),
				                   ferry_load_after(&search->load, b, a, 1.0 / search->count));
				double cost = fmax(time, limit) * (1 + 1e-6 * search->depth[a]);
				if (!(cost < least))
					continue;
				least = cost;
				from = a;
				to = b;
			}
		if (to == FERRY_MAX_RANKS)
			return false;
		put_link(search, tree, from, to, 1);
		search->depth[to] = search->depth[from] + 1;
		reached |= 1ull << to;
	}
	return true;
}

static void uproot(struct search *search, uint32_t tree)
{
	for (uint32_t a = 0; a < search->nranks; a++)
		for (uint64_t bs = search->neighbours[tree][a] >> a << a; bs; bs &= bs - 1)
			put_link(search, tree, a, (uint32_t)__builtin_ctzll(bs), -1);
}

/* Takes the trees if they are clearly faster than the best so far, or as many and faster. */
static void consider(struct search *search, struct ferry_packing *packing)
{
	double time = ferry_load_time(&search->load);
	bool fewer = packing->ntrees == search->count && time < packing->time * (1 - 1e-6);
	if (!packing->ntrees || fewer || time < packing->time * (1 - CLOSE))
		take(packing, search->load.links, search->count, search->neighbours);
}

static bool search_trees(const struct ferry_links *links, struct ferry_packing *packing)
{
	struct search *search = malloc(sizeof *search);
	uint32_t n = packing->nranks;
	uint8_t each[FERRY_MAX_RANKS];
	bool connected = search != NULL;
	for (uint32_t rank = 0; rank < n; rank++)
		each[rank] = (uint8_t)rank;
	double least = 2 * (n - 1.0) / ferry_cut_capacity(links, n, each); /* all that trees push, over all links */
	for (size_t i = 0; connected && i < TREE_COUNTS; i++) {
		if (packing->ntrees && packing->time <= least * (1 + CLOSE))
			break;
		uint32_t rounds = n > MANY_RANKS ? 2 : ROUNDS;
		*search = (struct search){.load.links = links, .nranks = n, .count = tree_counts[i]};
		for (uint32_t tree = 0; connected && tree < search->count; tree++)
			connected = grow(search, tree, tree % n, 0);
		for (uint32_t round = 0; connected && round < rounds; round++) {
			consider(search, packing);
			for (uint32_t tree = 0; tree < search->count; tree++) {
				uproot(search, tree);
				grow(search, tree, (tree + round) % n,
				     round % 2 ? packing->time * (1 - CLOSE / 2) : 0);
			}
		}
	}
	free(search);
	return connected;
}

/* ---- either ---- */

static bool are_dedicated(const struct ferry_links *links, uint32_t nranks)
{
	for (uint32_t from = 0; from < nranks; from++) {
		double sum = 0;
		for (uint32_t to = 0; to < nranks; to++) {
			sum += links->speed[from][to];
			if (links->through[from][to])
				return false;
		}
		if (links->port[from] > 0 && links->port[from] < sum * (1 - 1e-6))
			return false;
	}
	return true;
}

bool ferry_packing_find(const struct ferry_links *links, uint32_t nranks, struct ferry_packing *packing)
{
	*packing = (struct ferry_packing){.nranks = nranks};
	if (nranks < 2)
		return false;
	return nranks <= MANY_RANKS && are_dedicated(links, nranks) ? pack_exactly(links, packing)
	                                                            : search_trees(links, packing);
}
