/* SPDX-License-Identifier: Apache-2.0 */
#include "router/registration.h"

ferryResult_t ferry_registration_make(struct ferry_registration *registration, struct ferry_gpu *gpu,
                                      const struct ferry_job_arenas *shared)
{
	if (!registration->gpu) {
		ferry_gpu_hold(gpu);
		registration->gpu = gpu;
	}
	struct ferry_copier *copier = ferry_gpu_copier(registration->gpu);
	for (uint32_t domain = 0; domain < shared->ndomains; domain++) {
		uint64_t bytes;
		if (registration->done[domain])
			continue;
		void *windows = ferry_arena_windows(&shared->arenas[domain], &bytes);
		ferryResult_t result = copier->ops->register_memory(copier, windows, bytes);
		if (result)
			return result;
		registration->done[domain] = true;
	}
	return ferrySuccess;
}

void ferry_registration_end(struct ferry_registration *registration, const struct ferry_job_arenas *shared)
{
	if (!registration->gpu)
		return;
	struct ferry_copier *copier = ferry_gpu_copier(registration->gpu);
	for (uint32_t domain = 0; domain < shared->ndomains; domain++) {
		uint64_t bytes;
		if (registration->done[domain])
			copier->ops->unregister_memory(copier, ferry_arena_windows(&shared->arenas[domain], &bytes));
	}
	ferry_gpu_drop(registration->gpu);
	*registration = (struct ferry_registration){0};
}
