/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Adoption: how a job whose router has ended goes on with this one. The old router leaves nothing but what lies in the
 * job's arenas, which the ranks have, too: each rank hands them over, with all else that the old router had from it. A
 * rank begins when the old router's process has ended, as its pidfd tells: so no copy of that router is under way, and
 * the arenas do not change any more.
 *
 * The first rank makes the job out of the arenas of all domains; later ranks must hand over the same files. When all
 * ranks have said that they have handed over everything, or have left, the job is ready. Its calls are then admitted
 * again from the descriptors, behind the last that the old router had finished, and each instruction goes on behind
 * what its counter says (ferry_works_arm). Until then no call begins. So a router that ends in the middle of this
 * leaves nothing that matters: the next one does the same from the beginning.
 *
 * An imported arena is checked like one that a rank maps, and must not be truncatable; its staging counts for its
 * tenant. A rank that hands over another kind of memory, or comes before the old router has ended, harms its own job.
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
 * A rank comes with ADOPT and the arenas of all domains; descriptors that are taken become -1. *job: its job, which it
 * has attached to. Errors: those of ferry_arena_map, ferryRefused for another job of that key, or over a limit of its
 * tenant; the job's failure; ferrySystemError.
 */
ferryResult_t ferry_adoption_join(struct ferry_jobs *jobs, const struct ferry_attach_message *message,
                                  const struct ferry_standing *standing, int *descriptors, struct ferry_job **job);

/**
 * The rank has handed over everything, with that message. Error: ferryInvalidUsage, where its job is not being adopted,
 * or does not wait for the rank any more, as the rank has left.
 */
ferryResult_t ferry_adoption_come(struct ferry_jobs *jobs, struct ferry_job *job, uint32_t rank,
                                  const struct ferry_attach_message *message);

/** Whether this router is to move the rank's data, and the rank may still hand something over. */
bool ferry_adoption_takes(const struct ferry_job *job, uint32_t rank);

/**
 * The rank leaves in order: all its calls are over, so nothing is copied for it here, nor into its memory, whatever it
 * has handed over. If its job is being adopted, sets its bit in `released` at once, so that the rank need not wait for
 * all other ranks to come; what is opened for it is closed when the job goes on.
 */
void ferry_adoption_leave(struct ferry_job *job, uint32_t rank);

/**
 * Checks the ranks that have not come: ends the job of one that has died, or for which the time is over. Returns in how
 * many milliseconds to check again; -1: no job is being adopted.
 */
int ferry_adoptions_watch(struct ferry_jobs *jobs);

#endif
