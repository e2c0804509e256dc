/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a communicator: finalize, destroy, abort. */
#include "rank-lib/comm.h"

#include <stdio.h>

static void wait_for_calls(struct ferryComm *comm)
{
	if (ferry_comm_is_mapped(comm))
		ferry_submissions_wait(&comm->mapped.submissions, &comm->rank);
	else
		ferry_direct_wait(&comm->direct);
}

static void end(struct ferryComm *comm, bool abort)
{
	wait_for_calls(comm);
	ferry_comm_leave(comm, abort);
	comm->magic = 0; /* later calls on the handle are refused as long as its memory lives */
	ferry_holders_drop(&comm->holders);
}

ferryResult_t ferryCommFinalize(ferryComm_t comm)
{
	ferryResult_t result = ferry_comm_check(comm);
	if (result)
		return result;
	pthread_mutex_lock(&comm->lock);
	comm->finalized = true;
	pthread_mutex_unlock(&comm->lock);
	wait_for_calls(comm);
	if (ferry_rank_failed(&comm->rank))
		return ferry_fail(comm->rank.error, "%s", comm->rank.error_message);
	return ferrySuccess;
}

ferryResult_t ferryCommDestroy(ferryComm_t comm)
{
	ferryResult_t result = ferryCommFinalize(comm);
	if (ferry_comm_check(comm))
		return result;
	end(comm, result != ferrySuccess);
	return result;
}

ferryResult_t ferryCommAbort(ferryComm_t comm)
{
	char text[64];
	ferryResult_t result = ferry_comm_check(comm);
	if (result)
		return result;
	snprintf(text, sizeof text, "rank %d aborted the communicator", comm->rank.self);
	if (!ferry_rank_failed(&comm->rank))
		ferry_rank_fail(&comm->rank, ferryRemoteError, text);
	end(comm, true);
	return ferrySuccess;
}
