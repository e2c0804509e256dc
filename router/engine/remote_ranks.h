/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The ranks of a job whose data this router moves: members on the lanes of their GPUs from when the job is ready until
 * the rank leaves, or the job is over.
 */
#ifndef FERRY_ROUTER_ENGINE_REMOTE_RANKS_H
#define FERRY_ROUTER_ENGINE_REMOTE_RANKS_H

#include "router/daemon/job.h"
#include "router/gpu/gpu_lanes.h"

/**
 * All ranks have attached: finds which ranks' memory is in reach of each rank whose data this router moves, within the
 * GPU or as the GPUs' driver says. By that the ranks choose their programs, and the routers to which they export put
 * targets. What an earlier router has found stays: ranks have chosen by it, and some may have left. Job thread.
 */
void ferry_remote_ranks_find_reach(struct ferry_job *job);

/**
 * All ranks have attached and the other domains' arenas are mapped: registers the arenas, and joins the ranks that this
 * router moves to the lanes of their GPUs, which the mapper has found. Job thread. Errors: ferryRefused for stream
 * flags that are not sealed shared memory of the right size, ferrySystemError, the driver's. The job fails then, and is
 * closed as always.
 */
ferryResult_t ferry_remote_ranks_open(struct ferry_job *job);

/** Whether this router moves the data of the rank, which has not left, nor gone. Connection thread. */
bool ferry_remote_rank_is_open(const struct ferry_job *job, uint32_t rank);

/**
 * The rank leaves, or has gone: what the reaper is to end. When it does, nothing of the rank's submissions is taken any
 * more, and no copy for it is under way; its arena says so (released), and that the rank has left if that is
 * `in_order`; only then `client` is closed, and answered before if `answer`. Connection thread, at any time. NULL, and
 * nothing happens: for a rank whose data others move, for one that has left, and before the job is ready.
 */
struct ferry_ending *ferry_remote_rank_leave(struct ferry_job *job, uint32_t rank, int client, bool answer,
                                             bool in_order);

/** The job is over: returns when no copy of it is under way. The reaper's thread. */
void ferry_remote_ranks_close(struct ferry_job *job);

#endif
