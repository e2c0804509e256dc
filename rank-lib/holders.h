/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Who keeps a communicator's memory: its handle, and calls that a stream may still have when the handle is gone. Any
 * thread.
 */
#ifndef FERRY_RANK_LIB_HOLDERS_H
#define FERRY_RANK_LIB_HOLDERS_H

#include <stdatomic.h>
#include <stdint.h>

struct ferry_holders {
	/* whoever holds adds, whoever lets go takes away */
	_Atomic uint32_t count;
	void (*free)(struct ferry_holders *holders); /* by the last one */
};

void ferry_holders_add(struct ferry_holders *holders);
void ferry_holders_drop(struct ferry_holders *holders);

#endif
