/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Put targets: where a call's PUTs go to. Nothing is put anywhere before all ranks are known to make this call, by the
 * same plan. Each rank writes its descriptor when its stream has reached the call, and the descriptor names its receive
 * buffer. So a lane that has read the last of them knows that all ranks are ready to be written to.
 *
 * This header also says when nothing is put into a rank's own memory any more, by the lanes of its own router and of
 * other domains' routers. As long as the job lives, a call ends after its WAIT_PUTs, so after all that is put for it.
 * Once the job has failed, no lane waits for those. The lanes of every rank release all put targets as soon as no copy
 * of theirs is under way, take no more, and say so in the rank's line (`stopped`). A call into which others put ends
 * when each rank whose GPU reaches this rank's memory has said that, or its router has ended, which the rank finds out
 * (`ended` in its line: rank-lib/failover/copy_quiesce.h). Each of these words has one writer and goes from 0 to 1, so
 * a lane that has seen them all need not check again. docs/models/put_targets.pml models one router,
 * docs/models/put_targets_of_domains.pml two.
 */
#ifndef FERRY_ROUTER_ENGINE_PUT_TARGETS_H
#define FERRY_ROUTER_ENGINE_PUT_TARGETS_H

#include "router/engine/order.h"

/**
 * Finds the put targets, once in each run of the call, as soon as all ranks have submitted it; its PUTs have their
 * destinations then. True if it has just done so. D2H lane.
 */
bool ferry_put_targets_find(struct ferry_member *member, struct ferry_call *call);

/**
 * Releases the put targets that the call still has: its half is over, or its job has failed and no copy of it is under
 * way. A rank that leaves waits for that, so it depends on copies alone: not on other ranks, nor on the call's own
 * stream. D2H lane.
 */
void ferry_put_targets_release(struct ferry_member *member, struct ferry_call *call);

/**
 * Says in the rank's line, once, that its lanes have released all put targets, and find no more: the job has failed, or
 * the lanes release the rank. D2H lane, or the thread that takes the rank off the lanes.
 */
void ferry_put_targets_stop(struct ferry_member *member);

/**
 * The job has failed: whether no rank puts into the call's receive buffers any more, or the lane has waited ten seconds
 * for that. H2D lane.
 */
bool ferry_put_targets_are_quiet(struct ferry_member *member, const struct ferry_call *call);

#endif
