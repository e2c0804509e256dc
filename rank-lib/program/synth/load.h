/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The load that PUTs put on the links between devices: the synthesizer adds up the PUTs that it is about to write, and
 * chooses by the time that they need. A load belongs to its caller.
 */
#ifndef FERRY_RANK_LIB_PROGRAM_SYNTH_LOAD_H
#define FERRY_RANK_LIB_PROGRAM_SYNTH_LOAD_H

#include "rank-lib/program/program.h"

/** In blocks. A block is what a rank sends to, or receives from, each other rank. */
struct ferry_load {
	const struct ferry_links *links;
	double link[FERRY_MAX_RANKS][FERRY_MAX_RANKS]; /* from, to */
	double port[FERRY_MAX_RANKS];                  /* from */
	double shared[FERRY_MAX_SHARED_LINKS];
};

/** Adds so many blocks from one rank to another; a negative number removes them. */
void ferry_load_add(struct ferry_load *load, uint32_t from, uint32_t to, double blocks);

/**
 * Returns how long a link, its port and its shared links are busy, the longest of them, if so many blocks more go over
 * it: nanoseconds per byte of a block. INFINITY: there is no link.
 */
double ferry_load_after(const struct ferry_load *load, uint32_t from, uint32_t to, double blocks);

/** Returns how long the busiest link, port or shared link is busy, nanoseconds per byte of a block. */
double ferry_load_time(const struct ferry_load *load);

#endif
