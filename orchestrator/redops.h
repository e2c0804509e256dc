/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Reductions that programs have made of their own, by communicator: what a fabric needs to reduce as they say. Called
 * by constructors.c, groups.c and whoever launches calls; any thread, under one lock.
 */
#ifndef FERRY_ORCHESTRATOR_REDOPS_H
#define FERRY_ORCHESTRATOR_REDOPS_H

#include "orchestrator/communicators.h"

/** Notes a reduction that NCCL has made. A scalar in host memory is read now. Without memory it is not known later. */
void ferry_nccl_redop_add(struct ferry_nccl_comm *comm, ncclRedOp_t op, const void *scalar, ncclDataType_t type,
                          ncclScalarResidence_t residence);

/** Copies what is known of it (`next` means nothing); false: nothing. */
bool ferry_nccl_redop_find(struct ferry_nccl_comm *comm, ncclRedOp_t op, struct ferry_nccl_redop *redop);

/** NCCL has forgotten it. */
void ferry_nccl_redop_remove(struct ferry_nccl_comm *comm, ncclRedOp_t op);

#endif
