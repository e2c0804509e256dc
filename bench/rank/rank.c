/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/rank/rank.h"

#include <stdio.h>

bool bench_rank_join(struct bench_rank *rank)
{
	ferryConfig_t measured = FERRY_CONFIG_INITIALIZER, control = FERRY_CONFIG_INITIALIZER;
	int domain;
	measured.device = rank->buffers.kind;
	control.device = "host";
	control.programs = ""; /* those of FERRY_PROGRAM_PATH are what is measured */
	if (ferryCommInitEnv(&rank->comm, &measured) || ferryCommInitEnv(&rank->control, &control)) {
		fprintf(stderr, "ferry-perf: %s\n", ferryGetLastError(NULL));
		return false;
	}
	ferryCommCount(rank->comm, &rank->nranks);
	ferryCommUserRank(rank->comm, &rank->rank);
	ferryCommDomain(rank->comm, &domain, &rank->ndomains);
	return true;
}

/*
 * Returns when all ranks are here, so that no rank exits before rank 0 has printed the reason: launchers end all ranks
 * when one fails.
 */
static void meet(const struct bench_rank *rank)
{
	int32_t here = 1; /* not the type of other meetings: ranks that still measure learn that this one does not */
	if (ferryAllReduce(&here, &here, 1, ferryInt32, ferrySum, rank->control, NULL) == ferrySuccess)
		ferryStreamSynchronize(NULL);
}

bool bench_rank_leave(struct bench_rank *rank)
{
	ferryResult_t (*end)(ferryComm_t) = rank->failed_alone ? ferryCommAbort : ferryCommDestroy;
	bool fine = true;
	if (rank->control && !rank->failed_alone)
		meet(rank);
	if (rank->control && end(rank->control))
		fine = false;
	return !(rank->comm && end(rank->comm)) && fine;
}

bool bench_rank_over(struct bench_rank *rank, double *values, size_t count, ferryRedOp_t op)
{
	ferryResult_t result = ferryAllReduce(values, values, count, ferryFloat64, op, rank->control, NULL);
	if (!result)
		result = ferryStreamSynchronize(NULL);
	if (result)
		fprintf(stderr, "ferry-perf: rank %d: meeting the other ranks: %s: %s\n", rank->rank,
		        ferryGetErrorString(result), ferryGetLastError(rank->control));
	return !result;
}
