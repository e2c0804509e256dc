/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A rank on a host device, which has lanes in its process: the member that the lanes see, and calls with tickets.
 * Everything but opening and closing happens under the communicator's lock.
 */
#ifndef FERRY_RANK_LIB_CALL_DIRECT_H
#define FERRY_RANK_LIB_CALL_DIRECT_H

#include "rank-lib/call/collective_call.h"
#include "rank-lib/call/fabrics.h"
#include "rank-lib/call/holders.h"
#include "rank-lib/call/put_gate.h"
#include "router/engine/lanes.h"

struct ferry_direct {
	/* constant, set by the maker of the communicator */
	struct ferry_rank *rank;
	struct ferry_device *device;
	struct ferry_plan_cache *plans;
	struct ferry_numbering *numbers;
	struct ferry_holders *holders; /* of what this lies in: each call holds it */

	struct ferry_lanes lanes;
	struct ferry_member member;         /* its lane ranks on them */
	struct ferry_put_gate put_gates[2]; /* by direction, each lane's */
	/* calls that the lanes have not ended: the thread that hands one over adds 1, the lane subtracts; futex word */
	_Atomic uint32_t inflight;
	/* those of messages: without any, a caller may run messages itself; release by the lane that ends one */
	_Atomic uint32_t lane_messages;
	/* settles the call that a caller has left; false: not now. Set before the rank's line says that there is one */
	bool (*settle)(struct ferry_direct *direct);
	struct ferry_short_calls *shorts; /* for `settle` */
	_Atomic uint32_t waiters; /* threads in ferry_direct_wait */
};

/** The arenas are mapped: starts the lanes. On an error ferry_direct_close is to be called all the same. */
ferryResult_t ferry_direct_open(struct ferry_direct *direct);

/** Ends the lanes and releases the calls that are left, as when the communicator has failed. */
void ferry_direct_close(struct ferry_direct *direct);

/** Returns when no call is under way. */
void ferry_direct_wait(struct ferry_direct *direct);

/** Counts a call that is about to be handed to the lanes. Any thread. */
void ferry_direct_give(struct ferry_direct *direct, const struct ferry_call *call);

/** The lanes have ended the call: finishes its ticket, and counts the call no more. */
void ferry_direct_finish(struct ferry_direct *direct, const struct ferry_call *call, struct ferry_ticket *ticket,
                         ferryResult_t result, const char *message);

/** Describes a message to the lanes, and gives it its number. fabrics: as below. */
void ferry_direct_fill_message(const struct ferry_direct *direct, const struct ferry_request *request,
                               const struct ferry_fabrics *fabrics, struct ferry_transfer *transfer);

ferryResult_t ferry_direct_collective(struct ferry_direct *direct, const struct ferry_collective_call *collective);
/** stream: as ferry_device_ops.check_stream gave it. fabrics: by which messages are pushed; NULL: none is. */
ferryResult_t ferry_direct_pairs(struct ferry_direct *direct, const struct ferry_request *requests,
                                 uint32_t nrequests, ferryStream_t stream, const struct ferry_fabrics *fabrics);

#endif
