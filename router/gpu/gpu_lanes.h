/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The lanes of a router: a pair for each GPU that ranks are on, for all jobs, opened with the first rank and closed
 * with the last. Any thread.
 */
#ifndef FERRY_ROUTER_GPU_GPU_LANES_H
#define FERRY_ROUTER_GPU_GPU_LANES_H

#include "router/engine/lanes.h"
#include "router/gpu/gpus.h"

struct ferry_gpu_lane_pair;

struct ferry_gpu_lanes {
	uint64_t spin_ns; /* as in struct ferry_lanes_options; constant, as is the next */
	struct ferry_priority *priority;
	pthread_mutex_t lock;       /* of the list and its entries; held while lanes are opened and closed */
	struct ferry_gpu_lane_pair *pairs;
};

/** Reads FERRY_SPIN_US. Error: ferryInvalidArgument where it makes no sense. */
ferryResult_t ferry_gpu_lanes_init(struct ferry_gpu_lanes *table, struct ferry_priority *priority);

/**
 * Returns the lanes of the GPU, opened if it has none. They hold the GPU as long as they have users. Errors: those of
 * ferry_lanes_open, ferrySystemError.
 */
ferryResult_t ferry_gpu_lanes_use(struct ferry_gpu_lanes *table, struct ferry_gpu *gpu, struct ferry_lanes **lanes);

/** The caller's member has left them. */
void ferry_gpu_lanes_leave(struct ferry_gpu_lanes *table, struct ferry_lanes *lanes);

#endif
