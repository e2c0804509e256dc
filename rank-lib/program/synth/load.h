/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The load that PUTs put on the links between devices: the synthesizer adds up the PUTs that it is about to write, and
 * chooses by the time that they need. A load belongs to its caller.
 */
#ifndef FERRY_RANK_LIB_PROGRAM_SYNTH_LOAD_H
#define FERRY_RANK_LIB_PROGRAM_SYNTH_LOAD_H

#include "rank-lib/program/program.h"

/** In blocks: what a rank sends, or receives from each other one. */
struct ferry_load {
	const struct ferry_links *links;
	double link[FERRY_MAX_RANKS][FERRY_MAX_RANKS]; /* from, to */
	double port[FERRY_MAX_RANKS];                  /* from */
	double shared[FERRY_MAX_SHARED_LINKS];
};

/** Adds so many blocks (below 0: takes them off) from one rank to another. */
void ferry_load_add(struct ferry_load *load, uint32_t from, uint32_t to, double blocks);

/**
 * How long that link, what its port has to send in all, or what it shares with other links is busy if so many blocks
 * more go over it: nanoseconds per byte of a block. INFINITY where there is no link.
 */
double ferry_load_after(const struct ferry_load *load, uint32_t from, uint32_t to, double blocks);

/** The longest that a link or a port is busy, nanoseconds per byte of a block: nothing can be faster. */
double ferry_load_time(const struct ferry_load *load);

#endif
