/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/program/synth/routes.h"

#include "ipc/rankset.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PIECES 16 /* that a chunk is forwarded in */

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

/* A push that would lead a route to one more rank. */
struct step {
	uint32_t from, to;
	double busy, laden; /* how long its link or port is then busy; how long the port of `to` is, for forwarding */
	uint32_t depth, shift; /* pushes before it; shift: so that the ranks do not all push to the same one */
};

/* Of steps that end within `limit` the one with fewer hops is better, of others the one that ends first. */
static bool is_better(const struct step *step, const struct step *than, double limit)
{
	bool fits = step->busy <= limit, fitted = than->busy <= limit;
	if (fits != fitted)
		return fits;
	if (fits && step->depth != than->depth)
		return step->depth < than->depth;
	if (step->busy != than->busy)
		return step->busy < than->busy;
	if (step->depth != than->depth)
		return step->depth < than->depth;
	if (step->laden != than->laden)
		return step->laden < than->laden;
	return step->shift < than->shift;
}

/* Finds the best step from a rank that the route has reached to one that it has not. Returns false if there is none. */
static bool find_step(const struct ferry_routes *routes, const struct ferry_route *route, uint64_t reached,
                      double limit, struct step *best)
{
	const struct ferry_load *load = &routes->load;
	uint32_t n = routes->nranks;
	bool found = false;
	for (uint64_t froms = reached; froms; froms &= froms - 1)
		for (uint64_t tos = ferry_rankset_all(n) & ~reached; tos; tos &= tos - 1) {
			uint32_t from = (uint32_t)__builtin_ctzll(froms), to = (uint32_t)__builtin_ctzll(tos);
			if (!(load->links->speed[from][to] > 0))
				continue;
			struct step step = {.from = from,
			                    .to = to,
			                    .busy = ferry_load_after(load, from, to, 1.0 / routes->nchunks),
			                    .laden = load->links->port[to] > 0
			                                     ? load->port[to] / load->links->port[to]
			                                     : INFINITY,
			                    .depth = route->depth[from],
			                    .shift = (to + n - from) % n};
			if (!found || is_better(&step, best, limit))
				*best = step;
			found = true;
		}
	return found;
}

/* Returns the rank to give a chunk through the host: the one with the fewest such chunks. */
static uint32_t find_put_target(const struct ferry_routes *routes, const struct ferry_route *route, uint64_t reached)
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

/* Returns the time from a source's first byte until the rank gets its first piece, by this route. */
static double find_delay(const struct ferry_routes *routes, const struct ferry_route *route, uint32_t rank)
{
	const struct ferry_links *links = routes->load.links;
	double delay = 0;
	for (uint32_t from = route->parent[rank]; from < FERRY_MAX_RANKS; rank = from, from = route->parent[rank])
		if (from != route->source) {
			float speed = links->speed[from][rank];
			delay += 1.0 / routes->nchunks / PIECES /
			         (speed < links->port[from] ? speed : links->port[from]);
		}
	return delay;
}

double ferry_routes_time(const struct ferry_routes *routes)
{
	double longest = 0;
	for (uint32_t i = 0; i < routes->nroutes; i++)
		for (uint32_t rank = 0; rank < routes->nranks; rank++) {
			double delay = find_delay(routes, &routes->routes[i], rank);
			longest = delay > longest ? delay : longest;
		}
	uint32_t nsources = routes->nroutes / routes->nchunks;
	return ferry_load_time(&routes->load) + longest / nsources;
}

/* Adds a push to a route. */
static void push(struct ferry_routes *routes, struct ferry_route *route, uint32_t from, uint32_t to)
{
	route->parent[to] = (uint8_t)from;
	route->depth[to] = route->depth[from] + 1;
	ferry_load_add(&routes->load, from, to, 1.0 / routes->nchunks);
}

static void grow(struct ferry_routes *routes, struct ferry_route *route, double limit)
{
	uint64_t reached = 1ull << route->source;
	for (uint32_t count = 1; count < routes->nranks; count++) {
		struct step step = {0};
		if (!find_step(routes, route, reached, limit, &step)) {
			step.to = find_put_target(routes, route, reached);
			route->parent[step.to] = FERRY_FROM_HOST;
			routes->from_host[step.to]++;
		} else {
			push(routes, route, step.from, step.to);
		}
		reached |= 1ull << step.to;
	}
}

static void take_back(struct ferry_routes *routes, struct ferry_route *route)
{
	for (uint32_t rank = 0; rank < routes->nranks; rank++)
		if (route->parent[rank] == FERRY_FROM_HOST)
			routes->from_host[rank]--;
		else if (route->parent[rank] != FERRY_FROM_NONE)
			ferry_load_add(&routes->load, route->parent[rank], rank, -1.0 / routes->nchunks);
	forget(route);
}

/* Reserves each source's port for its own chunks, which it must push at least once. */
void ferry_routes_go(struct ferry_routes *routes, double limit)
{
	double part = 1.0 / routes->nchunks;
	for (uint32_t i = 0; i < routes->nroutes; i++)
		routes->load.port[routes->routes[i].source] += part;
	for (uint32_t i = 0; i < routes->nroutes; i++) {
		routes->load.port[routes->routes[i].source] -= part;
		grow(routes, &routes->routes[i], limit);
	}
}

bool ferry_routes_improve(struct ferry_routes *routes, double limit, uint32_t rounds, double enough)
{
	struct ferry_routes best = *routes;
	size_t bytes = routes->nroutes * sizeof *routes->routes;
	best.routes = malloc(bytes);
	if (!best.routes)
		return false;
	memcpy(best.routes, routes->routes, bytes);
	for (uint32_t round = 0; round < rounds && ferry_routes_time(&best) > enough; round++) {
		for (uint32_t i = 0; i < routes->nroutes; i++) {
			take_back(routes, &routes->routes[i]);
			grow(routes, &routes->routes[i], limit);
		}
		if (ferry_routes_time(routes) >= ferry_routes_time(&best))
			continue;
		struct ferry_route *kept = best.routes;
		best = *routes;
		best.routes = kept;
		memcpy(kept, routes->routes, bytes);
	}
	free(routes->routes);
	*routes = best;
	return true;
}

void ferry_routes_go_round(struct ferry_routes *routes, const struct ferry_ring_path *rings, uint32_t nrings)
{
	uint32_t share[FERRY_MOST_RINGS] = {0}, nsources = routes->nroutes / routes->nchunks;
	for (uint32_t i = 0; i < routes->nroutes; i += nsources) {
		uint32_t least = 0; /* the ring that would be the first to end with one chunk more */
		for (uint32_t ring = 1; ring < nrings; ring++)
			if ((float)(share[ring] + 1) / rings[ring].speed <
			    (float)(share[least] + 1) / rings[least].speed)
				least = ring;
		share[least]++;
		for (uint32_t k = i; k < i + nsources; k++) {
			uint32_t rank = routes->routes[k].source;
			for (uint32_t hop = 1; hop < routes->nranks; hop++) {
				push(routes, &routes->routes[k], rank, rings[least].next[rank]);
				rank = rings[least].next[rank];
			}
		}
	}
}
