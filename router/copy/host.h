/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The host device's copy engine: the lane's thread. FERRY_HOST_LINK gives its links a speed: a copy then counts as
 * finished no sooner than a link of that speed, shared by all queues on the copier, would be.
 */
#ifndef FERRY_ROUTER_COPY_HOST_H
#define FERRY_ROUTER_COPY_HOST_H

#include "router/copy/copy.h"

#include <stdatomic.h>

struct ferry_host_copier {
	struct ferry_copier base;
	double seconds_per_byte[2];     /* by direction; 0: as fast as memory */
	_Atomic uint64_t busy_until[2]; /* nanoseconds: when the modelled link is free; lanes, by compare-and-swap */
};

/** Reads FERRY_HOST_LINK. ferryInvalidArgument, with what was expected, if that makes no sense. */
ferryResult_t ferry_host_copier_open(struct ferry_host_copier *copier);

#endif
