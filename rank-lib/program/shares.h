/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The part of a call that the host carries when peers carry the rest: arithmetic from the rates that `ferry-perf
 * limits` has measured, the same on all ranks. No state.
 */
#ifndef FERRY_RANK_LIB_PROGRAM_SHARES_H
#define FERRY_RANK_LIB_PROGRAM_SHARES_H

#include "ipc/shares.h"
#include "rank-lib/program/limits.h"

#define FERRY_SHARE_ROUND 4096u /* bytes: parts of blocks that begin at pages end at pages */

/**
 * Returns the bytes of each block of `bytes` that the host carries so that it ends when the peers do; a multiple of
 * FERRY_SHARE_ROUND, at most `bytes`. `blocks`: how many blocks the busiest device sends, or receives. Returns 0 if
 * the host would save less than 2% of the time, or a rate has not been measured.
 */
uint64_t ferry_share_of_host(const struct ferry_costs *costs, uint64_t bytes, uint32_t blocks);

#endif
