/* SPDX-License-Identifier: Apache-2.0 */
/* The MPI peer, a module of its own: ferry-perf opens it for --vs mpi, and runs without any MPI otherwise. */
#include "bench/peers/peer.h"

#include <limits.h>
#include <mpi.h>
#include <stdio.h>

extern const struct mpi_peer ferry_mpi_peer;

/* MPI's type, or 0, which is none of its values. */
static MPI_Datatype type_of(ferryDataType_t type)
{
	const MPI_Datatype types[ferryNumTypes] = {
	        [ferryInt8] = MPI_INT8_T,     [ferryUint8] = MPI_UINT8_T, [ferryInt32] = MPI_INT32_T,
	        [ferryUint32] = MPI_UINT32_T, [ferryInt64] = MPI_INT64_T, [ferryUint64] = MPI_UINT64_T,
	        [ferryFloat32] = MPI_FLOAT,   [ferryFloat64] = MPI_DOUBLE};
	return types[type];
}

static MPI_Op op_of(ferryRedOp_t op)
{
	const MPI_Op ops[ferryNumOps] = {
		[ferrySum] = MPI_SUM, [ferryProd] = MPI_PROD, [ferryMax] = MPI_MAX, [ferryMin] = MPI_MIN};
	return op < ferryNumOps ? ops[op] : 0;
}

static const char *open_mpi(int *rank, int *nranks)
{
	if (MPI_Init(NULL, NULL))
		return "MPI_Init failed";
	MPI_Comm_rank(MPI_COMM_WORLD, rank);
	MPI_Comm_size(MPI_COMM_WORLD, nranks);
	return NULL;
}

static const char *supports(const struct ferry_trial *trial)
{
	static char text[96];
	bool type = type_of(trial->type), op = op_of(trial->op);
	if (!ferry_collective_reduces(trial->collective) || (type && op))
		return NULL;
	if (type)
		snprintf(text, sizeof text, "-o %s: MPI reduces by sum prod min max", ferry_redop_name(trial->op));
	else
		snprintf(text, sizeof text, "-d %s: MPI reduces i8 u8 i32 u32 i64 u64 f32 f64",
		         ferry_type_name(trial->type));
	return text;
}

static int as_int(size_t count)
{
	return count > INT_MAX ? INT_MAX : (int)count;
}

static void run_variable(const struct ferry_trial_call *call, MPI_Datatype type, int scale)
{
	int counts[4][FERRY_MAX_RANKS];
	const size_t *from[4] = {call->counts.sendcounts, call->counts.senddispls, call->counts.recvcounts,
	                         call->counts.recvdispls};
	for (int which = 0; which < 4; which++)
		for (int peer = 0; peer < call->trial.nranks; peer++)
			counts[which][peer] = as_int(from[which][peer] * (size_t)scale);
	MPI_Alltoallv(call->send, counts[0], counts[1], type, call->receive, counts[2], counts[3], type,
	              MPI_COMM_WORLD);
}

static void run(const struct ferry_trial_call *call)
{
	const struct ferry_trial *trial = &call->trial;
	MPI_Datatype type = type_of(trial->type);
	MPI_Op op = op_of(trial->op);
	int scale = 1, root = trial->root, rank = call->rank, n = trial->nranks;
	bool in_place = call->send == call->receive;
	if (!type) { /* moved, not reduced: as bytes */
		type = MPI_BYTE;
		scale = (int)ferry_type_size(trial->type);
	}
	int count = as_int(trial->count * (size_t)scale);
	char *receive = call->receive, *send = call->send;
	size_t block = trial->count * ferry_type_size(trial->type) * (size_t)rank;
	MPI_Comm world = MPI_COMM_WORLD;
	switch (trial->collective) {
	case FERRY_ALLREDUCE:
		MPI_Allreduce(in_place ? MPI_IN_PLACE : send, receive, count, type, op, world);
		break;
	case FERRY_ALLGATHER:
		MPI_Allgather(send == receive + block ? MPI_IN_PLACE : send, count, type, receive, count, type, world);
		break;
	case FERRY_REDUCESCATTER: /* MPI's in-place form puts the result at the start; the same work */
		in_place = receive == send + block && n > 1;
		MPI_Reduce_scatter_block(in_place ? MPI_IN_PLACE : send, in_place ? send : receive, count, type, op,
		                         world);
		break;
	case FERRY_BROADCAST:
		MPI_Bcast(rank == root ? send : receive, count, type, root, world);
		break;
	case FERRY_REDUCE_TO_ROOT:
		MPI_Reduce(in_place && rank == root ? MPI_IN_PLACE : send, receive, count, type, op, root, world);
		break;
	case FERRY_GATHER:
		MPI_Gather(rank == root && send == receive + block ? MPI_IN_PLACE : send, count, type, receive, count,
		           type, root, world);
		break;
	case FERRY_SCATTER:
		MPI_Scatter(send, count, type, rank == root && receive == send + block ? MPI_IN_PLACE : receive, count,
		            type, root, world);
		break;
	case FERRY_ALLTOALL:
		MPI_Alltoall(in_place ? MPI_IN_PLACE : send, count, type, receive, count, type, world);
		break;
	case FERRY_ALLTOALLV:
		run_variable(call, type, scale);
		break;
	case FERRY_SENDRECV:
		MPI_Sendrecv(send, count, type, (rank + 1) % n, 0, receive, count, type, (rank + n - 1) % n, 0, world,
		             MPI_STATUS_IGNORE);
		break;
	}
}

static void close_mpi(void)
{
	MPI_Finalize();
}

__attribute__((visibility("default"))) const struct mpi_peer ferry_mpi_peer = {open_mpi, supports, run, close_mpi};
