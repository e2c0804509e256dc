/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/launch.h"

#include "orchestrator/real.h"

static ncclResult_t issue_plain(const struct ferry_nccl_call *c)
{
	switch (c->collective) {
	case FERRY_ALLREDUCE:
		return ferry_nccl_real_AllReduce(c->send, c->receive, c->count, c->type, c->op, c->handle, c->stream);
	case FERRY_ALLGATHER:
		return ferry_nccl_real_AllGather(c->send, c->receive, c->count, c->type, c->handle, c->stream);
	case FERRY_REDUCESCATTER:
		return ferry_nccl_real_ReduceScatter(c->send, c->receive, c->count, c->type, c->op, c->handle,
		                                     c->stream);
	case FERRY_BROADCAST:
		if (c->legacy)
			return ferry_nccl_real_Bcast(c->receive, c->count, c->type, c->root, c->handle, c->stream);
		return ferry_nccl_real_Broadcast(c->send, c->receive, c->count, c->type, c->root, c->handle,
		                                 c->stream);
	case FERRY_REDUCE_TO_ROOT:
		return ferry_nccl_real_Reduce(c->send, c->receive, c->count, c->type, c->op, c->root, c->handle,
		                              c->stream);
	case FERRY_ALLTOALL:
		return ferry_nccl_real_AlltoAll(c->send, c->receive, c->count, c->type, c->handle, c->stream);
	case FERRY_GATHER:
		return ferry_nccl_real_Gather(c->send, c->receive, c->count, c->type, c->root, c->handle, c->stream);
	case FERRY_SCATTER:
		return ferry_nccl_real_Scatter(c->send, c->receive, c->count, c->type, c->root, c->handle, c->stream);
	case FERRY_SENDRECV:
		if (c->sends)
			return ferry_nccl_real_Send(c->send, c->count, c->type, c->root, c->handle, c->stream);
		return ferry_nccl_real_Recv(c->receive, c->count, c->type, c->root, c->handle, c->stream);
	default:
		return ncclInternalError;
	}
}

static ncclResult_t issue_configured(const struct ferry_nccl_call *c)
{
	switch (c->collective) {
	case FERRY_ALLREDUCE:
		return ferry_nccl_real_AllReduceConfig(c->send, c->receive, c->count, c->type, c->op, c->handle,
		                                       c->stream, c->config);
	case FERRY_ALLGATHER:
		return ferry_nccl_real_AllGatherConfig(c->send, c->receive, c->count, c->type, c->handle, c->stream,
		                                       c->config);
	case FERRY_REDUCESCATTER:
		return ferry_nccl_real_ReduceScatterConfig(c->send, c->receive, c->count, c->type, c->op, c->handle,
		                                           c->stream, c->config);
	case FERRY_BROADCAST:
		return ferry_nccl_real_BroadcastConfig(c->send, c->receive, c->count, c->type, c->root, c->handle,
		                                       c->stream, c->config);
	case FERRY_REDUCE_TO_ROOT:
		return ferry_nccl_real_ReduceConfig(c->send, c->receive, c->count, c->type, c->op, c->root, c->handle,
		                                    c->stream, c->config);
	case FERRY_ALLTOALL:
		return ferry_nccl_real_AlltoAllConfig(c->send, c->receive, c->count, c->type, c->handle, c->stream,
		                                      c->config);
	case FERRY_GATHER:
		return ferry_nccl_real_GatherConfig(c->send, c->receive, c->count, c->type, c->root, c->handle,
		                                    c->stream, c->config);
	case FERRY_SCATTER:
		return ferry_nccl_real_ScatterConfig(c->send, c->receive, c->count, c->type, c->root, c->handle,
		                                     c->stream, c->config);
	default:
		return ncclInternalError;
	}
}

ncclResult_t ferry_nccl_issue(const struct ferry_nccl_call *call)
{
	return call->config ? issue_configured(call) : issue_plain(call);
}

ncclResult_t ferry_nccl_launch(struct ferry_nccl_call *calls, int n)
{
	if (n == 1)
		return ferry_nccl_issue(&calls[0]);
	ncclResult_t result = ferry_nccl_real_GroupStart();
	if (result)
		return result;
	for (int i = 0; i < n && (!result || result == ncclInProgress); i++)
		result = ferry_nccl_issue(&calls[i]);
	ncclResult_t ended = ferry_nccl_real_GroupEnd();
	return result && result != ncclInProgress ? result : ended;
}
