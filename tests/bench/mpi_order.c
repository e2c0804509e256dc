/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded into ferry-perf --vs mpi: how many calls of MPI follow one another with none of Ferry's between them. Each
 * rank writes them into a file $MPI_ORDER.RANK, a line each time that a call of Ferry's comes after some of MPI's.
 */
#include "rank-lib/include/ferry.h"

#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static unsigned in_a_row;

int MPI_Allreduce(const void *send, void *receive, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
	int (*real)(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm);
	*(void **)&real = dlsym(RTLD_DEFAULT, "PMPI_Allreduce");
	in_a_row++;
	return real(send, receive, count, type, op, comm);
}

FERRY_API ferryResult_t ferryAllReduce(const void *send, void *receive, size_t count, ferryDataType_t type,
                                       ferryRedOp_t op, ferryComm_t comm, ferryStream_t stream)
{
	static FILE *file;
	const char *rank = getenv("PMI_RANK") ? getenv("PMI_RANK") : getenv("OMPI_COMM_WORLD_RANK");
	char name[4096];
	ferryResult_t (*real)(const void *, void *, size_t, ferryDataType_t, ferryRedOp_t, ferryComm_t, ferryStream_t);
	*(void **)&real = dlsym(RTLD_NEXT, "ferryAllReduce");
	if (!file) {
		snprintf(name, sizeof name, "%s.%s", getenv("MPI_ORDER"), rank);
		file = fopen(name, "we");
	}
	if (in_a_row && file)
		fprintf(file, "%u\n", in_a_row);
	in_a_row = 0;
	return real(send, receive, count, type, op, comm, stream);
}
