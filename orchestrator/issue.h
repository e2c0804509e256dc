/* SPDX-License-Identifier: Apache-2.0 */
/** Calls as NCCL alone makes them. By the thread that makes the call. */
#ifndef FERRY_ORCHESTRATOR_ISSUE_H
#define FERRY_ORCHESTRATOR_ISSUE_H

#include "orchestrator/call.h"

/** Into the group of NCCL's that is open, if one is. */
ncclResult_t ferry_nccl_issue(const struct ferry_nccl_call *call);

/** Several as a group. */
ncclResult_t ferry_nccl_issue_all(const struct ferry_nccl_call *calls, int n);

#endif
