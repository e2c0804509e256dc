/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Put targets: where a call's PUTs go to. Nothing is put anywhere before all ranks are known to make this call, by the
 * same plan: each rank's descriptor, written when its stream has reached the call, says where its receive buffer is, so
 * who reads the last of them knows that all are ready to be written to.
 *
 * And what is put into a rank's own memory, by the lanes of its own router and by those of other domains' routers. As
 * long as the job lives, a call ends behind its LANDs, so behind all that is put for it. Once it has failed, nobody
 * waits for those: the lanes of every rank let go of all put targets as soon as no copy of theirs is under way, take no
 * more, and say so in the rank's line (`stopped`). A call into which others put ends when all whose GPUs reach the
 * rank's memory have said that, or their router has ended, which the rank finds out (`ended` in its line:
 * rank-lib/failover/copy_quiesce.h). Each of these words has one writer and goes from 0 to 1, so a lane that has seen
 * them all is right for good. docs/models/landings.pml has one router, docs/models/put_targets_of_domains.pml two.
 */
#ifndef FERRY_ROUTER_ENGINE_PUT_TARGETS_H
#define FERRY_ROUTER_ENGINE_PUT_TARGETS_H

#include "router/engine/order.h"

/**
 * Finds them, once in each run of the call, as soon as all ranks have submitted it; its PUTs have their destinations
 * then. True if it has just done so. D2H lane.
 */
bool ferry_put_targets_find(struct ferry_member *member, struct ferry_call *call);

/**
 * Lets go of those that the call still has: its half is over, or its job has failed and nothing of it is under way. Who
 * leaves waits for that, so it depends on copies alone: not on other ranks, nor on the call's own stream. D2H lane.
 */
void ferry_put_targets_release(struct ferry_member *member, struct ferry_call *call);

/**
 * The rank's lanes have let go of all of them, and find no more: the job has failed, or they let go of the rank. Says
 * so, once. D2H lane, or who takes the rank off the lanes.
 */
void ferry_put_targets_stop(struct ferry_member *member);

/**
 * The job has failed: whether nobody puts into what the call receives any more, or that has been waited for for ten
 * seconds. H2D lane.
 */
bool ferry_put_targets_are_quiet(struct ferry_member *member, const struct ferry_call *call);

#endif
