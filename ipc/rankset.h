/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A set of ranks in one word: bit r is rank r. For example the ranks to wake, the ranks that have not come, the ranks
 * whose contributions a chunk holds. Plain values: where one is shared, its field's comment names the writer.
 */
#ifndef FERRY_IPC_RANKSET_H
#define FERRY_IPC_RANKSET_H

#include "ipc/ferry_types.h"

#define FERRY_RANKSET_TEXT 168 /* bytes: "ranks 0-1, 3-4, 6-7" and so on to 63, the longest text, has room */

/** All ranks of a communicator of n, 1 to 64. */
static inline uint64_t ferry_rankset_all(uint32_t n)
{
	return ~0ull >> (FERRY_MAX_RANKS - n);
}

/** The lowest rank of a set that is not empty. */
static inline uint32_t ferry_rankset_lowest(uint64_t ranks)
{
	return (uint32_t)__builtin_ctzll(ranks);
}

/** "rank 3" or "ranks 0-3, 7"; "rank" of an empty set. Returns text. */
const char *ferry_rankset_print(uint64_t ranks, char text[FERRY_RANKSET_TEXT]);

#endif
