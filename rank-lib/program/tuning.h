/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The policy: how finely a plan's chunks are sliced, how many slots each version gets, how many workers share a call,
 * and how far copy engines stay behind them. One function from facts to a tuning, so that a measuring tuner can replace
 * it.
 */
#ifndef FERRY_RANK_LIB_PROGRAM_TUNING_H
#define FERRY_RANK_LIB_PROGRAM_TUNING_H

#include "rank-lib/program/program.h"

/** The facts for a tuning. */
struct ferry_tuning_facts {
	const struct ferry_compile_options *options; /* the machine, and what its user has set: slice, window */
	const struct ferry_program *program; /* of the part of the call that has windows; of several the longest */
	uint64_t longest;                    /* bytes of that program's longest chunk, */
	uint64_t longest_of_all;             /* and of all parts' */
	uint32_t nwindows[FERRY_MAX_DOMAINS];
	bool windows;  /* some part passes through windows, */
	bool puts;     /* some part pushes, */
	bool forwards; /* and some of that goes on from where it comes */
};

/** What was chosen. */
struct ferry_tuning {
	uint32_t slice;   /* bytes, a multiple of 64 */
	uint32_t window;  /* slots of a version */
	uint32_t workers; /* of a router, that may share a call; 0: any number */
	uint32_t guard;   /* slots of a window that a copy engine stays behind the cores that read it */
	uint32_t advance; /* slots that each call starts further on than the last */
};

/**
 * Slice and window of the options, where not 0, are kept, and all windows fit the options' staging. Error:
 * ferryProgramError with the sizes if they do not, or if not even one slot of 64 bytes does, or a chunk has more slices
 * than a counter counts.
 */
ferryResult_t ferry_tune(const struct ferry_tuning_facts *facts, struct ferry_tuning *tuning);

#endif
