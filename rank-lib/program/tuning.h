/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The policy: how finely a plan's chunks are sliced, how many slots each version gets, how many workers share a call,
 * and how far copy engines stay behind them. It is one function from facts to a tuning, and keeps no state.
 */
#ifndef FERRY_RANK_LIB_PROGRAM_TUNING_H
#define FERRY_RANK_LIB_PROGRAM_TUNING_H

#include "rank-lib/program/program.h"

/* Where windows lie: the domains, then each rank's own device memory. */
#define FERRY_HOMES (FERRY_MAX_DOMAINS + FERRY_MAX_RANKS)

/** The facts for a tuning. */
struct ferry_tuning_facts {
	const struct ferry_compile_options *options; /* the machine, and what its user has set: slice, window */
	const struct ferry_program *program; /* of the part with windows; of several, that with the longest chunks */
	uint64_t longest;                    /* bytes of that program's longest chunk */
	uint64_t longest_of_all;             /* bytes of the longest chunk of all parts */
	uint32_t nwindows[FERRY_HOMES];      /* in each home */
	bool windows;  /* a part has windows */
	bool puts;     /* a part has PUTs */
	bool forwards; /* a part has PUTs that forward */
};

/** The choice. */
struct ferry_tuning {
	uint32_t slice;   /* bytes, a multiple of 64 */
	uint32_t window;  /* slots of a version */
	uint32_t workers; /* of a router that may share a call; 0: all */
	uint32_t guard;   /* slots of a window that a copy engine stays behind the cores that read it */
	uint32_t advance; /* slots by which each call starts further on in its windows than the last call */
};

/**
 * Chooses a tuning whose windows fit the options' staging; keeps the options' slice and window if they are not 0.
 * Error: ferryProgramError, with the sizes, if the windows cannot fit, or a chunk has too many slices.
 */
ferryResult_t ferry_tune(const struct ferry_tuning_facts *facts, struct ferry_tuning *tuning);

#endif
