/* SPDX-License-Identifier: Apache-2.0 */
/** One call of NCCL's that Ferry may divide among fabrics: what the program asked for. Of the thread that makes it. */
#ifndef FERRY_ORCHESTRATOR_CALL_H
#define FERRY_ORCHESTRATOR_CALL_H

#include "ipc/collective.h"
#include "orchestrator/communicators.h"
#include "orchestrator/nccl_types.h"
#include "rank-lib/call/request.h"

struct ferry_nccl_call {
	enum ferry_collective collective; /* FERRY_SENDRECV: one end of a message */
	bool sends;                       /* of a message: the end that sends */
	bool legacy;                      /* ncclBcast, which has one buffer */
	const void *send;                 /* NULL in the end that receives */
	void *receive;                    /* NULL in the end that sends */
	size_t count;                     /* elements, as the collective counts them */
	size_t stride;                    /* of NCCL's rest of a call: elements from block to block; 0: `count` */
	ncclDataType_t type;
	ncclRedOp_t op; /* ncclSum where nothing is reduced */
	int root;       /* or the peer of a message */
	ncclComm_t handle;
	cudaStream_t stream;
	const ncclCollConfig_t *config; /* of the nccl...Config functions; NULL: none */
	unsigned candidate;             /* what NCCL's tuner says of it (nccl_tuner.h), sealed like its shares */
	struct ferry_nccl_comm *comm;   /* held while the call is under way; NULL: not known */
};

/** The bytes that a collective moves at most on any rank, or a message: the same on all its ranks. */
static inline uint64_t ferry_nccl_call_bytes(const struct ferry_nccl_call *call)
{
	uint64_t block = (uint64_t)call->count * ferry_type_size((ferryDataType_t)call->type);
	return ferry_collective_has_blocks(call->collective) ? block * (uint64_t)call->comm->nranks : block;
}

/** The operation; ferryNumOps: one that the program has made (redops.h). */
static inline ferryRedOp_t ferry_nccl_call_redop(const struct ferry_nccl_call *call)
{
	return call->op < ncclNumOps ? (ferryRedOp_t)call->op : ferryNumOps;
}

/** The whole call, as a request to a communicator of Ferry's. */
static inline struct ferry_request ferry_nccl_call_request(const struct ferry_nccl_call *call, ferryComm_t comm)
{
	return (struct ferry_request){.collective = call->collective,
	                              .send = call->send,
	                              .receive = call->receive,
	                              .count = call->count,
	                              .type = (ferryDataType_t)call->type,
	                              .op = ferry_nccl_call_redop(call),
	                              .root = call->root,
	                              .direction = call->sends ? FERRY_DIR_D2H : FERRY_DIR_H2D,
	                              .comm = comm,
	                              .stream = (ferryStream_t)call->stream};
}

#endif
