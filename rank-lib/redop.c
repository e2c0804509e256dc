/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/comm.h"

#include <string.h>

ferryResult_t ferryRedOpCreatePreMulSum(ferryRedOp_t *op, void *scalar, ferryDataType_t type,
                                        ferryScalarResidence_t residence, ferryComm_t comm)
{
	ferryResult_t result = ferry_comm_check(comm);
	if (result)
		return result;
	if (!op || !scalar || !ferry_type_size(type) ||
	    (residence != ferryScalarDevice && residence != ferryScalarHostImmediate))
		return ferry_fail(ferryInvalidArgument,
		                  "ferryRedOpCreatePreMulSum: op %p, scalar %p, type %d, residence %d", (void *)op,
		                  scalar, (int)type, (int)residence);
	pthread_mutex_lock(&comm->lock);
	for (int i = 0; i < FERRY_MAX_REDOPS; i++) {
		struct ferry_redop *free_one = &comm->redops[i];
		if (free_one->used)
			continue;
		*free_one = (struct ferry_redop){.used = true, .type = type};
		if (residence == ferryScalarDevice)
			free_one->device_scalar = scalar;
		else
			memcpy(&free_one->scalar, scalar, ferry_type_size(type));
		*op = (ferryRedOp_t)((int)ferryNumOps + i);
		pthread_mutex_unlock(&comm->lock);
		return ferrySuccess;
	}
	pthread_mutex_unlock(&comm->lock);
	return ferry_fail(ferryInvalidUsage, "a communicator has at most %d created reductions", FERRY_MAX_REDOPS);
}

ferryResult_t ferryRedOpDestroy(ferryRedOp_t op, ferryComm_t comm)
{
	ferryResult_t result = ferry_comm_check(comm);
	if (result)
		return result;
	int index = (int)op - (int)ferryNumOps;
	pthread_mutex_lock(&comm->lock);
	if (index < 0 || index >= FERRY_MAX_REDOPS || !comm->redops[index].used)
		result = ferry_fail(ferryInvalidArgument,
		                    "ferryRedOpDestroy: %d is no reduction created on this communicator", (int)op);
	else
		comm->redops[index].used = false; /* calls under way have copied the scalar */
	pthread_mutex_unlock(&comm->lock);
	return result;
}
