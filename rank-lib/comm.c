/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a communicator, but for its making (comm_init.c): errors, holds, questions, the end. */
#include "rank-lib/comm.h"

#include "rank-lib/bootstrap.h"
#include "rank-lib/direct.h"
#include "rank-lib/mapped.h"

#include <stdlib.h>
#include <string.h>

/* ---- the library ---- */

ferryResult_t ferryGetVersion(int *version)
{
	if (!version)
		return ferry_fail(ferryInvalidArgument, "ferryGetVersion: version is NULL");
	*version = FERRY_VERSION_CODE;
	return ferrySuccess;
}

const char *ferryGetErrorString(ferryResult_t result)
{
	return ferry_result_text(result);
}

const char *ferryGetLastError(ferryComm_t comm)
{
	if (comm && comm->magic == FERRY_COMM_MAGIC && atomic_load_explicit(&comm->failed, memory_order_acquire))
		return comm->error_message;
	return ferry_last_message();
}

/* ---- failure ---- */

ferryResult_t ferry_comm_check(struct ferryComm *comm)
{
	if (comm && !((uintptr_t)comm % _Alignof(struct ferryComm)) && comm->magic == FERRY_COMM_MAGIC)
		return comm->forked ? ferry_fail(ferryInvalidUsage,
		                                 "communicator %p belongs to the process that forked this one, with "
		                                 "its threads",
		                                 (void *)comm)
		                    : ferrySuccess;
	return ferry_fail(ferryInvalidArgument, "communicator %p is NULL, destroyed or not Ferry's", (void *)comm);
}

static void keep_error(struct ferryComm *comm, ferryResult_t code, const char *message)
{
	pthread_mutex_lock(&comm->error_lock);
	if (!atomic_load_explicit(&comm->failed, memory_order_relaxed)) {
		comm->error = code;
		snprintf(comm->error_message, sizeof comm->error_message, "%s", message);
		atomic_store_explicit(&comm->failed, 1, memory_order_seq_cst);
	}
	pthread_mutex_unlock(&comm->error_lock);
}

void ferry_comm_fail(struct ferryComm *comm, ferryResult_t code, const char *message)
{
	if (comm->forked) /* the rank's line, and the job, are the parent's */
		return;
	keep_error(comm, code, message);
	pthread_mutex_lock(&comm->error_lock); /* two threads of this rank must not fill the cell at once */
	ferry_failure_set(&ferry_rank_line(&comm->shared, (uint32_t)comm->rank)->failure, code, message);
	pthread_mutex_unlock(&comm->error_lock);
	for (uint32_t domain = 0; domain < comm->ndomains; domain++)
		atomic_store_explicit(&comm->shared.arenas[domain].header->failed, 1, memory_order_release);
	ferry_wake_all(&comm->shared);
}

/* Somebody raised `failed` in an arena: find out who and why. */
static void adopt_failure(struct ferryComm *comm)
{
	char text[2 * FERRY_MESSAGE_BYTES];
	/* Ranks first: what one said before it left explains more than a router's "rank 3 died". */
	for (int rank = 0; rank < comm->nranks; rank++) {
		const struct ferry_failure *failure = &ferry_rank_line(&comm->shared, (uint32_t)rank)->failure;
		if (!atomic_load_explicit(&failure->state, memory_order_acquire))
			continue;
		snprintf(text, sizeof text, "rank %d: %.*s", rank, FERRY_MESSAGE_BYTES - 1, failure->message);
		/* What ranks disagree on is everybody's invalid usage; anything else is a remote error here. */
		keep_error(comm, failure->code == ferryInvalidUsage ? ferryInvalidUsage : ferryRemoteError, text);
	}
	for (uint32_t domain = 0; domain < comm->ndomains; domain++) {
		const struct ferry_failure *failure = &comm->shared.arenas[domain].header->failure;
		if (!atomic_load_explicit(&failure->state, memory_order_acquire))
			continue;
		snprintf(text, sizeof text, "%.*s", FERRY_MESSAGE_BYTES - 1, failure->message);
		keep_error(comm,
		           failure->code && failure->code < ferryNumResults ? (ferryResult_t)failure->code
		                                                            : ferryInternalError,
		           text);
	}
	keep_error(comm, ferryRemoteError, "the job was ended by somebody who left no message");
}

bool ferry_comm_failed(struct ferryComm *comm)
{
	if (atomic_load_explicit(&comm->failed, memory_order_acquire))
		return true;
	for (uint32_t domain = 0; domain < comm->ndomains; domain++)
		if (atomic_load_explicit(&comm->shared.arenas[domain].header->failed, memory_order_acquire)) {
			adopt_failure(comm);
			return true;
		}
	return false;
}

