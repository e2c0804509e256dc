/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A rank with lanes of its own: the member that they see, and calls with tickets (host streams) or words (streams of
 * GPUs). Everything but the opening and closing happens under the communicator's lock.
 */
#ifndef FERRY_RANK_LIB_DIRECT_H
#define FERRY_RANK_LIB_DIRECT_H

#include "rank-lib/collective_call.h"
#include "rank-lib/door.h"
#include "rank-lib/fabrics.h"
#include "rank-lib/holders.h"
#include "rank-lib/words.h"
#include "router/lanes.h"

struct ferry_direct {
	/* constant, from who makes the communicator */
	struct ferry_rank *rank;
	struct ferry_device *device;
	struct ferry_word_table *words;
	struct ferry_plan_cache *plans;
	struct ferry_numbering *numbers;
	struct ferry_holders *holders; /* of what this lies in: each call holds it */

	struct ferry_lanes lanes;
	struct ferry_member member;         /* its seats on them */
	struct ferry_door doors[2];         /* by direction, each lane's; host devices */
	bool registered[FERRY_MAX_DOMAINS]; /* arenas that the device knows */
	/* calls not finished: whoever makes one adds, the lane that ends it takes away; futex word */
	_Atomic uint32_t inflight;
};

/**
 * The arenas are mapped: registers them with the device and starts the lanes. Errors: the device's; ferry_direct_close
 * is to be called all the same.
 */
ferryResult_t ferry_direct_open(struct ferry_direct *direct);

/** The lanes end. Calls that are left (the communicator has failed) are let go of. */
void ferry_direct_close(struct ferry_direct *direct);

/**
 * Returns when no call is under way. Where the rank has failed, calls that their streams have not reached count only
 * where they end by that.
 */
void ferry_direct_wait(struct ferry_direct *direct);

ferryResult_t ferry_direct_collective(struct ferry_direct *direct, const struct ferry_collective_call *collective);
/** fabrics: by which messages are pushed; NULL: none is. */
ferryResult_t ferry_direct_pairs(struct ferry_direct *direct, const struct ferry_request *requests,
                                 uint32_t nrequests, const struct ferry_fabrics *fabrics,
                                 const struct ferry_stream_state *stream);

#endif
