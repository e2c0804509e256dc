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

#endif
