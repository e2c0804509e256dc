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

/* A collective of NCCL's, with a configuration and without it. own: what it has besides. */
#define COLLECTIVE(kind, name, own_parameters, own_arguments, own_fields)                                              \
	ncclResult_t ferry_nccl_##name##Config(const void *send, void *receive, size_t count, ncclDataType_t type,     \
	                                       LIST own_parameters ncclComm_t comm, cudaStream_t stream,               \
	                                       const ncclCollConfig_t *config)                                         \
	{                                                                                                              \
		return MAKE(kind, .send = send, .receive = receive, .config = config, LIST own_fields);                \
	}                                                                                                              \
	ncclResult_t ferry_nccl_##name(const void *send, void *receive, size_t count, ncclDataType_t type,             \
	                               LIST own_parameters ncclComm_t comm, cudaStream_t stream)                       \
	{                                                                                                              \
		return ferry_nccl_##name##Config(send, receive, count, type, LIST own_arguments comm, stream, NULL);   \
	}
#define LIST(...) __VA_ARGS__

COLLECTIVE(FERRY_ALLREDUCE, AllReduce, (ncclRedOp_t op, ), (op, ), (.op = op))
COLLECTIVE(FERRY_ALLGATHER, AllGather, (), (), ())
COLLECTIVE(FERRY_REDUCESCATTER, ReduceScatter, (ncclRedOp_t op, ), (op, ), (.op = op))
COLLECTIVE(FERRY_BROADCAST, Broadcast, (int root, ), (root, ), (.root = root))
COLLECTIVE(FERRY_REDUCE_TO_ROOT, Reduce, (ncclRedOp_t op, int root, ), (op, root, ), (.op = op, .root = root))
COLLECTIVE(FERRY_ALLTOALL, AlltoAll, (), (), ())
COLLECTIVE(FERRY_GATHER, Gather, (int root, ), (root, ), (.root = root))
COLLECTIVE(FERRY_SCATTER, Scatter, (int root, ), (root, ), (.root = root))

ncclResult_t ferry_nccl_Bcast(void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                              cudaStream_t stream)
{
	return MAKE(FERRY_BROADCAST, .send = buffer, .receive = buffer, .root = root, .legacy = true);
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
