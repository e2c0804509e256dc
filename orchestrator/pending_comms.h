/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Communicators whose creation is under way. It is in a group until that ends, and for a nonblocking communicator until
 * NCCL's own thread is done. ncclCommSplit, ncclCommShrink and ncclCommGrow may store the new handle as late as that.
 * They store it in the program's memory, which is therefore read no later than the program may expect the handle there.
 *
 * Called by constructors.c and groups.c, from any thread; the list is under one lock.
 */
#ifndef FERRY_ORCHESTRATOR_PENDING_COMMS_H
#define FERRY_ORCHESTRATOR_PENDING_COMMS_H

#include "orchestrator/communicators.h"

/**
 * NCCL has returned from the call that creates it, with a fine result. The creation is over when the thread's group
 * ends or, if NCCL has it in progress then, when NCCL says that `until` is not in progress any more: the new
 * communicator or, where its handle is yet to be stored at `where`, its parent. Takes over the tuner. Without memory
 * the creation counts as over, and a handle that is yet to come is not watched.
 */
void ferry_nccl_pending_comm_expect(ncclComm_t until, ncclComm_t *where,
                                    const struct ferry_nccl_pending_comm *pending_comm);

/** The creation is over, and its tuner is released. */
void ferry_nccl_pending_comm_over(const struct ferry_nccl_pending_comm *pending_comm);

/**
 * The thread's outermost group is over, with this result, or a creation outside any. Where that is fine Ferry's
 * communicators begin, and are waited for where that is wanted (communicators.h).
 */
void ferry_nccl_pending_comms_group_ended(ncclResult_t result);

/** `until` is not in progress any more, so the communicators that wait for that are there, or never will be. */
void ferry_nccl_pending_comms_ready(ncclComm_t until);

#endif
