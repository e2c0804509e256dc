/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What no program can beat, whatever its routes: the bytes that must enter a set of ranks, or cross between sets, over
 * what the links there carry together. Only the synthesizer of programs of PUTs and the table of rates ask.
 */
#ifndef FERRY_RANK_LIB_PROGRAM_SYNTH_CUTS_H
#define FERRY_RANK_LIB_PROGRAM_SYNTH_CUTS_H

#include "ipc/links.h"

#define FERRY_MOST_CUT_RANKS 8 /* with more, only sets of one rank and of all but one are looked at */

/**
 * Returns an upper bound of the GB/s that all links between different parts carry together; part[r]: the part of rank
 * r. Exact if links share nothing.
 */
double ferry_cut_capacity(const struct ferry_links *links, uint32_t nranks, const uint8_t *part);

/** The same for the links from other ranks into `set`. */
double ferry_cut_into(const struct ferry_links *links, uint32_t nranks, uint64_t set);

/**
 * Returns the least time of any program by which all ranks get a block from each rank of `sources`, in nanoseconds per
 * byte of a block. INFINITY: the links do not lead everywhere.
 */
double ferry_cut_spread_time(const struct ferry_links *links, uint32_t nranks, uint64_t sources);

/**
 * Returns the least time in which trees over all ranks carry a block up and down, in nanoseconds per byte of a block
 * (Tutte, Nash-Williams: at least k - 1 edges of a tree cross between k parts). INFINITY: the links do not connect the
 * ranks.
 */
double ferry_cut_reduce_time(const struct ferry_links *links, uint32_t nranks);

#endif
