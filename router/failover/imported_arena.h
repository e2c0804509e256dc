/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Imported arenas: arenas that ranks hand over to a router that did not make them: of the other domains, when all ranks
 * have attached; and of all domains, from a router that has ended (router/failover/adoption.h). They are trusted no
 * more than anything else from a rank, and guarded (router/daemon/sigbus.h) as long as they are mapped.
 */
#ifndef FERRY_ROUTER_FAILOVER_IMPORTED_ARENA_H
#define FERRY_ROUTER_FAILOVER_IMPORTED_ARENA_H

#include "ipc/attach.h"
#include "ipc/publish.h"
#include "router/daemon/quota.h"

/**
 * Maps the arenas of all domains but `own`, of a job of shared->nranks and ->ndomains, each into its place in `shared`,
 * which must be empty. The descriptors that are taken become -1. Errors: those of ferry_arena_map; ferryRefused where
 * an arena is another job's, where not all ranks have attached to it, where the memory is not in tmpfs, so that another
 * process might have to fill its pages, or where it can be truncated. Nothing is mapped then.
 */
ferryResult_t ferry_imported_arena_map_others(int *descriptors, uint32_t own, struct ferry_job_arenas *shared);

/**
 * Maps the arenas of all domains, from a message of a rank of the job, in the router of domain `own`;
 * ferry_imported_arena_unmap unmaps them. Errors: as above; ferryRefused where a rank, or the router, is in none of the
 * domains.
 */
ferryResult_t ferry_imported_arena_map(const struct ferry_attach_message *message, uint32_t own, int *descriptors,
                                       struct ferry_job_arenas *shared);
void ferry_imported_arena_unmap(struct ferry_job_arenas *shared);

/** Their staging, to be counted (router/daemon/quota.h); 0 of domains without one. */
struct ferry_staging ferry_imported_arena_staging(const struct ferry_job_arenas *shared);

/** Whether these, one of each domain of the job, are its arenas. */
bool ferry_imported_arena_are_same(const struct ferry_job_arenas *shared, const int *descriptors);

#endif
