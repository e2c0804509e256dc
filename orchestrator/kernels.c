/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/kernels.h"

#include "orchestrator/redops.h"
#include "rank-lib/call/launch.h"

#include <stdlib.h>
#include <string.h>

static struct ferry_request request_of(const struct ferry_nccl_call *call, ferryComm_t comm)
{
	struct ferry_request request = ferry_nccl_call_request(call, comm);
	request.kept = true; /* NCCL checks no more than is_sound has (collectives.c) */
	return request;
}

bool ferry_nccl_kernels_carry(const struct ferry_nccl_call *call, const struct ferry_shadow_comm *shadow_comm)
{
	uint64_t bytes = ferry_nccl_call_bytes(call);
	if (!shadow_comm->kernels || shadow_comm->meter.nccl_alone)
		return false;
	if (shadow_comm->meter.pinned && bytes >= shadow_comm->meter.floor_bytes)
		return false;
	if (call->collective == FERRY_SENDRECV)
		return ferry_kernels_carry_message(shadow_comm->comm, bytes);
	struct ferry_request request = request_of(call, shadow_comm->comm);
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

ferryResult_t ferry_nccl_kernels_exchange(const struct ferry_nccl_call *const *calls, uint32_t n,
                                          const struct ferry_shadow_comm *shadow_comm, enum ferry_kernels_step step)
{
	struct ferry_request few[FERRY_NCCL_KERNELS_TURN];
	struct ferry_request *requests = n > FERRY_NCCL_KERNELS_TURN ? malloc(n * sizeof *requests) : few;
	if (!requests || !n)
		return ferrySystemError;
	for (uint32_t i = 0; i < n; i++)
		requests[i] = request_of(calls[i], shadow_comm->comm);
	ferryResult_t result = ferry_launch_exchange(requests, n, step);
	if (requests != few)
		free(requests);
	return result;
}
