/* SPDX-License-Identifier: Apache-2.0 */
/* The calls that fabrics may share: each is checked, then kept in the thread's group, launched, or passed on. */
#include "orchestrator/call.h"
#include "orchestrator/config.h"
#include "orchestrator/groups.h"
#include "orchestrator/issue.h"
#include "orchestrator/launch.h"
#include "orchestrator/redops.h"
#include "orchestrator/watch.h"

#define MOST_COUNT (SIZE_MAX >> 16) /* bytes of all ranks' blocks fit 64 bits */

/* Whether NCCL would take the call. Calls that it would refuse are passed on, so that NCCL reports the reason. */
static bool is_sound(const struct ferry_nccl_call *call)
{
	struct ferry_nccl_redop redop;
	bool has_root = ferry_collective_has_root(call->collective) || call->collective == FERRY_SENDRECV;
	if (!ferry_type_size((ferryDataType_t)call->type) || (unsigned)call->op > ncclMaxRedOp)
		return false;
	if (call->count > MOST_COUNT)
		return false;
	if (has_root && (call->root < 0 || call->root >= call->comm->nranks))
		return false;
	return call->op < ncclNumOps ||
	       (ferry_nccl_redop_find(call->comm, call->op, &redop) && redop.type == call->type);
}

/* Whether Ferry may carry a part of the call. All ranks get the same answer: it depends on what they all know. */
static bool is_eligible(const struct ferry_nccl_call *call)
{
	struct ferry_nccl_comm *comm = call->comm;
	if (!comm || atomic_load_explicit(&comm->state, memory_order_relaxed))
		return false;
	return ferry_nccl_comm_learn(comm) && !comm->copies && comm->nranks > 1 &&
	       ferry_nccl_config_is_plain(call->config) && is_sound(call);
}

static ncclResult_t make(struct ferry_nccl_call *call)
{
	call->comm = ferry_nccl_comm_take(call->handle);
	bool looked_at = is_eligible(call);
	ncclResult_t result = ncclSuccess;
	if (looked_at)
		atomic_fetch_add_explicit(&call->comm->calls, 1, memory_order_relaxed);
	if (looked_at && !ferry_nccl_group_is_open())
		result = ferry_nccl_launch(call, 1);
	else if (!looked_at || !ferry_nccl_group_keep(call))
		result = ferry_nccl_issue(call);
	ferry_nccl_comm_release(call->comm);
	return result;
}

#define MAKE(kind, ...)                                                                                                \
	make(&(struct ferry_nccl_call){                                                                                \
	        .collective = (kind), .count = count, .type = type, .handle = comm, .stream = stream, __VA_ARGS__})

ncclResult_t ferry_nccl_AllReduceConfig(const void *send, void *receive, size_t count, ncclDataType_t type,
                                        ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                                        const ncclCollConfig_t *config)
{
	return MAKE(FERRY_ALLREDUCE, .send = send, .receive = receive, .op = op, .config = config);
}

ncclResult_t ferry_nccl_AllReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                  ncclComm_t comm, cudaStream_t stream)
{
	return ferry_nccl_AllReduceConfig(send, receive, count, type, op, comm, stream, NULL);
}

ncclResult_t ferry_nccl_AllGatherConfig(const void *send, void *receive, size_t count, ncclDataType_t type,
                                        ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config)
{
	return MAKE(FERRY_ALLGATHER, .send = send, .receive = receive, .config = config);
}

ncclResult_t ferry_nccl_AllGather(const void *send, void *receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                                  cudaStream_t stream)
{
	return ferry_nccl_AllGatherConfig(send, receive, count, type, comm, stream, NULL);
}

ncclResult_t ferry_nccl_ReduceScatterConfig(const void *send, void *receive, size_t count, ncclDataType_t type,
                                            ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                                            const ncclCollConfig_t *config)
{
	return MAKE(FERRY_REDUCESCATTER, .send = send, .receive = receive, .op = op, .config = config);
}

ncclResult_t ferry_nccl_ReduceScatter(const void *send, void *receive, size_t count, ncclDataType_t type,
                                      ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
	return ferry_nccl_ReduceScatterConfig(send, receive, count, type, op, comm, stream, NULL);
}

ncclResult_t ferry_nccl_BroadcastConfig(const void *send, void *receive, size_t count, ncclDataType_t type, int root,
                                        ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config)
{
	return MAKE(FERRY_BROADCAST, .send = send, .receive = receive, .root = root, .config = config);
}

ncclResult_t ferry_nccl_Broadcast(const void *send, void *receive, size_t count, ncclDataType_t type, int root,
                                  ncclComm_t comm, cudaStream_t stream)
{
	return ferry_nccl_BroadcastConfig(send, receive, count, type, root, comm, stream, NULL);
}

ncclResult_t ferry_nccl_Bcast(void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                              cudaStream_t stream)
{
	return MAKE(FERRY_BROADCAST, .send = buffer, .receive = buffer, .root = root, .legacy = true);
}

ncclResult_t ferry_nccl_ReduceConfig(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                     int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config)
{
	return MAKE(FERRY_REDUCE_TO_ROOT, .send = send, .receive = receive, .op = op, .root = root, .config = config);
}

ncclResult_t ferry_nccl_Reduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               int root, ncclComm_t comm, cudaStream_t stream)
{
	return ferry_nccl_ReduceConfig(send, receive, count, type, op, root, comm, stream, NULL);
}

ncclResult_t ferry_nccl_AlltoAllConfig(const void *send, void *receive, size_t count, ncclDataType_t type,
                                       ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config)
{
	return MAKE(FERRY_ALLTOALL, .send = send, .receive = receive, .config = config);
}

ncclResult_t ferry_nccl_AlltoAll(const void *send, void *receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                                 cudaStream_t stream)
{
	return ferry_nccl_AlltoAllConfig(send, receive, count, type, comm, stream, NULL);
}

ncclResult_t ferry_nccl_GatherConfig(const void *send, void *receive, size_t count, ncclDataType_t type, int root,
                                     ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config)
{
	return MAKE(FERRY_GATHER, .send = send, .receive = receive, .root = root, .config = config);
}

ncclResult_t ferry_nccl_Gather(const void *send, void *receive, size_t count, ncclDataType_t type, int root,
                               ncclComm_t comm, cudaStream_t stream)
{
	return ferry_nccl_GatherConfig(send, receive, count, type, root, comm, stream, NULL);
}

ncclResult_t ferry_nccl_ScatterConfig(const void *send, void *receive, size_t count, ncclDataType_t type, int root,
                                      ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config)
{
	return MAKE(FERRY_SCATTER, .send = send, .receive = receive, .root = root, .config = config);
}

ncclResult_t ferry_nccl_Scatter(const void *send, void *receive, size_t count, ncclDataType_t type, int root,
                                ncclComm_t comm, cudaStream_t stream)
{
	return ferry_nccl_ScatterConfig(send, receive, count, type, root, comm, stream, NULL);
}

ncclResult_t ferry_nccl_Send(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                             cudaStream_t stream)
{
	return MAKE(FERRY_SENDRECV, .send = send, .sends = true, .root = peer);
}

ncclResult_t ferry_nccl_Recv(void *receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                             cudaStream_t stream)
{
	return MAKE(FERRY_SENDRECV, .receive = receive, .root = peer);
}
