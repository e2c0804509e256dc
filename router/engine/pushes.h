/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The queues by which a D2H lane pushes into other devices: one for the ranks that share a number modulo
 * FERRY_PUSH_QUEUES, so that links to several devices work at once. Opened when they are first used. The lane's thread
 * alone uses them.
 */
#ifndef FERRY_ROUTER_ENGINE_PUSHES_H
#define FERRY_ROUTER_ENGINE_PUSHES_H

#include "router/engine/copies.h"

#define FERRY_PUSH_QUEUES 8u

struct ferry_pushes {
	struct ferry_copier *copier; /* constant */
	_Atomic uint32_t *driving;   /* the same: as in the queues */
	struct ferry_copies queues[FERRY_PUSH_QUEUES];
	uint32_t open; /* bit q: queues[q] is open */
};

/** Returns the queue of pushes to that rank. NULL, with a message: this copier has none, or cannot open one. */
struct ferry_copies *ferry_pushes_to(struct ferry_pushes *pushes, uint32_t rank);

/** As wait_us of copiers, over all queues with copies under way; `most` (-1: for ever) where none is sooner. */
int64_t ferry_pushes_wait_us(struct ferry_pushes *pushes, int64_t most);

/** As ferry_copies_check, for all queues. */
ferryResult_t ferry_pushes_check(struct ferry_pushes *pushes);

void ferry_pushes_close(struct ferry_pushes *pushes);

#endif
