/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a communicator: finalize, destroy, abort. */
#include "rank-lib/call/comm.h"

#include <stdio.h>

static void wait_for_calls(struct ferryComm *comm)
{
	ferry_mailboxes_wait(&comm->mailboxes);
	if (ferry_comm_is_mapped(comm)) {
		ferry_submissions_wait(&comm->mapped.submissions, &comm->rank);
		return;
	}
	pthread_mutex_lock(&comm->lock);
	ferry_short_calls_settle(&comm->shorts);
	pthread_mutex_unlock(&comm->lock);
	ferry_direct_wait(&comm->direct);
	pthread_mutex_lock(&comm->lock);
	ferry_short_calls_hear(&comm->shorts);
	pthread_mutex_unlock(&comm->lock);
}

/*
 * Closes the communicator, so that no thread enters any more, and returns when no thread is inside: threads inside hold
 * the lock, and check for the failure while they wait. Returns false if another thread ends it.
 */
static bool close_to_all(struct ferryComm *comm)
{
	pthread_mutex_lock(&comm->lock);
	bool first = !comm->closed;
	comm->closed = true;
	pthread_mutex_unlock(&comm->lock);
	return first;
}

/* Called by a holder of the communicator. Threads that wait for its lock are holders, too; the last one frees it. */
static void end(struct ferryComm *comm)
{
	if (!close_to_all(comm))
		return;
	wait_for_calls(comm);
	ferry_comm_leave(comm, ferry_rank_failed(&comm->rank));
	/* later calls on the handle are refused as long as its memory lives */
	atomic_store_explicit(&comm->magic, 0, memory_order_relaxed);
	ferry_holders_drop(&comm->holders);
}

static ferryResult_t finalize(struct ferryComm *comm)
{
	pthread_mutex_lock(&comm->lock);
	atomic_store_explicit(&comm->finalized, true, memory_order_relaxed);
	pthread_mutex_unlock(&comm->lock);
	wait_for_calls(comm);
	if (ferry_rank_failed(&comm->rank))
		return ferry_fail(comm->rank.error, "%s", comm->rank.error_message);
	return ferrySuccess;
}

ferryResult_t ferryCommFinalize(ferryComm_t comm)
{
	ferryResult_t result = ferry_comm_hold(comm);
	if (result)
		return result;
	result = finalize(comm);
	ferry_comm_release(comm);
	return result;
}

ferryResult_t ferryCommDestroy(ferryComm_t comm)
{
	ferryResult_t result = ferry_comm_hold(comm);
	if (result)
		return result;
	result = finalize(comm);
	end(comm);
	ferry_comm_release(comm);
	return result;
}

/* Fails the rank first: threads that are inside, or wait for calls, see it and return. */
ferryResult_t ferryCommAbort(ferryComm_t comm)
{
	char text[64];
	ferryResult_t result = ferry_comm_hold(comm);
	if (result)
		return result;
	snprintf(text, sizeof text, "rank %d aborted the communicator", comm->rank.self);
	ferry_rank_abort(&comm->rank, text);
	end(comm);
	ferry_comm_release(comm);
	return ferrySuccess;
}
