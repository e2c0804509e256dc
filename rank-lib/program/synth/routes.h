/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The routes by which chunks get from the ranks that have them to all others: for each chunk a tree over the ranks,
 * along which it is pushed. Made and freed by the synthesizer of programs of PUTs, which writes them out.
 */
#ifndef FERRY_RANK_LIB_PROGRAM_SYNTH_ROUTES_H
#define FERRY_RANK_LIB_PROGRAM_SYNTH_ROUTES_H

#include "rank-lib/program/synth/load.h"
#include "rank-lib/program/synth/rings.h"

#define FERRY_FROM_HOST 0xfe /* ferry_route.parent: it comes through the host */
#define FERRY_FROM_NONE 0xff /* it is the source */

/** The way of one chunk. */
struct ferry_route {
	uint8_t source;
	uint16_t chunk;                  /* of the source's block */
	uint8_t parent[FERRY_MAX_RANKS]; /* by rank: the rank that pushes it there */
	uint8_t depth[FERRY_MAX_RANKS];  /* its distance from the source, in pushes */
};

struct ferry_routes {
	uint32_t nranks, nchunks, nroutes;
	struct ferry_route *routes; /* chunk 0 of each source, then chunk 1, ... */
	struct ferry_load load;
	uint32_t from_host[FERRY_MAX_RANKS]; /* chunks that come to each rank through the host */
};

/**
 * Begins routes for each rank in `sources` (a set), whose block has nchunks chunks; they lead nowhere yet. All ports in
 * `links` must have a speed. False: no memory. ferry_routes_free frees them.
 */
bool ferry_routes_begin(struct ferry_routes *routes, const struct ferry_links *links, uint32_t nranks, uint64_t sources,
                        uint32_t nchunks);
void ferry_routes_free(struct ferry_routes *routes);

/**
 * Builds the routes from each source to all ranks. As long as no link or port is busy for longer than `limit`
 * (ferry_load_after), takes the fewest hops; beyond that, the way that is busy for the shortest time. INFINITY: always
 * the fewest hops. A rank that no other reaches gets the chunk from the host, and forwards it to ranks that it reaches.
 */
void ferry_routes_go(struct ferry_routes *routes, double limit);

/**
 * Removes one route after the other and builds it anew, in up to `rounds` rounds, until the time is at most `enough`;
 * keeps the best result. Returns false if there is no memory.
 */
bool ferry_routes_improve(struct ferry_routes *routes, double limit, uint32_t rounds, double enough);

/**
 * Returns the time that the routes need: ferry_load_time, and the time until the first piece of a chunk has come to the
 * last rank, divided by the number of sources: with more sources, links have other work meanwhile.
 */
double ferry_routes_time(const struct ferry_routes *routes);

/** Routes each chunk around one of the rings, in proportion to their speeds. */
void ferry_routes_go_round(struct ferry_routes *routes, const struct ferry_ring_path *rings, uint32_t nrings);

#endif
