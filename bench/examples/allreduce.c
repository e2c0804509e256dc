/* SPDX-License-Identifier: Apache-2.0 */
/* Counts the ranks: ferryrun -n 4 -- ./allreduce */
#include <ferry.h>
#include <stdio.h>

int main(void)
{
	ferryConfig_t config = FERRY_CONFIG_INITIALIZER;
	ferryComm_t comm;
	float value = 1;
	config.device = "host"; /* the buffer is no GPU's memory */
	if (ferryCommInitEnv(&comm, &config) || ferryAllReduce(&value, &value, 1, ferryFloat, ferrySum, comm, NULL) ||
	    ferryStreamSynchronize(NULL))
		return fprintf(stderr, "%s\n", ferryGetLastError(NULL)), 1;
	printf("we are %g\n", (double)value);
	return ferryCommDestroy(comm) != ferrySuccess;
}
