/* SPDX-License-Identifier: Apache-2.0 */
/**
 * How a rank maps its arenas and leaves them: it attaches to each domain's router and waits for the other ranks. Called
 * by the thread that makes or ends the communicator.
 */
#ifndef FERRY_RANK_LIB_ATTACH_ATTACH_H
#define FERRY_RANK_LIB_ATTACH_ATTACH_H

#include "rank-lib/attach/routers.h"
#include "rank-lib/failover/rank.h"

/* What a rank asks its routers for. */
struct ferry_wishes {
	uint64_t staging; /* bytes per domain; 0: what the routers choose */
	bool insists;     /* exactly that much staging, or no arena */
	bool mapped;      /* the router of the rank's domain is to move its data, by the next two */
	uint8_t gpu[FERRY_GPU_BYTES]; /* UUID */
	int flags;                    /* descriptor of the stream flags */
};

/**
 * Finds or starts the routers, attaches to all domains and waits until every rank is present. why_not: why the router
 * of the rank's domain does not move its data, if wishes->mapped; else "". An error leaves no connection open:
 * ferryRemoteError for ranks or routers that are missing or die; those of the routers.
 */
ferryResult_t ferry_rank_attach(struct ferry_rank *rank, const struct ferry_routers *routers,
                                const struct ferry_wishes *wishes, char why_not[FERRY_MESSAGE_BYTES]);

/**
 * Tells the routers, that of the rank's domain first, that the rank makes no more calls. Waits for their answers, for
 * FERRY_ATTACH_TIMEOUT in all. If the router of the rank's domain has ended, the rank does not wait for another one: it
 * stores in the arena itself that it has left.
 */
void ferry_rank_announce_departure(struct ferry_rank *rank);

/** Closes the connections. Arenas stay mapped. */
void ferry_rank_detach(struct ferry_rank *rank, const struct ferry_routers *routers);

#endif
