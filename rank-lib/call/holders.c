/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/call/holders.h"

void ferry_holders_add(struct ferry_holders *holders)
{
	atomic_fetch_add_explicit(&holders->count, 1, memory_order_relaxed);
}

bool ferry_holders_join(struct ferry_holders *holders)
{
	uint32_t count = atomic_load_explicit(&holders->count, memory_order_relaxed);
	while (count)
		if (atomic_compare_exchange_weak_explicit(&holders->count, &count, count + 1, memory_order_acquire,
		                                          memory_order_relaxed))
			return true;
	return false;
}

void ferry_holders_drop(struct ferry_holders *holders)
{
	if (atomic_fetch_sub_explicit(&holders->count, 1, memory_order_acq_rel) == 1)
		holders->free(holders);
}
