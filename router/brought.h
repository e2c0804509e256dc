/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Arenas that ranks bring: of the other domains, when all ranks have attached; and of all domains, from a router that
 * has ended (router/adoption.h). They are no more believed than anything else of a rank's, and guarded
 * (router/guard.h) as long as they are mapped.
 */
#ifndef FERRY_ROUTER_BROUGHT_H
#define FERRY_ROUTER_BROUGHT_H

#include "ipc/attach.h"
#include "ipc/publish.h"

/**
 * Maps that domain's arena of a job of shared->nranks and ->ndomains, into its place in `shared`; the descriptor is its
 * own from then on, and closed on an error. Errors: those of ferry_arena_map; ferryRefused where it is another's, not
 * all ranks have attached to it, or it is no memory that the kernel fills by itself and that nobody cuts short.
 */
ferryResult_t ferry_brought_arena_map(int descriptor, uint32_t domain, struct ferry_job_arenas *shared);

/**
 * Those of all domains, in a message of a rank of the job, by the router of domain `own`. The descriptors that are
 * taken become -1. Errors: as above; ferryRefused where a rank, or the router, is in none of
 * the domains. Nothing is mapped then.
 */
ferryResult_t ferry_brought_map(const struct ferry_attach_message *message, uint32_t own, int *descriptors,
                                struct ferry_job_arenas *shared);
void ferry_brought_unmap(struct ferry_job_arenas *shared);

/** Whether these, one of each domain of the job, are its arenas. */
bool ferry_brought_are_same(const struct ferry_job_arenas *shared, const int *descriptors);

#endif
