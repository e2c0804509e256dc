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
	uint8_t parent[FERRY_MAX_RANKS]; /* the rank that pushes it to each rank */
	uint8_t depth[FERRY_MAX_RANKS];  /* its distance from the source, in pushes */
};

struct ferry_routes {
	uint32_t nranks, nchunks, nroutes;
	struct ferry_route *routes; /* chunk 0 of each source, then chunk 1, ... */
	struct ferry_load load;
	uint32_t from_host[FERRY_MAX_RANKS]; /* chunks that come to each rank through the host */
};

/**
 * Routes that lead nowhere yet, of each rank in `sources` (a set), each block in nchunks. The links' ports all have a
 * speed. False: no memory.
 */
bool ferry_routes_begin(struct ferry_routes *routes, const struct ferry_links *links, uint32_t nranks, uint64_t sources,
                        uint32_t nchunks);
void ferry_routes_free(struct ferry_routes *routes);

/**
 * Builds the routes from each source to all ranks. While no link and no port is busy for longer than `limit`
 * (ferry_load_after), it takes the fewest hops; beyond that, the way that is busy for the shortest time. INFINITY:
 * directly wherever possible. A rank that no other reaches gets the chunk from the host, and forwards it to the ranks
 * that it reaches.
 */
void ferry_routes_go(struct ferry_routes *routes, double limit);

/**
 * Takes one route after the other back and builds it anew; keeps the best of the rounds, the first one with a time of
 * `enough`. Returns false without memory.
 */
bool ferry_routes_improve(struct ferry_routes *routes, double limit, uint32_t rounds, double enough);

/**
 * Returns the time that the routes need: ferry_load_time, and the time until pieces of chunks have come to the last
 * ranks. A link waits for that as long as it has nothing else to do, the less the more sources there are.
 */
double ferry_routes_time(const struct ferry_routes *routes);

/** Routes each chunk around one of the rings, in proportion to their speeds. */
void ferry_routes_go_round(struct ferry_routes *routes, const struct ferry_ring *rings, uint32_t nrings);

#endif
