/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Landings: where a call's PUTs go to. Nothing is put anywhere before all ranks are known to make this call, by the
 * same plan: each rank's descriptor, written when its stream has reached the call, says where its receive buffer is, so
 * who reads the last of them knows that all are ready to be written to.
 */
#ifndef FERRY_ROUTER_LANDINGS_H
#define FERRY_ROUTER_LANDINGS_H

#include "router/order.h"

/**
 * Finds them, once in each run of the call, as soon as all ranks have submitted it; its PUTs have their destinations
 * then. True if it has just done so. D2H lane.
 */
bool ferry_landings_find(struct ferry_member *member, struct ferry_call *call);

/**
 * Lets go of those that the call still has: its half is over, or its job has failed and nothing of it is under way. Who
 * leaves waits for that, so it depends on copies alone: not on other ranks, nor on the call's own stream. D2H lane.
 */
void ferry_landings_let_go(struct ferry_member *member, struct ferry_call *call);

#endif
