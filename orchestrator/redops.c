/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/redops.h"

#include "ipc/collective.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct ferry_nccl_redop *first_of(struct ferry_nccl_comm *comm)
{
	return atomic_load_explicit(&comm->redops, memory_order_relaxed);
}

void ferry_nccl_redop_add(struct ferry_nccl_comm *comm, ncclRedOp_t op, const void *scalar, ncclDataType_t type,
                          ncclScalarResidence_t residence)
{
	struct ferry_nccl_redop *redop = calloc(1, sizeof *redop);
	if (!redop)
		return;
	redop->op = op;
	redop->type = type;
	redop->residence = residence;
	if (residence == ncclScalarDevice)
		redop->device_scalar = (void *)(uintptr_t)scalar;
	else
		memcpy(redop->scalar, scalar, ferry_type_size((ferryDataType_t)type));
	pthread_mutex_lock(&lock);
	redop->next = first_of(comm);
	atomic_store_explicit(&comm->redops, redop, memory_order_relaxed);
	pthread_mutex_unlock(&lock);
}

bool ferry_nccl_redop_find(struct ferry_nccl_comm *comm, ncclRedOp_t op, struct ferry_nccl_redop *redop)
{
	pthread_mutex_lock(&lock);
	struct ferry_nccl_redop *at = first_of(comm);
	while (at && at->op != op)
		at = at->next;
	if (at)
		*redop = *at;
	pthread_mutex_unlock(&lock);
	return at;
}

void ferry_nccl_redop_remove(struct ferry_nccl_comm *comm, ncclRedOp_t op)
{
	pthread_mutex_lock(&lock);
	struct ferry_nccl_redop *at = first_of(comm), *before = NULL;
	for (; at && at->op != op; at = at->next)
		before = at;
	if (at && before)
		before->next = at->next;
	else if (at)
		atomic_store_explicit(&comm->redops, at->next, memory_order_relaxed);
	pthread_mutex_unlock(&lock);
	free(at);
}
