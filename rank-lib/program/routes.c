/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/program/routes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void forget(struct ferry_route *route)
{
	memset(route->parent, FERRY_FROM_NONE, sizeof route->parent);
	memset(route->depth, 0, sizeof route->depth);
}

bool ferry_routes_begin(struct ferry_routes *routes, const struct ferry_links *links, uint32_t nranks, uint64_t sources,
                        uint32_t nchunks)
{
	uint32_t nsources = (uint32_t)__builtin_popcountll(sources);
	*routes = (struct ferry_routes){.nranks = nranks, .nchunks = nchunks, .load.links = links};
	routes->routes = calloc((size_t)nsources * nchunks, sizeof *routes->routes);
	if (!routes->routes)
		return false;
	for (uint32_t chunk = 0; chunk < nchunks; chunk++)
		for (uint32_t rank = 0; rank < nranks; rank++)
			if (sources >> rank & 1) {
				struct ferry_route *route = &routes->routes[routes->nroutes++];
				route->source = (uint8_t)rank;
				route->chunk = (uint16_t)chunk;
				forget(route);
			}
	return true;
}

void ferry_routes_free(struct ferry_routes *routes)
{
	free(routes->routes);
	routes->routes = NULL;
}

/* A push that would lead one rank further, and what speaks for it: the less the better, the first before the second. */
struct step {
	uint32_t from, to;
	double first, second;
	uint32_t shift; /* so that the ranks do not all push to the same one */
};

static bool is_better(const struct step *step, const struct step *than)
{
	if (step->first != than->first)
		return step->first < than->first;
	if (step->second != than->second)
		return step->second < than->second;
	return step->shift < than->shift;
}

/* The best step from a rank that the route has reached to one that it has not; first is INFINITY if there is none. */
static struct step find_step(const struct ferry_routes *routes, const struct ferry_route *route, uint64_t reached)
{
	uint32_t n = routes->nranks;
	struct step best = {.first = INFINITY};
	for (uint32_t from = 0; from < n; from++)
		for (uint32_t to = 0; to < n; to++) {
			if (!(reached >> from & 1) || reached >> to & 1)
				continue;
			double busy = ferry_load_after(&routes->load, from, to, 1.0 / routes->nchunks);
			struct step step = {from, to, route->depth[from], busy, (to + n - from) % n};
			if (isfinite(busy) && is_better(&step, &best))
				best = step;
		}
	return best;
}

/* Whom to give a chunk through the host: who has had the fewest so. */
static uint32_t find_landing(const struct ferry_routes *routes, const struct ferry_route *route, uint64_t reached)
{
	uint32_t n = routes->nranks, best = route->source;
	for (uint32_t shift = 1; shift < n; shift++) {
		uint32_t rank = (route->source + shift) % n;
		if (!(reached >> rank & 1) &&
		    (best == route->source || routes->from_host[rank] < routes->from_host[best]))
			best = rank;
	}
	return best;
}

static void grow(struct ferry_routes *routes, struct ferry_route *route)
{
	uint64_t reached = 1ull << route->source;
	for (uint32_t count = 1; count < routes->nranks; count++) {
		struct step step = find_step(routes, route, reached);
		if (isinf(step.first)) {
			step.to = find_landing(routes, route, reached);
			route->parent[step.to] = FERRY_FROM_HOST;
			routes->from_host[step.to]++;
		} else {
			route->parent[step.to] = (uint8_t)step.from;
			route->depth[step.to] = route->depth[step.from] + 1;
			ferry_load_add(&routes->load, step.from, step.to, 1.0 / routes->nchunks);
		}
		reached |= 1ull << step.to;
	}
}

void ferry_routes_go_directly(struct ferry_routes *routes)
{
	for (uint32_t i = 0; i < routes->nroutes; i++)
		grow(routes, &routes->routes[i]);
}
