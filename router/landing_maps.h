/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What a rank exports as a landing, mapped a second time: for each of the other GPUs that put into it. To its own GPU's
 * address another one's copies go through the host. The mapper's thread makes and ends them.
 */
#ifndef FERRY_ROUTER_LANDING_MAPS_H
#define FERRY_ROUTER_LANDING_MAPS_H

#include "router/gpus.h"

struct ferry_landing_map {
	struct ferry_gpu *gpu; /* held */
	struct ferry_mapping mapping;
};

/**
 * For each of those GPUs, in their order. The descriptors stay the caller's. Errors: those of ferry_gpu_map, and then
 * nothing is mapped; ferrySystemError.
 */
ferryResult_t ferry_landing_maps_new(struct ferry_gpu *const *others, uint32_t nothers,
                                     const struct ferry_exported *exported, const int *descriptors,
                                     struct ferry_landing_map **mapped);

/** So many; NULL with 0: nothing. */
void ferry_landing_maps_free(struct ferry_landing_map *landings, uint32_t count);

#endif
