/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/api/redop.h"

#include "ipc/collective.h"
#include "ipc/error.h"

#include <string.h>

void ferry_redops_init(struct ferry_redops *redops)
{
	pthread_mutex_init(&redops->lock, NULL);
}

void ferry_redops_end(struct ferry_redops *redops)
{
	pthread_mutex_destroy(&redops->lock);
}

/* Returns its index, or -1 if all are used. */
static int use_free_one(struct ferry_redops *redops, const struct ferry_redop *redop)
{
	int found = -1;
	pthread_mutex_lock(&redops->lock);
	for (int i = 0; i < FERRY_MAX_REDOPS && found < 0; i++)
		if (!redops->all[i].used)
			found = i;
	if (found >= 0)
		redops->all[found] = *redop;
	pthread_mutex_unlock(&redops->lock);
	return found;
}

ferryResult_t ferry_redops_create(struct ferry_redops *redops, ferryRedOp_t *op, const void *scalar,
                                  ferryDataType_t type, ferryScalarResidence_t residence)
{
	struct ferry_redop redop = {.used = true, .type = type};
	if (!op || !scalar || !ferry_type_size(type) ||
	    (residence != ferryScalarDevice && residence != ferryScalarHostImmediate))
		return ferry_fail(ferryInvalidArgument,
		                  "ferryRedOpCreatePreMulSum: op %p, scalar %p, type %d, residence %d", (void *)op,
		                  scalar, (int)type, (int)residence);
	if (residence == ferryScalarDevice)
		redop.device_scalar = scalar;
	else
		memcpy(&redop.scalar, scalar, ferry_type_size(type));
	int index = use_free_one(redops, &redop);
	if (index < 0)
		return ferry_fail(ferryInvalidUsage, "a communicator has at most %d created reductions",
		                  FERRY_MAX_REDOPS);
	*op = (ferryRedOp_t)((int)ferryNumOps + index);
	return ferrySuccess;
}

ferryResult_t ferry_redops_destroy(struct ferry_redops *redops, ferryRedOp_t op)
{
	int index = (int)op - (int)ferryNumOps;
	bool used = false;
	if (index >= 0 && index < FERRY_MAX_REDOPS) {
		pthread_mutex_lock(&redops->lock);
		used = redops->all[index].used;
		redops->all[index].used = false; /* calls under way have copied the scalar */
		pthread_mutex_unlock(&redops->lock);
	}
	return used ? ferrySuccess
	            : ferry_fail(ferryInvalidArgument,
	                         "ferryRedOpDestroy: %d is no reduction created on this communicator", (int)op);
}

struct ferry_redop ferry_redops_find(struct ferry_redops *redops, ferryRedOp_t op)
{
	struct ferry_redop found = {0};
	int index = (int)op - (int)ferryNumOps;
	if (index < 0 || index >= FERRY_MAX_REDOPS)
		return found;
	pthread_mutex_lock(&redops->lock);
	found = redops->all[index];
	pthread_mutex_unlock(&redops->lock);
	return found;
}
