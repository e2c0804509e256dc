/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Adoption: how a job comes to this router whose router has ended. Nothing is left of that one but what lies in the
 * job's arenas, and those are its ranks', who hand them over, each for itself, with all else that the old one had from
 * them. They begin when its process has ended, by its pidfd: so nothing that it had begun can land any more, and what
 * the arenas say stays.
 *
 * The first rank makes the job out of the arenas of all domains; those of later ranks must be the same files. When all
 * have said that they have handed over everything, or have left, the job is ready: its calls are admitted again from
 * the descriptors, behind the last that the old router had finished, and each instruction goes on behind what its
 * counter says (ferry_works_arm). Until then no call begins. So a router that ends in the middle of this leaves nothing
 * that matters: the next one does the same from the beginning.
 *
 * What is believed of an arena is checked as where a rank maps one, and that nobody can cut it short; its staging
 * counts for its tenant. A rank that hands over what is not so, or comes before the old router has ended, harms its own
 * job.
 *
 * A rank that has died meanwhile has no connection that could close. It is found by its process, which its line names;
 * where that cannot be seen from here, by FERRY_ATTACH_TIMEOUT.
 *
 * Connection thread.
 */
#ifndef FERRY_ROUTER_FAILOVER_ADOPTION_H
#define FERRY_ROUTER_FAILOVER_ADOPTION_H

#include "router/daemon/jobs.h"

/**
 * A rank comes with ADOPT and the arenas of all domains, of which those that are taken become -1. *job: its job, which
 * it has attached to. Errors: those of ferry_arena_map, ferryRefused for another job of that key, or a limit of its
 * tenant's; the job's failure; ferrySystemError.
 */
ferryResult_t ferry_adoption_join(struct ferry_jobs *jobs, const struct ferry_attach_message *message,
                                  const struct ferry_standing *standing, int *descriptors, struct ferry_job **job);

/**
 * The rank has handed over everything, with that message. Error: ferryInvalidUsage, where its job is not being adopted,
 * or, as the rank has left, no longer waits for it.
 */
ferryResult_t ferry_adoption_come(struct ferry_jobs *jobs, struct ferry_job *job, uint32_t rank,
                                  const struct ferry_attach_message *message);

/** Whether the rank comes as one whose data this router moves, and may hand something over still. */
bool ferry_adoption_takes(const struct ferry_job *job, uint32_t rank);

/**
 * The rank leaves in order: all its calls are over, so nothing is copied for it here, nor into its memory, whatever it
 * has handed over. If its job is being adopted that is said at once (released), so that the rank need not wait for all
 * others to come; what is opened for it is closed when the job goes on.
 */
void ferry_adoption_leave(struct ferry_job *job, uint32_t rank);

/**
 * Looks after ranks that have not come: ends the job of one that has died, or that nobody waits for any longer. In how
 * many milliseconds to look again; -1: no job is being adopted.
 */
int ferry_adoptions_watch(struct ferry_jobs *jobs);

#endif
