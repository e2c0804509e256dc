/* SPDX-License-Identifier: Apache-2.0 */
/**
 * How a rank comes to its arenas, and leaves them: attach to each domain's router, wait for the other ranks. By the
 * thread that makes or ends the communicator.
 */
#ifndef FERRY_RANK_LIB_ATTACH_ATTACH_H
#define FERRY_RANK_LIB_ATTACH_ATTACH_H

#include "rank-lib/attach/routers.h"
#include "rank-lib/failover/rank.h"

/* What a rank asks its routers for. */
struct ferry_wishes {
	uint64_t staging; /* bytes per domain; 0: what they choose */
	bool insists;     /* that much staging or none */
	bool mapped;      /* that its own domain's moves its data: with the GPU's UUID and its block of words */
	uint8_t gpu[FERRY_GPU_BYTES];
	int flags;
};

/**
 * Routers found or started, all domains attached, everybody present; or an error and nothing left open. why_not: why
 * the rank's own router will not move its data, where that was wished; else "".
 */
ferryResult_t ferry_rank_attach(struct ferry_rank *rank, const struct ferry_routers *routers,
                                const struct ferry_wishes *wishes, char why_not[FERRY_MESSAGE_BYTES]);

/**
 * Tells the routers that the rank makes no more calls, its own first, and waits for their answers, for
 * FERRY_ATTACH_TIMEOUT in all. Of one that has ended no other is waited for: the rank then says itself, in the arena,
 * that it has left.
 */
void ferry_rank_announce_departure(struct ferry_rank *rank);

/** Closes the connections. Arenas stay mapped. abort: a router that this process hosts ends at once. */
void ferry_rank_detach(struct ferry_rank *rank, const struct ferry_routers *routers, bool abort);

#endif
