/* SPDX-License-Identifier: Apache-2.0 */
#include "router/landing_maps.h"

#include "ipc/error.h"

#include <stdlib.h>

void ferry_landing_maps_free(struct ferry_landing_map *landings, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		ferry_gpu_unmap(landings[i].gpu, &landings[i].mapping);
		ferry_gpu_drop(landings[i].gpu);
	}
	free(landings);
}

ferryResult_t ferry_landing_maps_new(struct ferry_gpu *const *others, uint32_t nothers,
                                     const struct ferry_exported *exported, const int *descriptors,
                                     struct ferry_landing_map **mapped)
{
	struct ferry_landing_map *landings = calloc(nothers + 1, sizeof *landings);
	if (!landings)
		return ferry_fail(ferrySystemError, "no memory for an export");
	for (uint32_t i = 0; i < nothers; i++) {
		landings[i].gpu = others[i];
		ferryResult_t result = ferry_gpu_map(landings[i].gpu, exported, descriptors, &landings[i].mapping);
		if (result) {
			ferry_landing_maps_free(landings, i);
			return result;
		}
		ferry_gpu_hold(landings[i].gpu);
	}
	*mapped = landings;
	return ferrySuccess;
}
