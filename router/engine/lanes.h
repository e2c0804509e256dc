/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The two lanes of a device in one process, and the members that have joined them. A rank has its own lanes, a router
 * has the lanes of each of its GPUs (router/gpu/gpu_lanes.h). Any thread, one at a time per member.
 */
#ifndef FERRY_ROUTER_ENGINE_LANES_H
#define FERRY_ROUTER_ENGINE_LANES_H

#include "router/engine/lane.h"

struct ferry_lanes_options {
	struct ferry_copier *copier;
	uint64_t spin_ns;                /* how long they spin for a slice or call that is about to come */
	struct ferry_priority *priority; /* of the threads; NULL: as they are */
	struct ferry_doorbell *bells[2]; /* of the only member that will ever join; NULL: several may */
};

/** Opens the queues and starts the threads. Errors: the copier's, ferrySystemError; nothing is left then. */
ferryResult_t ferry_lanes_open(struct ferry_lanes *lanes, const struct ferry_lanes_options *options);

/** Closes the queues and ends the threads. All members have left. */
void ferry_lanes_close(struct ferry_lanes *lanes);

/**
 * Initializes the member's lane ranks; a caller that resumes messages changes them before it joins. As
 * ferry_lanes_join.
 */
void ferry_lanes_lane_rank(struct ferry_member *member);

/**
 * From now on the lanes run the member's calls. ferry_lanes_lane_rank has been called. The caller has filled in ops,
 * shared and rank, and zeroed the rest.
 */
void ferry_lanes_join(struct ferry_lanes *lanes, struct ferry_member *member);

/**
 * Returns when the lanes have released the member: at once where its calls are over; else, as the job has failed, when
 * the copies under way have finished. The remaining calls are released without releasing their streams.
 */
void ferry_lanes_leave(struct ferry_member *member);

/** Hands a call to the lanes. One thread at a time per member. */
void ferry_lanes_submit(struct ferry_member *member, struct ferry_call *call);

#endif
