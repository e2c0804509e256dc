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

/** The call as NCCL alone makes it, into the group of NCCL's that is open, if one is. */
ncclResult_t ferry_nccl_issue(const struct ferry_nccl_call *call);

/**
 * A kept call of a communicator that ends within the group: as a kernel, where kernels have begun, else into the group
 * of NCCL's that is open.
 */
ncclResult_t ferry_nccl_issue_last(const struct ferry_nccl_call *call);

#endif
