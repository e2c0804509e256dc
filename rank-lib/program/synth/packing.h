/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Spanning trees that sums take: each of up to 24 chunks of a block goes up one tree to its root, added up on the way,
 * and down the same tree. Where links are dedicated to their pairs the packing is exact (matroid union); where they
 * share ports it is searched. Only synthesizers and the table of rates ask.
 */
#ifndef FERRY_RANK_LIB_PROGRAM_SYNTH_PACKING_H
#define FERRY_RANK_LIB_PROGRAM_SYNTH_PACKING_H

#include "ipc/links.h"

#define FERRY_MOST_TREES 24

struct ferry_packing {
	uint32_t nranks, ntrees; /* a tree carries one of ntrees equal chunks */
	uint8_t root[FERRY_MOST_TREES];
	uint8_t parent[FERRY_MOST_TREES][FERRY_MAX_RANKS]; /* of the root: itself */
	double time; /* until links and ports have carried all of a block up and down; nanoseconds per byte of it */
};

/**
 * Finds the trees of the least time, with the fewest chunks that come within 2% of it, rooted so that they are least
 * deep. False: links do not connect the ranks both ways, or there is no memory.
 */
bool ferry_packing_find(const struct ferry_links *links, uint32_t nranks, struct ferry_packing *packing);

#endif