void ferry_comm_check_sockets(struct ferryComm *comm)
{
	for (uint32_t domain = 0; domain < comm->ndomains; domain++)
		if (comm->sockets[domain] >= 0 && !ferry_comm_failed(comm) &&
		    ferry_attach_closed(comm->sockets[domain])) {
			char text[96];
			snprintf(text, sizeof text, "the router of domain %u died", domain);
			ferry_comm_fail(comm, ferryRemoteError, text);
		}
}

/* ---- holds ---- */

void ferry_comm_hold(struct ferryComm *comm)
{
	atomic_fetch_add_explicit(&comm->holders, 1, memory_order_relaxed);
}

void ferry_comm_drop(struct ferryComm *comm)
{
	if (atomic_fetch_sub_explicit(&comm->holders, 1, memory_order_acq_rel) != 1)
		return;
	ferry_comm_free_plans(comm);
	ferry_user_programs_free(&comm->programs);
	ferry_comm_free_registrations(comm);
	for (uint32_t domain = 0; domain < FERRY_MAX_DOMAINS; domain++)
		ferry_arena_unmap(&comm->shared.arenas[domain]);
	ferry_device_close(comm->device);
	ferry_word_table_end(&comm->words);
	pthread_mutex_destroy(&comm->lock);
	pthread_mutex_destroy(&comm->error_lock);
	comm->magic = 0;
	free(comm);
}

/* ---- questions ---- */

ferryResult_t ferryCommGetAsyncError(ferryComm_t comm, ferryResult_t *error)
{
	ferryResult_t result = ferry_comm_check(comm);
	if (result)
		return result;
	if (!error)
		return ferry_fail(ferryInvalidArgument, "ferryCommGetAsyncError: error is NULL");
	ferry_comm_check_sockets(comm);
	*error = ferry_comm_failed(comm) ? comm->error : ferrySuccess;
	return ferrySuccess;
}

static ferryResult_t check_question(ferryComm_t comm, const int *where)
{
	ferryResult_t result = ferry_comm_check(comm);
	if (result)
		return result;
	return where ? ferrySuccess : ferry_fail(ferryInvalidArgument, "the pointer to write the answer to is NULL");
}

ferryResult_t ferryCommCount(ferryComm_t comm, int *count)
{
	ferryResult_t result = check_question(comm, count);
	if (!result)
		*count = comm->nranks;
	return result;
}

ferryResult_t ferryCommUserRank(ferryComm_t comm, int *rank)
{
	ferryResult_t result = check_question(comm, rank);
	if (!result)
		*rank = comm->rank;
	return result;
}

ferryResult_t ferryCommDomain(ferryComm_t comm, int *domain, int *ndomains)
{
	ferryResult_t result = check_question(comm, domain ? ndomains : domain);
	if (result)
		return result;
	*domain = (int)comm->domain;
	*ndomains = (int)comm->ndomains;
	return ferrySuccess;
}

/* ---- the end ---- */

static void wait_for_router(struct ferryComm *comm)
{
	struct ferry_doorbell *bell = &ferry_rank_line(&comm->shared, (uint32_t)comm->rank)->app;
	while (1) {
		uint32_t ticket = ferry_doorbell_prepare(bell);
		if (ferry_mapped_is_idle(comm) || ferry_comm_failed(comm)) {
			ferry_doorbell_cancel(bell);
			return;
		}
		ferry_doorbell_wait(bell, ticket, 100000);
	}
}

void ferry_comm_wait(struct ferryComm *comm)
{
	if (comm->mapped) {
		wait_for_router(comm);
		return;
	}
	uint32_t inflight;
	bool words = comm->device->ops->enqueue_word; /* a call with a word ends when its stream has come to it */
	while ((inflight = atomic_load_explicit(&comm->inflight, memory_order_acquire)) != 0 &&
	       !(words && ferry_comm_failed(comm)))
		ferry_futex_wait(&comm->inflight, inflight, 100000, false);
}

ferryResult_t ferryCommFinalize(ferryComm_t comm)
{
	ferryResult_t result = ferry_comm_check(comm);
	if (result)
		return result;
	pthread_mutex_lock(&comm->lock);
	comm->finalized = true;
	pthread_mutex_unlock(&comm->lock);
	ferry_comm_wait(comm);
	if (ferry_comm_failed(comm))
		return ferry_fail(comm->error, "%s", comm->error_message);
	return ferrySuccess;
}

void ferry_comm_close_data(struct ferryComm *comm)
{
	if (comm->mapped)
		ferry_mapped_close(comm);
	else
		ferry_direct_close(comm);
}

static void end(struct ferryComm *comm, bool abort)
{
	ferry_comm_wait(comm);
	ferry_comm_close_data(comm);
	ferry_comm_detach(comm, abort);
	comm->magic = 0; /* later calls on the handle are refused as long as its memory lives */
	ferry_comm_drop(comm);
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
	snprintf(text, sizeof text, "rank %d aborted the communicator", comm->rank);
	if (!ferry_comm_failed(comm))
		ferry_comm_fail(comm, ferryRemoteError, text);
	end(comm, true);
	return ferrySuccess;
}
