/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/program/synth/rings.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define MOST_STEPS 20000 /* of one search */
#define SHARED_LAST 1e6f /* GB/s: more than any link has */
#define SPENT      0.01f /* of the fastest link: links with less left are not used */

/* The capacity that is left of the links, and the ring that is being searched. */
struct search {
	uint32_t nranks, steps;
	const struct ferry_links *links;
	/* GB/s */
	float left[FERRY_MAX_RANKS][FERRY_MAX_RANKS], port[FERRY_MAX_RANKS], shared[FERRY_MAX_SHARED_LINKS];
	float least; /* that each link of the ring must have */
	uint8_t next[FERRY_MAX_RANKS];
	uint64_t visited;
};

static float has_left(const struct search *search, uint32_t from, uint32_t to)
{
	float left = fminf(search->left[from][to], search->port[from]);
	for (uint64_t shared = search->links->through[from][to]; shared; shared &= shared - 1)
		left = fminf(left, search->shared[__builtin_ctzll(shared)]);
	return left;
}

/* Links that share nothing go first: others may need what a shared link carries. */
static float order_of(const struct search *search, uint32_t from, uint32_t to)
{
	return has_left(search, from, to) + (search->links->through[from][to] ? SHARED_LAST : 0);
}

/*
 * Returns the next rank to try after `from`, FERRY_MAX_RANKS if there is none: that of the link with the least left
 * that is enough, so that more is left for other rings. Ties go by the shift. after: the rank tried last, or
 * FERRY_MAX_RANKS.
 */
static uint32_t find_next(const struct search *search, uint32_t from, uint32_t after)
{
	uint32_t n = search->nranks, best = FERRY_MAX_RANKS;
	/* else only ranks after `after`, in the order of what is left, then of the shift */
	bool any = after == FERRY_MAX_RANKS;
	for (uint32_t shift = 1; shift < n; shift++) {
		uint32_t to = (from + shift) % n;
		if (has_left(search, from, to) < search->least || search->visited >> to & 1)
			continue;
		float order = order_of(search, from, to), bar = any ? 0 : order_of(search, from, after);
		if (!any && (order < bar || (order == bar && shift <= (after + n - from) % n)))
			continue;
		if (best == FERRY_MAX_RANKS || order < order_of(search, from, best))
			best = to;
	}
	return best;
}

/* Searches a ring through all ranks from rank 0, depth first. */
static bool find_ring(struct search *search)
{
	uint8_t path[FERRY_MAX_RANKS] = {0};
	uint32_t length = 1, after = FERRY_MAX_RANKS;
	search->visited = 1;
	search->steps = 0;
	while (length && search->steps++ < MOST_STEPS) {
		uint32_t from = path[length - 1], to = FERRY_MAX_RANKS;
		if (length < search->nranks)
			to = find_next(search, from, after);
		else if (has_left(search, from, 0) >= search->least)
			return search->next[from] = 0, true;
		if (to != FERRY_MAX_RANKS) {
			path[length++] = search->next[from] = (uint8_t)to;
			search->visited |= 1ull << to;
			after = FERRY_MAX_RANKS;
		} else {
			length--;
			after = from;
			search->visited &= ~(1ull << from);
		}
	}
	return false;
}

static int falling(const void *left, const void *right)
{
	float a = *(const float *)left, b = *(const float *)right;
	return (a < b) - (a > b);
}

/* Finds the ring whose slowest link has the most left, by bisection over what links have left. */
static bool find_fastest(struct search *search, struct ferry_ring_path *ring, float spent)
{
	float speeds[FERRY_MAX_RANKS * FERRY_MAX_RANKS];
	uint32_t n = search->nranks, count = 0, low = 0;
	bool found = false;
	for (uint32_t from = 0; from < n; from++)
		for (uint32_t to = 0; to < n; to++)
			if (from != to && has_left(search, from, to) > spent)
				speeds[count++] = has_left(search, from, to);
	qsort(speeds, count, sizeof *speeds, falling);
	for (uint32_t high = count; low < high;) {
		uint32_t middle = low + (high - low) / 2;
		search->least = speeds[middle];
		if (!find_ring(search)) {
			low = middle + 1;
			continue;
		}
		found = true;
		high = middle;
		ring->speed = search->least;
		for (uint32_t rank = 0; rank < n; rank++)
			ring->next[rank] = search->next[rank];
	}
	return found;
}

uint32_t ferry_rings_find(const struct ferry_links *links, uint32_t nranks,
                          struct ferry_ring_path rings[FERRY_MOST_RINGS])
{
	struct search search = {.links = links, .nranks = nranks};
	float fastest = 0;
	uint32_t count = 0;
	memcpy(search.shared, links->shared, sizeof search.shared);
	for (uint32_t from = 0; from < nranks; from++) {
		search.port[from] = links->port[from] > 0 ? links->port[from] : INFINITY;
		for (uint32_t to = 0; to < nranks; to++) {
			search.left[from][to] = from == to ? 0 : links->speed[from][to];
			fastest = fmaxf(fastest, search.left[from][to]);
		}
	}
	while (nranks > 2 && count < FERRY_MOST_RINGS && find_fastest(&search, &rings[count], fastest * SPENT)) {
		const struct ferry_ring_path *ring = &rings[count++];
		for (uint32_t rank = 0; rank < nranks; rank++) {
			search.left[rank][ring->next[rank]] -= ring->speed;
			search.port[rank] -= ring->speed;
			uint64_t shared = links->through[rank][ring->next[rank]];
			for (; shared; shared &= shared - 1)
				search.shared[__builtin_ctzll(shared)] -= ring->speed;
		}
	}
	return count;
}
