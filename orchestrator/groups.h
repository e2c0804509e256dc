/* SPDX-License-Identifier: Apache-2.0 */
/**
 * NCCL's groups. NCCL's own group is open as long as the program's is, so that it has all calls that are passed on, and
 * communicators are made and ended in it. Calls that Ferry may divide are kept. When the outermost group ends, NCCL's
 * is ended first, then the kept calls are launched together (launch.h), and then communicators end that the program has
 * ended meanwhile. All state is the calling thread's.
 *
 * An error that NCCL would return at a kept call is returned at the group's end; a call that is wrong at sight is not
 * kept, so its error comes at once.
 */
#ifndef FERRY_ORCHESTRATOR_GROUPS_H
#define FERRY_ORCHESTRATOR_GROUPS_H

#include "orchestrator/call.h"

/** Whether the thread is in a group. */
bool ferry_nccl_group_is_open(void);

/**
 * Keeps the call until the group ends; holds its communicator and copies its configuration. False without memory: the
 * call is NCCL's.
 */
bool ferry_nccl_group_keep(const struct ferry_nccl_call *call);

/**
 * If the group keeps calls, returns true, and `end` is called when they have been launched: calls of the communicator
 * may wait for calls of the group. Else returns false, as without memory, and `end` is the caller's to call.
 */
bool ferry_nccl_group_defers_end(ncclComm_t comm, ncclResult_t (*end)(ncclComm_t comm));

/** Drops what is kept of a communicator that is about to be aborted. */
void ferry_nccl_group_drop(ncclComm_t handle);

/**
 * If a kept call needs the reduction, returns true, and `destroy` is called when the group has ended: NCCL lets
 * programs destroy it before.
 */
bool ferry_nccl_group_defers(ncclRedOp_t op, ncclComm_t comm,
                             ncclResult_t (*destroy)(ncclRedOp_t op, ncclComm_t comm));

#endif
