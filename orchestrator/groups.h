/* SPDX-License-Identifier: Apache-2.0 */
/**
 * NCCL's groups. NCCL's own group is open as long as the program's is, so that it has all calls that are passed on, and
 * communicators are made and ended in it. Calls that Ferry may divide are kept. When the outermost group ends, NCCL's
 * is ended first, then the kept calls are launched together (launch.h). All state is the calling thread's.
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
 * Makes the kept calls of a communicator that is about to end: in NCCL's open group, which returns errors at its end,
 * or by kernels. Those of other communicators stay: their ranks may end nothing, and look the same calls up.
 */
void ferry_nccl_group_give_back(ncclComm_t handle);

/**
 * Whether a kept call needs the reduction, which is then destroyed when the group has ended: NCCL lets programs destroy
 * it before.
 */
bool ferry_nccl_group_defers(ncclRedOp_t op, ncclComm_t comm);

#endif
