/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/kernels.h"

#include "orchestrator/redops.h"
#include "rank-lib/call/launch.h"
#include "rank-lib/kernels/kernel_launch.h"

#include <string.h>

static struct ferry_request request_of(const struct ferry_nccl_call *call, ferryComm_t comm)
{
	return (struct ferry_request){.collective = call->collective,
	                              .send = call->send,
	                              .receive = call->receive,
	                              .count = call->count,
	                              .type = (ferryDataType_t)call->type,
	                              .op = call->op < ncclNumOps ? (ferryRedOp_t)call->op : ferryNumOps,
	                              .root = call->root,
	                              .comm = comm,
	                              .stream = (ferryStream_t)call->stream,
	                              .kept = true}; /* NCCL looks at no more than is_sound has (collectives.c) */
}

bool ferry_nccl_kernels_carry(const struct ferry_nccl_call *call, const struct ferry_shadow_comm *shadow_comm)
{
	struct ferry_request request = request_of(call, shadow_comm->comm);
	if (!shadow_comm->kernels || call->collective == FERRY_SENDRECV || shadow_comm->meter.nccl_alone)
		return false;
	if (shadow_comm->meter.pinned && ferry_nccl_call_bytes(call) >= shadow_comm->meter.floor_bytes)
		return false;
	return ferry_kernels_carry(shadow_comm->comm, &request);
}

static ferryResult_t fill(const struct ferry_nccl_call *call, ferryComm_t comm, struct ferry_request *request)
{
	struct ferry_nccl_redop made;
	*request = request_of(call, comm);
	if (call->op < ncclNumOps)
		return ferrySuccess;
	if (!ferry_nccl_redop_find(call->comm, call->op, &made))
		return ferryInvalidArgument;
	request->factor = (struct ferry_redop){.used = true, .type = (ferryDataType_t)made.type};
	if (made.residence == ncclScalarDevice)
		request->factor.device_scalar = made.device_scalar;
	else
		memcpy(&request->factor.scalar, made.scalar, sizeof request->factor.scalar);
	return ferrySuccess;
}

ferryResult_t ferry_nccl_kernels_launch(const struct ferry_nccl_call *const *calls, uint32_t n,
                                        const struct ferry_shadow_comm *shadow_comm)
{
	struct ferry_request requests[FERRY_NCCL_KERNELS_TURN];
	ferryResult_t result = ferrySuccess;
	uint32_t count = 0;
	for (uint32_t i = 0; i < n; i++) {
		ferryResult_t filled = fill(calls[i], shadow_comm->comm, &requests[count]);
		count += !filled;
		result = result ? result : filled;
	}
	ferryResult_t launched = count ? ferry_launch_kernels(requests, count) : ferrySuccess;
	return result ? result : launched;
}
