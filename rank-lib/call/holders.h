/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The references that keep a communicator's memory: its handle, threads that are in a function of the API with it,
 * requests that a group keeps for it, and calls that a stream may still hold when the handle is gone. Used by any
 * thread.
 */
#ifndef FERRY_RANK_LIB_CALL_HOLDERS_H
#define FERRY_RANK_LIB_CALL_HOLDERS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct ferry_holders {
	/* a holder adds one, and subtracts it when it releases */
	_Atomic uint32_t count;
	void (*free)(struct ferry_holders *holders); /* called by the last holder */
};

static inline void ferry_holders_add(struct ferry_holders *holders)
{
	atomic_fetch_add_explicit(&holders->count, 1, memory_order_relaxed);
}

/** For a caller that does not know whether there is a holder: returns false, and does nothing, if there is none. */
static inline bool ferry_holders_join(struct ferry_holders *holders)
{
	uint32_t count = atomic_load_explicit(&holders->count, memory_order_relaxed);
	while (count)
		if (atomic_compare_exchange_weak_explicit(&holders->count, &count, count + 1, memory_order_acquire,
		                                          memory_order_relaxed))
			return true;
	return false;
}

static inline void ferry_holders_drop(struct ferry_holders *holders)
{
	if (atomic_fetch_sub_explicit(&holders->count, 1, memory_order_acq_rel) == 1)
		holders->free(holders);
}

#endif
