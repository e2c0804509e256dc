/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The slices of a call that a lane moves: started as the gates of its steps open, published as their copies finish.
 * By the lane's thread.
 */
#ifndef FERRY_ROUTER_ENGINE_SLICES_H
#define FERRY_ROUTER_ENGINE_SLICES_H

#include "router/engine/copies.h"

/**
 * Starts one slice of each transfer that has one ready in the lane rank's half of the call, as long as fewer than
 * `most` copies of the lane rank are under way. True if anything got on.
 */
bool ferry_slices_move(struct ferry_copies *copies, struct ferry_pushes *pushes, struct ferry_lane_rank *lane_rank,
                       struct ferry_call *call, uint32_t most);

/** Publishes the slices, of whatever calls, whose copies have finished. True if there were any. */
bool ferry_slices_reap(struct ferry_copies *copies, struct ferry_pushes *pushes);

#endif
