/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Rings of all ranks that no two chunks share a link's time on: each has a speed, and together they ask of no link and
 * of no port more than it has. Only the synthesizer of programs of PUTs looks for them.
 */
#ifndef FERRY_RANK_LIB_PROGRAM_SYNTH_RINGS_H
#define FERRY_RANK_LIB_PROGRAM_SYNTH_RINGS_H

#include "ipc/links.h"

#define FERRY_MOST_RINGS 16

struct ferry_ring_path {
	uint8_t next[FERRY_MAX_RANKS];
	float speed; /* GB/s */
};

/**
 * Finds the fastest ring, then the fastest one in what the first leaves of the links, and so on; each direction is a
 * ring of its own. Each search ends after a fixed number of steps. Returns the number of rings; 0: none, or none was
 * found.
 */
uint32_t ferry_rings_find(const struct ferry_links *links, uint32_t nranks,
                          struct ferry_ring_path rings[FERRY_MOST_RINGS]);

#endif
