/* SPDX-License-Identifier: Apache-2.0 */
/* Every rank contributes its number plus one; all get the sum. ferryrun -n 4 -- ./allreduce */
#include <ferry.h>
#include <stdio.h>

int main(void)
{
	ferryComm_t comm;
	int rank;
	if (ferryCommInitEnv(&comm, NULL) || ferryCommUserRank(comm, &rank))
		return fprintf(stderr, "%s\n", ferryGetLastError(NULL)), 1;
	float value = (float)rank + 1;
	if (ferryAllReduce(&value, &value, 1, ferryFloat, ferrySum, comm, NULL) || ferryStreamSynchronize(NULL))
		return fprintf(stderr, "%s\n", ferryGetLastError(comm)), 1;
	printf("rank %d: the sum is %g\n", rank, (double)value);
	return ferryCommDestroy(comm) != ferrySuccess;
}
