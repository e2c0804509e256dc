/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The staging of a job's arenas, registered with the driver so that copy engines reach it: by one GPU for all, as
 * registration is portable. It takes 0.1 ms per MiB. One thread at a time.
 */
#ifndef FERRY_ROUTER_REGISTRATION_H
#define FERRY_ROUTER_REGISTRATION_H

#include "ipc/publish.h"
#include "router/gpus.h"

struct ferry_registration {
	struct ferry_gpu *gpu; /* held, and has it registered; NULL: none has */
	bool done[FERRY_MAX_DOMAINS];
};

/**
 * Registers what is not yet: by `gpu`, or by the one that has begun. Errors: the driver's; what was registered stays.
 */
ferryResult_t ferry_registration_make(struct ferry_registration *registration, struct ferry_gpu *gpu,
                                      const struct ferry_job_arenas *shared);

/** When nothing of it is copied any more. */
void ferry_registration_end(struct ferry_registration *registration, const struct ferry_job_arenas *shared);

#endif
