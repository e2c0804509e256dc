/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What takes time before a job's data can be moved, done ahead: a context on a GPU, by the mapper's thread, then the
 * staging of the job's arenas registered, by a thread of its own. Nothing of the arenas is read or written.
 */
#ifndef FERRY_ROUTER_PREPARATION_H
#define FERRY_ROUTER_PREPARATION_H

#include "router/registration.h"

struct ferry_preparation;

/**
 * For these arenas, which stay where they are mapped until it is settled; not yet begun. Where there are none of any
 * domain: the context alone, until then. `gpu`: UUID. NULL: no memory.
 */
struct ferry_preparation *ferry_preparation_new(const struct ferry_job_arenas *shared, const uint8_t *gpu);

/** To be put to the mapper, which begins it then; or, where that cannot be, freed as it is. */
struct ferry_gpus_ask *ferry_preparation_ask(struct ferry_preparation *preparation);
void ferry_preparation_free(struct ferry_preparation *preparation);

/**
 * Of one that was put to the mapper: waits until what was begun is done, and frees it; *preparation is NULL then, as it
 * may be before. *made is what is registered, perhaps nothing; where there is none it stays as it is.
 */
void ferry_preparation_settle(struct ferry_preparation **preparation, struct ferry_registration *made);

#endif
