/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The thread of a lane: it makes round after round (router/engine/lane.h), spins for a while when one finds nothing,
 * and then sleeps at the bells of its lane ranks. It also reports lane ranks, copies and the other lane when they make
 * no progress. Opened and closed by router/engine/lanes.c.
 */
#ifndef FERRY_ROUTER_ENGINE_LANE_THREAD_H
#define FERRY_ROUTER_ENGINE_LANE_THREAD_H

#include "router/engine/lane.h"

/**
 * Opens the lane's queue and starts its thread; bell: where it is rung, NULL: own_bells. Errors: the copier's,
 * ferrySystemError; nothing is left then.
 */
ferryResult_t ferry_lane_thread_open(struct ferry_lanes *lanes, enum ferry_direction direction,
                                     struct ferry_doorbell *bell);

/** `stopping` is set, and all members have left. */
void ferry_lane_thread_close(struct ferry_lane *lane);

#endif
