/* SPDX-License-Identifier: Apache-2.0 */
/* The public collectives: each fills in a request; checking, grouping and launching are the same for all. */
#include "rank-lib/api/group.h"
#include "rank-lib/call/comm.h"

ferryResult_t ferryAllReduce(const void *sendbuff, void *recvbuff, size_t count, ferryDataType_t type, ferryRedOp_t op,
                             ferryComm_t comm, ferryStream_t stream)
{
	return ferry_group_call(&(struct ferry_request){FERRY_ALLREDUCE, sendbuff, recvbuff, count, type, op,
	                                                .comm = comm, .stream = stream});
}

ferryResult_t ferryAllGather(const void *sendbuff, void *recvbuff, size_t sendcount, ferryDataType_t type,
                             ferryComm_t comm, ferryStream_t stream)
{
	return ferry_group_call(&(struct ferry_request){FERRY_ALLGATHER, sendbuff, recvbuff, sendcount, type,
	                                                .comm = comm, .stream = stream});
}

ferryResult_t ferryReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount, ferryDataType_t type,
                                 ferryRedOp_t op, ferryComm_t comm, ferryStream_t stream)
{
	return ferry_group_call(&(struct ferry_request){FERRY_REDUCESCATTER, sendbuff, recvbuff, recvcount, type, op,
	                                                .comm = comm, .stream = stream});
}

ferryResult_t ferryBroadcast(const void *sendbuff, void *recvbuff, size_t count, ferryDataType_t type, int root,
                             ferryComm_t comm, ferryStream_t stream)
{
	return ferry_group_call(&(struct ferry_request){FERRY_BROADCAST, sendbuff, recvbuff, count, type, .root = root,
	                                                .comm = comm, .stream = stream});
}

ferryResult_t ferryReduce(const void *sendbuff, void *recvbuff, size_t count, ferryDataType_t type, ferryRedOp_t op,
                          int root, ferryComm_t comm, ferryStream_t stream)
{
	return ferry_group_call(&(struct ferry_request){FERRY_REDUCE_TO_ROOT, sendbuff, recvbuff, count, type, op, root,
	                                                .comm = comm, .stream = stream});
}

ferryResult_t ferryGather(const void *sendbuff, void *recvbuff, size_t count, ferryDataType_t type, int root,
                          ferryComm_t comm, ferryStream_t stream)
{
	return ferry_group_call(&(struct ferry_request){FERRY_GATHER, sendbuff, recvbuff, count, type, .root = root,
	                                                .comm = comm, .stream = stream});
}

ferryResult_t ferryScatter(const void *sendbuff, void *recvbuff, size_t count, ferryDataType_t type, int root,
                           ferryComm_t comm, ferryStream_t stream)
{
	return ferry_group_call(&(struct ferry_request){FERRY_SCATTER, sendbuff, recvbuff, count, type, .root = root,
	                                                .comm = comm, .stream = stream});
}

ferryResult_t ferryAllToAll(const void *sendbuff, void *recvbuff, size_t count, ferryDataType_t type, ferryComm_t comm,
                            ferryStream_t stream)
{
	return ferry_group_call(&(struct ferry_request){FERRY_ALLTOALL, sendbuff, recvbuff, count, type, .comm = comm,
	                                                .stream = stream});
}

ferryResult_t ferryAllToAllv(const void *sendbuff, const size_t *sendcounts, const size_t *sdispls, void *recvbuff,
                             const size_t *recvcounts, const size_t *rdispls, ferryDataType_t type, ferryComm_t comm,
                             ferryStream_t stream)
{
	return ferry_group_call(&(struct ferry_request){FERRY_ALLTOALLV, sendbuff, recvbuff, 0, type,
	                                                .sendcounts = sendcounts, .senddispls = sdispls,
	                                                .recvcounts = recvcounts, .recvdispls = rdispls, .comm = comm,
	                                                .stream = stream});
}

ferryResult_t ferrySend(const void *sendbuff, size_t count, ferryDataType_t type, int peer, ferryComm_t comm,
                        ferryStream_t stream)
{
	return ferry_group_call(&(struct ferry_request){FERRY_SENDRECV, sendbuff, NULL, count, type, .root = peer,
	                                                .comm = comm, .stream = stream, .direction = FERRY_DIR_D2H});
}

ferryResult_t ferryRecv(void *recvbuff, size_t count, ferryDataType_t type, int peer, ferryComm_t comm,
                        ferryStream_t stream)
{
	return ferry_group_call(&(struct ferry_request){FERRY_SENDRECV, NULL, recvbuff, count, type, .root = peer,
	                                                .comm = comm, .stream = stream, .direction = FERRY_DIR_H2D});
}

ferryResult_t ferryRunProgram(const char *program, const void *sendbuff, void *recvbuff, size_t count,
                              ferryDataType_t type, ferryRedOp_t op, ferryComm_t comm, ferryStream_t stream)
{
	const struct ferry_program *parsed;
	if (!program)
		return ferry_group_refuse(ferry_fail(ferryInvalidArgument, "ferryRunProgram: program is NULL"));
	ferryResult_t result = ferry_comm_hold(comm);
	if (result)
		return ferry_group_refuse(result);
	if (!(result = ferry_comm_enter(comm))) {
		result = ferry_user_programs_find(&comm->programs, &comm->topology, program, &parsed);
		ferry_comm_exit(comm);
	}
	result = result ? ferry_group_refuse(result)
	                : ferry_group_call(&(struct ferry_request){parsed->collective, sendbuff, recvbuff, count, type,
	                                                           op, .root = (int)parsed->root, .program = program,
	                                                           .comm = comm, .stream = stream});
	ferry_comm_release(comm);
	return result;
}
