/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Rings of all ranks that no two chunks share a link's time on: each has a speed, and together they ask of no link and
 * of no port more than it has. Only the synthesizer of programs of PUTs looks for them.
 */
#ifndef FERRY_RANK_LIB_PROGRAM_SYNTH_RINGS_H
#define FERRY_RANK_LIB_PROGRAM_SYNTH_RINGS_H

#include "ipc/links.h"

#define FERRY_MOST_RINGS 16

struct ferry_ring {
	uint8_t next[FERRY_MAX_RANKS];
	float speed; /* GB/s */
};

/**
 * The fastest ring, then the fastest of what that leaves of the links, and so on; each way round is a ring of its own.
 * The search gives up after a fixed number of steps. Returns how many there are; 0: none, or too hard to find.
 */
uint32_t ferry_rings_find(const struct ferry_links *links, uint32_t nranks, struct ferry_ring rings[FERRY_MOST_RINGS]);

#endif
