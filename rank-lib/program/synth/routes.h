/* SPDX-License-Identifier: Apache-2.0 */
/**
 * By which ways chunks get from the ranks that have them to all others: a tree over the ranks for each chunk, along
 * which it is pushed. Made by the synthesizer of programs of PUTs, which writes them out; freed by it.
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
	uint8_t parent[FERRY_MAX_RANKS]; /* who pushes it to each rank */
	uint8_t depth[FERRY_MAX_RANKS];  /* behind how many others */
};

struct ferry_routes {
	uint32_t nranks, nchunks, nroutes;
	struct ferry_route *routes; /* chunk 0 of each source, then chunk 1, ... */
	struct ferry_load load;
	uint32_t from_host[FERRY_MAX_RANKS]; /* how many chunks come to each rank through the host */
};

/**
 * Routes that lead nowhere yet, of each rank in `sources` (a set), each block in nchunks. The links' ports all have a
 * speed. False: no memory.
 */
bool ferry_routes_begin(struct ferry_routes *routes, const struct ferry_links *links, uint32_t nranks, uint64_t sources,
                        uint32_t nchunks);
void ferry_routes_free(struct ferry_routes *routes);

/**
 * From each source to all ranks. As long as no link and no port is then busy for longer than `limit`
 * (ferry_load_after), by as few others as possible; then by whichever way is busy for the shortest time. INFINITY:
 * directly wherever that can be. Whom nobody reaches has it from the host, and hands it on to those whom it reaches.
 */
void ferry_routes_go(struct ferry_routes *routes, double limit);

/**
 * Takes one route after the other back and lets it go anew, and keeps the best of the rounds, the first whose time is
 * `enough`. False: no memory.
 */
bool ferry_routes_improve(struct ferry_routes *routes, double limit, uint32_t rounds, double enough);

/**
 * The time that they need, as ferry_load_time, and until pieces of chunks have come to whom they reach last: a link
 * waits for that as long as it has nothing else to do, the less the more sources there are.
 */
double ferry_routes_time(const struct ferry_routes *routes);

/** Round the rings, each chunk on one of them, as many as each has a part in the speed. */
void ferry_routes_go_round(struct ferry_routes *routes, const struct ferry_ring *rings, uint32_t nrings);

#endif
