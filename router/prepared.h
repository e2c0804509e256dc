/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Jobs whose router is dying, for which a rank has asked this one to make itself ready (PREPARE). On an H200 a process
 * ends 20 ms after its connections have closed, and registering 256 MiB takes 27: side by side, the job's pause is the
 * longer of the two.
 *
 * Nothing of the job has begun: the router before this one may still write to the arenas, and copy. Who hands over
 * (ADOPT, router/adoption.h) has seen that one end. Whose connection closes before that gets what was made ready
 * undone.
 */
#ifndef FERRY_ROUTER_PREPARED_H
#define FERRY_ROUTER_PREPARED_H

#include "router/preparation.h"
#include "router/jobs.h"

struct ferry_prepared;

/**
 * PREPARE, by who stands so. The arenas' descriptors that are taken become -1. *mine, which is NULL, is what this has
 * begun, until that is taken or dropped: it stays where it is, as does `standing`. For a job that another rank has
 * asked for already, or that is being handed over, the context alone is made. Connection thread. Errors:
 * ferryRefused for a job that is served here, arenas that are none, over the tenant's limits, while draining or while
 * another of the same owner's is undone; ferryInvalidArgument for another domain's; ferrySystemError.
 */
ferryResult_t ferry_prepare(struct ferry_jobs *jobs, const struct ferry_attach_message *message,
                            const struct ferry_standing *standing, int *descriptors, struct ferry_prepared **mine);

/** Who has asked goes: what nobody has taken goes, too, by the reaper. *mine may be NULL, and is. Connection thread. */
void ferry_prepared_drop(struct ferry_jobs *jobs, struct ferry_prepared **mine);

/** The reaper has ended, and nobody asks any more. */
void ferry_prepared_end(struct ferry_jobs *jobs);

/** Drops what nobody has come for within FERRY_ATTACH_TIMEOUT. Milliseconds until it is to look again; -1: nothing. */
int ferry_prepared_watch(struct ferry_jobs *jobs);

/** What counts no more once that is taken, as the job does; NULL: nothing is there for it. */
const struct ferry_reserved *ferry_prepared_counts(const struct ferry_jobs *jobs,
                                                   const struct ferry_attach_message *message, uint32_t owner,
                                                   const int *descriptors);

/**
 * What was made ready, or is about to be, for the job that is adopted so, with those arenas; NULL: nothing. *shared are
 * then the same arenas, mapped; the caller's from then on, but that he settles it before he unmaps them. Connection
 * thread.
 */
struct ferry_preparation *ferry_prepared_take(struct ferry_jobs *jobs, const struct ferry_attach_message *message,
                                              uint32_t owner, const int *descriptors,
                                              struct ferry_job_arenas *shared);

#endif
