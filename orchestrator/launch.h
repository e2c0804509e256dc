/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Launches the calls of one group, or one call outside any. groups.c and collectives.c call this; it decides which
 * parts of them the fabrics have.
 */
#ifndef FERRY_ORCHESTRATOR_LAUNCH_H
#define FERRY_ORCHESTRATOR_LAUNCH_H

#include "orchestrator/call.h"

/**
 * Launches n calls in the order in which the program made them, as a group if there are several. No group of NCCL's is
 * open in this thread. Returns the first error, or what NCCL returns at the group's end.
 */
ncclResult_t ferry_nccl_launch(struct ferry_nccl_call *calls, int n);

/**
 * Makes the kept calls of a communicator that ends within the group: by kernels, where these have begun, the same as
 * on ranks that end it behind the group; the others into the group of NCCL's that is open, until one is refused.
 */
void ferry_nccl_issue_last(const struct ferry_nccl_call *calls, int n, ncclComm_t handle);

#endif
