/* SPDX-License-Identifier: Apache-2.0 */
/** How finely a plan's chunks are sliced and how many slots each version gets. One function, one policy. */
#ifndef FERRY_RANK_LIB_PROGRAM_SLICING_H
#define FERRY_RANK_LIB_PROGRAM_SLICING_H

#include "rank-lib/program/program.h"

/**
 * Chooses *slice (bytes, a multiple of 64) and *window (slots) for chunks of up to `longest` bytes, with nwindows[d]
 * windows in domain d, so that all windows fit options->staging. options->slice and ->window, where not 0, are kept.
 * Errors: ferryProgramError with the sizes if they do not fit, or if not even one slot of 64 bytes does.
 */
ferryResult_t ferry_choose_slices(const struct ferry_program *program, const struct ferry_compile_options *options,
                                  uint64_t longest, const uint32_t *nwindows, uint32_t *slice, uint32_t *window);

/** The slice for PUTs of chunks of up to `longest` bytes. `forwards`: some pass on what has come. */
uint32_t ferry_choose_put_slice(const struct ferry_compile_options *options, uint64_t longest, bool forwards);

/**
 * For a plan whose windows are of one slice, which no chunk fills twice: a longer one, `wanted` or what fits
 * options->staging. The chunks of the windows remain one slice each, and PUTs beside them are not cut as short.
 */
uint32_t ferry_lengthen_slice(const struct ferry_program *program, const struct ferry_compile_options *options,
                              const uint32_t *nwindows, uint32_t wanted, uint32_t slice, uint32_t window);

/**
 * By how many slots each call of the plan starts further on than the last: slots that cores have just read are not what
 * the next call's copy engines should write to.
 */
uint32_t ferry_choose_advance(const struct ferry_compile_options *options, uint64_t longest,
                              const struct ferry_plan *plan);

/**
 * How many workers of a router may share a call; 0: any number. Where copy engines reuse the windows: so few that a
 * slot has left the cores' private caches by the time it comes round again, and as the result keeps busy. The plan has
 * its windows already; `longest` is its longest chunk, in bytes.
 */
uint32_t ferry_choose_workers(const struct ferry_program *program, const struct ferry_compile_options *options,
                              uint64_t longest, const struct ferry_plan *plan);

/**
 * Whether a call should have the staging to itself, and the next one the same staging: where it goes round windows that
 * take much of it. All its calls then pass through half as much of the last-level cache. The plan has its windows
 * already.
 */
bool ferry_choose_alone(const struct ferry_compile_options *options, uint64_t longest, const struct ferry_plan *plan);

/**
 * How many slots of a window a copy engine stays behind the cores that read it: as many as those cores' private caches
 * may still hold, up to half of them; more where the rest would let it run further ahead than the last-level cache
 * keeps what a copy engine has written. The plan has its windows and workers already.
 */
uint32_t ferry_choose_guard(const struct ferry_program *program, const struct ferry_compile_options *options,
                            const struct ferry_plan *plan);

#endif
