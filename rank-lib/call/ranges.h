/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Ranges: at which addresses of this process there is memory that routers may have mapped, and the communicators that
 * exported it. A thread that is about to free memory asks here whether Ferry has it, in well under a microsecond.
 * Written by exports.c under each communicator's lock, read by freed.c; it has one lock of its own, under which no
 * thread waits.
 */
#ifndef FERRY_RANK_LIB_CALL_RANGES_H
#define FERRY_RANK_LIB_CALL_RANGES_H

#include "rank-lib/call/holders.h"

/** Adds a range that a communicator has exported under one more index. Without memory for it, it is not found here. */
void ferry_ranges_add(uint64_t start, uint64_t end, struct ferry_holders *holders);

/** To be called once for each ferry_ranges_add, and before the holders are freed. */
void ferry_ranges_remove(uint64_t start, uint64_t end, struct ferry_holders *holders);

/**
 * Communicators that have exported some of this, `most` of them at most, each held for the caller. Returns how many.
 * Any thread.
 */
uint32_t ferry_ranges_find(uint64_t start, uint64_t end, struct ferry_holders **found, uint32_t most);

/** Around a fork: no other thread holds the lock; a child has exported nothing. */
void ferry_ranges_before_fork(void);
void ferry_ranges_after_fork(bool in_child);

#endif
