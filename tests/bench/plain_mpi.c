/* SPDX-License-Identifier: Apache-2.0 */
/* What an MPI_Allreduce of so many bytes takes in a plain program, in microseconds: ferry-perf --vs mpi must say so. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
	int bytes = argc > 1 ? atoi(argv[1]) : 1024, rank, calls = 1 + 40000000 / (bytes + 20000);
	float *from = malloc((size_t)bytes), *to = malloc((size_t)bytes);
	double before = 0;
	memset(from, 1, (size_t)bytes); /* pages of its own, as a program has that has computed something */
	memset(to, 1, (size_t)bytes);
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	for (int i = -calls; i < calls; i++) {
		before = i ? before : MPI_Wtime();
		MPI_Allreduce(from, to, bytes / (int)sizeof *from, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
	}
	if (!rank)
		printf("%.2f\n", (MPI_Wtime() - before) / calls * 1e6);
	return MPI_Finalize();
}
