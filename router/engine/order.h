/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The order of a job's calls, from "the stream has reached it" to "the stream may go on": a call's number, its parity,
 * the descriptor that tells the other ranks, the comparison with theirs, and its end. By the D2H lane's thread, where
 * nothing else is said.
 */
#ifndef FERRY_ROUTER_ENGINE_ORDER_H
#define FERRY_ROUTER_ENGINE_ORDER_H

#include "router/engine/member.h"

/** The stream has reached a call whose number rank 0 decides: true once it has one, and its parity is free. */
bool ferry_order_begin(struct ferry_member *member, struct ferry_call *call);

/**
 * As ferry_order_begin, for a named group of messages, which begins at once: numbers them, each above its `message`,
 * which is how many were numbered when they were made, or its number in the run before.
 */
void ferry_order_begin_messages(struct ferry_member *member, struct ferry_call *call);

/**
 * Numbers one message of such a group; first: by peer, the number of the group's first message with that peer, 0: none
 * yet.
 */
void ferry_order_number_message(struct ferry_member *member, enum ferry_direction direction,
                                struct ferry_transfer *transfer, uint64_t first[FERRY_MAX_RANKS]);

/** Whether the last call in this parity is over on all ranks and in the routers that had work in it. */
bool ferry_order_may_begin(const struct ferry_member *member, uint64_t seq);

/**
 * Returns an earlier call that is not over, so that this one may not begin; 0: none. *ranks: bit r: rank r has not
 * finished it; 0: a router has not.
 */
uint64_t ferry_order_blocked_by(const struct ferry_member *member, const struct ferry_call *call, uint64_t *ranks);

/**
 * Returns the domain of a router that has not finished call `before`, in which it had work; FERRY_MAX_DOMAINS: none.
 */
uint32_t ferry_order_blocking_router(const struct ferry_member *member, uint64_t before);

/**
 * The stream has reached the call: gives it its number if it has none, and submits it to the other ranks, once its
 * parity is free; then true. A short call (ipc/descriptor.h) by the thread that runs it.
 */
bool ferry_order_start(struct ferry_member *member, struct ferry_call *call);

/** Submits the call: writes its descriptor, and wakes the other ranks and the routers. */
void ferry_order_submit(struct ferry_member *member, struct ferry_call *call);

/** Returns the ranks that have not submitted the call; bit r: rank r. Either lane. */
uint64_t ferry_order_missing(const struct ferry_member *member, const struct ferry_call *call);

/** True once all ranks have submitted the same call; a difference ends the job. */
bool ferry_order_agreed(struct ferry_member *member, const struct ferry_call *call);

/**
 * Takes a submitted call in which this rank only sends as agreed before the others have submitted it. They are compared
 * when the parity's next call starts, so far as they have not gone on: of two ranks the first to start that call finds
 * the other's descriptor, so a difference ends the job by then.
 */
void ferry_order_hear_later(struct ferry_member *member, const struct ferry_call *call);

/** Before the rank leaves, with no call under way: the same for its last calls, so far as others have made them. */
void ferry_order_hear(struct ferry_member *member);

/** The run is over: the stream goes on. By the thread that runs a short call; lanes say it of their halves, below. */
void ferry_order_end(struct ferry_member *member, struct ferry_call *call);

/** A lane is done with its half of the run; the second to say so ends it. Either lane. */
void ferry_order_end_half(struct ferry_member *member, struct ferry_call *call);

#endif
