/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Who keeps a communicator's memory: its handle, threads that are in a function of the API with it, what a group keeps
 * for it, and calls that a stream may still have when the handle is gone. Any thread.
 */
#ifndef FERRY_RANK_LIB_CALL_HOLDERS_H
#define FERRY_RANK_LIB_CALL_HOLDERS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct ferry_holders {
	/* whoever holds adds, whoever lets go takes away */
	_Atomic uint32_t count;
	void (*free)(struct ferry_holders *holders); /* by the last one */
};

void ferry_holders_add(struct ferry_holders *holders);

/** For who cannot know that somebody holds: false, and nothing happens, if nobody does. */
bool ferry_holders_join(struct ferry_holders *holders);

void ferry_holders_drop(struct ferry_holders *holders);

#endif
