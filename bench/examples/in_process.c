/* SPDX-License-Identifier: Apache-2.0 */
/* Two ranks in one process: ./in_process */
#include <ferry.h>
#include <stdio.h>
#include <stdlib.h>

int main(void)
{
	ferryComm_t comm[2];
	float data[2][3] = {{1, 2, 3}, {10, 20, 30}};
	setenv("FERRY_DEVICE", "host", 1); /* the buffers are no GPU's memory */
	if (ferryCommInitAll(comm, 2, NULL))
		return fprintf(stderr, "%s\n", ferryGetLastError(NULL)), 1;
	for (int rank = 0; rank < 2; rank++)
		if (ferryAllReduce(data[rank], data[rank], 3, ferryFloat, ferrySum, comm[rank], NULL))
			return fprintf(stderr, "%s\n", ferryGetLastError(comm[rank])), 1;
	if (ferryStreamSynchronize(NULL))
		return fprintf(stderr, "%s\n", ferryGetLastError(NULL)), 1;
	for (int rank = 0; rank < 2; rank++)
		printf("rank %d: %g %g %g\n", rank, (double)data[rank][0], (double)data[rank][1],
		       (double)data[rank][2]);
	return ferryCommDestroy(comm[0]) != ferrySuccess || ferryCommDestroy(comm[1]) != ferrySuccess;
}
