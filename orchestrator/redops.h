/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Reductions that programs have created, by communicator: what a fabric needs to compute them. Called by
 * constructors.c, groups.c and launch.c; any thread, under one lock.
 */
#ifndef FERRY_ORCHESTRATOR_REDOPS_H
#define FERRY_ORCHESTRATOR_REDOPS_H

#include "orchestrator/communicators.h"

/**
 * Notes a reduction that NCCL has made. Reads a scalar in host memory now. Without memory the reduction is unknown
 * later.
 */
void ferry_nccl_redop_add(struct ferry_nccl_comm *comm, ncclRedOp_t op, const void *scalar, ncclDataType_t type,
                          ncclScalarResidence_t residence);

/** Copies what is known of it (`next` is meaningless). Returns false if nothing is. */
bool ferry_nccl_redop_find(struct ferry_nccl_comm *comm, ncclRedOp_t op, struct ferry_nccl_redop *redop);

/** NCCL has forgotten it. */
void ferry_nccl_redop_remove(struct ferry_nccl_comm *comm, ncclRedOp_t op);

#endif
