/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/holders.h"

void ferry_holders_add(struct ferry_holders *holders)
{
	atomic_fetch_add_explicit(&holders->count, 1, memory_order_relaxed);
}

void ferry_holders_drop(struct ferry_holders *holders)
{
	if (atomic_fetch_sub_explicit(&holders->count, 1, memory_order_acq_rel) == 1)
		holders->free(holders);
}
