/* SPDX-License-Identifier: Apache-2.0 */
/* The MPI peer, a module of its own: ferry-perf opens it for --vs mpi, and runs without any MPI otherwise. */
#include "bench/perf.h"

#include <limits.h>
#include <mpi.h>

extern const struct perf_peer ferry_perf_peer;

static MPI_Datatype type_of(ferryDataType_t type)
{
	switch (type) {
	case ferryInt8:
		return MPI_INT8_T;
	case ferryUint8:
		return MPI_UINT8_T;
	case ferryInt32:
		return MPI_INT32_T;
	case ferryUint32:
		return MPI_UINT32_T;
	case ferryInt64:
		return MPI_INT64_T;
	case ferryUint64:
		return MPI_UINT64_T;
	case ferryFloat32:
		return MPI_FLOAT;
	case ferryFloat64:
		return MPI_DOUBLE;
	default:
		return MPI_DATATYPE_NULL;
	}
}

static MPI_Op op_of(ferryRedOp_t op)
{
	return op == ferrySum    ? MPI_SUM
	       : op == ferryProd ? MPI_PROD
	       : op == ferryMax  ? MPI_MAX
	       : op == ferryMin  ? MPI_MIN
	                         : MPI_OP_NULL;
}

static const char *open_mpi(int *rank, int *nranks)
{
	if (MPI_Init(NULL, NULL))
		return "MPI_Init failed";
	MPI_Comm_rank(MPI_COMM_WORLD, rank);
	MPI_Comm_size(MPI_COMM_WORLD, nranks);
	return NULL;
}

static const char *supports(const struct perf_call *call)
{
	static char text[96];
	bool type = type_of(call->type) != MPI_DATATYPE_NULL, op = op_of(call->op) != MPI_OP_NULL;
	if (!ferry_collective_reduces(call->collective) || (type && op))
		return NULL;
	if (type)
		snprintf(text, sizeof text, "-o %s: MPI reduces by sum prod min max", ferry_redop_name(call->op));
	else
		snprintf(text, sizeof text, "-d %s: MPI reduces i8 u8 i32 u32 i64 u64 f32 f64", ferry_type_name(call->type));
	return text;
}

static int as_int(size_t count)
{
	return count > INT_MAX ? INT_MAX : (int)count;
}

static void run_variable(const struct perf_call *call, MPI_Datatype type, int scale)
{
	int counts[4][FERRY_MAX_RANKS];
	const size_t *from[4] = {call->sendcounts, call->senddispls, call->recvcounts, call->recvdispls};
	for (int which = 0; which < 4; which++)
		for (int peer = 0; peer < call->nranks; peer++)
			counts[which][peer] = as_int(from[which][peer] * (size_t)scale);
	MPI_Alltoallv(call->send, counts[0], counts[1], type, call->receive, counts[2], counts[3], type, MPI_COMM_WORLD);
}

static void run(const struct perf_call *call)
{
	MPI_Datatype type = type_of(call->type);
	int scale = 1, root = call->root, rank = call->rank, n = call->nranks;
	bool in_place = call->send == call->receive;
	if (type == MPI_DATATYPE_NULL) { /* moved, not reduced: as bytes */
		type = MPI_BYTE;
		scale = (int)ferry_type_size(call->type);
	}
	int count = as_int(call->count * (size_t)scale);
	char *receive = call->receive;
	const char *send = call->send;
	size_t block = call->count * ferry_type_size(call->type) * (size_t)rank;
	MPI_Comm world = MPI_COMM_WORLD;
	switch (call->collective) {
	case FERRY_ALLREDUCE:
		MPI_Allreduce(in_place ? MPI_IN_PLACE : send, receive, count, type, op_of(call->op), world);
		break;
	case FERRY_ALLGATHER:
		MPI_Allgather(send == receive + block ? MPI_IN_PLACE : send, count, type, receive, count, type, world);
		break;
	case FERRY_REDUCESCATTER:
		if (receive == send + block && n > 1) /* MPI's in-place form puts the result at the start; the same work */
			MPI_Reduce_scatter_block(MPI_IN_PLACE, (char *)send, count, type, op_of(call->op), world);
		else
			MPI_Reduce_scatter_block(send, receive, count, type, op_of(call->op), world);
		break;
	case FERRY_BROADCAST:
		MPI_Bcast(rank == root ? (char *)send : receive, count, type, root, world);
		break;
	case FERRY_REDUCE_TO_ROOT:
		MPI_Reduce(in_place && rank == root ? MPI_IN_PLACE : send, receive, count, type, op_of(call->op), root,
		           world);
		break;
	case FERRY_GATHER:
		MPI_Gather(rank == root && send == receive + block ? MPI_IN_PLACE : send, count, type, receive, count, type,
		           root, world);
		break;
	case FERRY_SCATTER:
		MPI_Scatter(send, count, type, rank == root && receive == send + block ? MPI_IN_PLACE : receive, count, type,
		            root, world);
		break;
	case FERRY_ALLTOALL:
		MPI_Alltoall(in_place ? MPI_IN_PLACE : send, count, type, receive, count, type, world);
		break;
	case FERRY_ALLTOALLV:
		run_variable(call, type, scale);
		break;
	default:
		MPI_Sendrecv(send, count, type, (rank + 1) % n, 0, receive, count, type, (rank + n - 1) % n, 0, world,
		             MPI_STATUS_IGNORE);
	}
}

static void close_mpi(void)
{
	MPI_Finalize();
}

__attribute__((visibility("default"))) const struct perf_peer ferry_perf_peer = {"mpi", open_mpi, supports, run, close_mpi};
