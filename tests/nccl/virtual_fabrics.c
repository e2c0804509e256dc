/* SPDX-License-Identifier: Apache-2.0 */
/* The fabrics that carry the parts of calls in virtual time: Ferry's communicator, and NCCL. */
#include "tests/nccl/virtual_parts.h"

#include "orchestrator/real.h"
#include "rank-lib/api/group.h"

#define LAUNCH_US 5.0 /* of a thread, for NCCL's part of a call, */
#define SUBMIT_US 8.0 /* and for Ferry's */

/* ---- Ferry's communicator ---- */

ferryResult_t ferryGroupStart(void)
{
	virtual_all.current->open = true;
	return ferrySuccess;
}

ferryResult_t ferry_launch_check(const struct ferry_request *request)
{
	(void)request;
	return ferrySuccess;
}

ferryResult_t ferry_group_call(const struct ferry_request *request)
{
	struct virtual_rank *rank = virtual_all.current;
	struct virtual_work *work = virtual_work_of(rank);
	uint64_t plan = virtual_plan_of(request->collective, request->count, request->left_out.count);
	double late = virtual_has_plan(rank, plan) ? 0 : virtual_all.machine->plan_us;
	late += (virtual_has_mapped(rank, request->send) ? 0 : virtual_all.machine->export_us) +
	        (virtual_has_mapped(rank, request->receive) ? 0 : virtual_all.machine->export_us);
	virtual_all.late_plans += late > 0;
	rank->now_us += SUBMIT_US + late;
	virtual_add_plan(rank, plan);
	virtual_map_buffer(rank, request->send);
	virtual_map_buffer(rank, request->receive);
	work->sides[virtual_index_of(rank)].ferry_us = rank->now_us;
	rank->issued = rank->dragged = true;
	double blocks = ferry_collective_has_blocks(request->collective) ? VIRTUAL_RANKS : 1;
	work->ferry_bytes = (double)(request->count - request->left_out.count) * blocks *
	                    (double)ferry_type_size(request->type);
	return ferrySuccess;
}

ferryResult_t ferry_group_end_open(struct ferry_open_group *open)
{
	(void)open;
	return ferrySuccess;
}

ferryResult_t ferry_group_finish(struct ferry_open_group *open)
{
	(void)open;
	virtual_all.current->open = false;
	return ferrySuccess;
}

/* ---- NCCL ---- */

static ncclResult_t enqueue(enum ferry_collective collective, size_t count, ncclDataType_t type)
{
	struct virtual_rank *rank = virtual_all.current;
	struct virtual_work *work = virtual_work_of(rank);
	double blocks = collective == FERRY_ALLGATHER || collective == FERRY_REDUCESCATTER ? VIRTUAL_RANKS : 1;
	rank->issued = true;
	work->sides[virtual_index_of(rank)].nccl_us = rank->now_us;
	work->nccl_bytes = (double)count * blocks * (double)ferry_type_size((ferryDataType_t)type);
	rank->now_us += LAUNCH_US;
	return ncclSuccess;
}

static ncclResult_t all_reduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream)
{
	(void)send, (void)receive, (void)op, (void)comm, (void)stream;
	return enqueue(FERRY_ALLREDUCE, count, type);
}

static ncclResult_t reduce_scatter(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                   ncclComm_t comm, cudaStream_t stream)
{
	(void)send, (void)receive, (void)op, (void)comm, (void)stream;
	return enqueue(FERRY_REDUCESCATTER, count, type);
}

static ncclResult_t all_gather(const void *send, void *receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                               cudaStream_t stream)
{
	(void)send, (void)receive, (void)comm, (void)stream;
	return enqueue(FERRY_ALLGATHER, count, type);
}

static ncclResult_t broadcast(const void *send, void *receive, size_t count, ncclDataType_t type, int root,
                              ncclComm_t comm, cudaStream_t stream)
{
	(void)send, (void)receive, (void)root, (void)comm, (void)stream;
	return enqueue(FERRY_BROADCAST, count, type);
}

static const struct ferry_nccl functions = {.functions = {.AllReduce = all_reduce,
                                                          .ReduceScatter = reduce_scatter,
                                                          .AllGather = all_gather,
                                                          .Broadcast = broadcast}};
_Atomic(const struct ferry_nccl *) ferry_nccl_found = &functions;
_Thread_local unsigned ferry_nccl_inside;

struct ferry_shadow_comm *ferry_nccl_comm_shadow_comm(struct ferry_nccl_comm *comm)
{
	return virtual_all.current->alone ? NULL : atomic_load(&comm->shadow_comm);
}
