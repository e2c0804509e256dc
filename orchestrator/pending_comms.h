/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Communicators that NCCL has yet to give out. ncclCommSplit and ncclCommShrink store the new handle when it is ready:
 * in a group at its end, and for a nonblocking communicator when NCCL's own thread is done. They store it in the
 * program's memory, which is therefore read no later than the program may expect the handle there.
 *
 * Called by constructors.c and groups.c, from any thread; the list is under one lock.
 */
#ifndef FERRY_ORCHESTRATOR_PENDING_COMMS_H
#define FERRY_ORCHESTRATOR_PENDING_COMMS_H

#include "orchestrator/communicators.h"

/**
 * A handle will be stored at `where`. `grouped`: not before the calling thread's group ends. Without memory the
 * communicator is not watched.
 */
void ferry_nccl_pending_comm_expect(ncclComm_t parent, ncclComm_t *where,
                                    const struct ferry_nccl_pending_comm *pending_comm, bool grouped);

/** The thread's outermost group is over, with this result. */
void ferry_nccl_pending_comms_group_ended(ncclResult_t result);

/** `parent` is not in progress any more, so the communicators that are made out of it are there, or never will be. */
void ferry_nccl_pending_comms_ready(ncclComm_t parent);

/** NCCL has made these: Ferry's begin, and are waited for where that is wanted (communicators.h). */
void ferry_nccl_pending_comms_made(const ncclComm_t *comms, int count);

/** The same at the end of the thread's open group, if that is fine. */
void ferry_nccl_pending_comm_grouped(ncclComm_t comm);

#endif
