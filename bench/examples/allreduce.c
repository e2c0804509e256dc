/* SPDX-License-Identifier: Apache-2.0 */
/* Counts the ranks: ferryrun -n 4 -- ./allreduce */
#include <ferry.h>
#include <stdio.h>

int main(void)
{
	ferryComm_t comm;
	float value = 1;
	if (ferryCommInitEnv(&comm, NULL) || ferryAllReduce(&value, &value, 1, ferryFloat, ferrySum, comm, NULL) ||
	    ferryStreamSynchronize(NULL))
		return fprintf(stderr, "%s\n", ferryGetLastError(NULL)), 1;
	printf("we are %g\n", (double)value);
	return ferryCommDestroy(comm) != ferrySuccess;
}
