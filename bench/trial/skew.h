/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Uneven traffic by name or from a file: which part of the bytes each rank of an alltoallv sends to each other one.
 * Read once from the command line; the same on all ranks.
 */
#ifndef FERRY_BENCH_SKEW_H
#define FERRY_BENCH_SKEW_H

#include "ipc/ferry_types.h"

#include <stdbool.h>
#include <stddef.h>

#define FERRY_SKEW_NAMES "hot:PART, own:PART, pair, zipf:EXPONENT or a file"

/** part[from][to]: of what the busiest rank sends or receives in all, so that rank's parts add up to 1. */
struct ferry_skew {
	double part[FERRY_MAX_RANKS][FERRY_MAX_RANKS];
};

/**
 * - hot:PART: of what each rank sends, this part (0 to 1) goes to rank 0 (from rank 0 to rank 1), the rest evenly to
 *   the others.
 * - own:PART: the same, to the rank after it.
 * - pair: rank 0 sends to the last rank, and nobody else does.
 * - zipf:EXPONENT (0 to 10): each rank sends its k-th peer 1/k^EXPONENT of what its first peer gets; ranks have
 *   different first peers.
 * - else a file: a line per rank with a number (0 or more, of any unit) per rank; # begins a comment.
 * Returns false with a message that has the values, in at most `room` bytes.
 */
bool ferry_skew_read(const char *text, int nranks, struct ferry_skew *skew, char *message, size_t room);

#endif
