/* SPDX-License-Identifier: Apache-2.0 */
/* The double's collectives, messages and reductions: names for fake_group_op. */
#include "tests/fake_nccl/comm.h"
#include "tests/fake_nccl/fake_nccl.h"
#include "tests/fake_nccl/note.h"

#include <stdatomic.h>
#include <string.h>

extern ncclResult_t ncclBcast(void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                              cudaStream_t stream);

static _Atomic int calls_itself;

__attribute__((visibility("default"))) void fake_nccl_call_itself(int on)
{
	atomic_store(&calls_itself, on);
}

/* One that is gone, or was never filled, has not NCCL's magic. */
static bool is_config(const ncclCollConfig_t *config)
{
	return !config || config->magic == 0xcafebeef;
}

#define MAKE(kind, ...)                                                                                                \
	fake_group_op(&(struct fake_op){                                                                               \
	        .collective = (kind), .count = count, .type = type, .comm = comm, .stream = stream, __VA_ARGS__})

/* Every collective of NCCL's has a twin with a configuration. */
#define TWINS(name, parameters, ...)                                                                                   \
	ncclResult_t fake_nccl_act_##name(__VA_ARGS__, ncclComm_t comm, cudaStream_t stream)                           \
	{                                                                                                              \
		return MAKE parameters;                                                                                \
	}                                                                                                              \
	ncclResult_t fake_nccl_act_##name##Config(__VA_ARGS__, ncclComm_t comm, cudaStream_t stream,                   \
	                                          const ncclCollConfig_t *config)                                      \
	{                                                                                                              \
		return is_config(config) ? MAKE parameters : ncclInvalidArgument;                                      \
	}

TWINS(AllGather, (FERRY_ALLGATHER, .send = send, .receive = receive), const void *send, void *receive, size_t count,
      ncclDataType_t type)
TWINS(ReduceScatter, (FERRY_REDUCESCATTER, .send = send, .receive = receive, .op = op), const void *send, void *receive,
      size_t count, ncclDataType_t type, ncclRedOp_t op)
TWINS(Broadcast, (FERRY_BROADCAST, .send = send, .receive = receive, .root = root), const void *send, void *receive,
      size_t count, ncclDataType_t type, int root)
TWINS(Reduce, (FERRY_REDUCE_TO_ROOT, .send = send, .receive = receive, .op = op, .root = root), const void *send,
      void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op, int root)
TWINS(AlltoAll, (FERRY_ALLTOALL, .send = send, .receive = receive), const void *send, void *receive, size_t count,
      ncclDataType_t type)
TWINS(Gather, (FERRY_GATHER, .send = send, .receive = receive, .root = root), const void *send, void *receive,
      size_t count, ncclDataType_t type, int root)
TWINS(Scatter, (FERRY_SCATTER, .send = send, .receive = receive, .root = root), const void *send, void *receive,
      size_t count, ncclDataType_t type, int root)

ncclResult_t fake_nccl_act_AllReduceConfig(const void *send, void *receive, size_t count, ncclDataType_t type,
                                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                                           const ncclCollConfig_t *config)
{
	return is_config(config) ? MAKE(FERRY_ALLREDUCE, .send = send, .receive = receive, .op = op)
	                         : ncclInvalidArgument;
}

ncclResult_t fake_nccl_act_AllReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                     ncclComm_t comm, cudaStream_t stream)
{
	if (atomic_load(&calls_itself)) {
		ncclResult_t result = ncclBcast(receive, 0, type, 0, comm, stream);
		if (result)
			return result;
	}
	return MAKE(FERRY_ALLREDUCE, .send = send, .receive = receive, .op = op);
}

ncclResult_t fake_nccl_act_Bcast(void *buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                                 cudaStream_t stream)
{
	return MAKE(FERRY_BROADCAST, .send = buffer, .receive = buffer, .root = root);
}

ncclResult_t fake_nccl_act_Send(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                                cudaStream_t stream)
{
	return MAKE(FERRY_SENDRECV, .send = send, .sends = true, .root = peer);
}

ncclResult_t fake_nccl_act_Recv(void *receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                                cudaStream_t stream)
{
	return MAKE(FERRY_SENDRECV, .receive = receive, .root = peer);
}

ncclResult_t fake_nccl_act_RedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type,
                                                ncclScalarResidence_t residence, ncclComm_t comm)
{
	int i = 0;
	while (i < COMM_REDOPS && comm->redops[i].made)
		i++;
	if (i == COMM_REDOPS || !ferry_type_size((ferryDataType_t)type))
		return ncclInvalidUsage;
	comm->redops[i] = (struct fake_redop){.made = true, .type = type, .residence = residence, .scalar = scalar};
	if (residence == ncclScalarHostImmediate)
		memcpy(&comm->redops[i].bits, scalar, ferry_type_size((ferryDataType_t)type));
	*op = (ncclRedOp_t)(ncclNumOps + i);
	return ncclSuccess;
}

ncclResult_t fake_nccl_act_RedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
	if (op < ncclNumOps || op - ncclNumOps >= COMM_REDOPS || !comm->redops[op - ncclNumOps].made)
		return ncclInvalidArgument;
	comm->redops[op - ncclNumOps].made = false;
	return ncclSuccess;
}
