/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/redops.h"

#include "ipc/collective.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

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
	redop->next = comm->redops;
	comm->redops = redop;
	pthread_mutex_unlock(&lock);
}

bool ferry_nccl_redop_find(struct ferry_nccl_comm *comm, ncclRedOp_t op, struct ferry_nccl_redop *redop)
{
	pthread_mutex_lock(&lock);
	struct ferry_nccl_redop *at = comm->redops;
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
	struct ferry_nccl_redop **at = &comm->redops;
	while (*at && (*at)->op != op)
		at = &(*at)->next;
	struct ferry_nccl_redop *gone = *at;
	if (gone)
		*at = gone->next;
	pthread_mutex_unlock(&lock);
	free(gone);
}
