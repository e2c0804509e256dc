/* SPDX-License-Identifier: Apache-2.0 */
/* What all that opens a communicator needs, and the functions of the API that only ask or tell it something. */
#include "rank-lib/comm.h"

#include "rank-lib/attach/attach.h"
#include "rank-lib/device/open.h"

#include <stddef.h>
#include <stdlib.h>

/* ---- life ---- */

static void comm_free(struct ferry_holders *holders)
{
	struct ferryComm *comm = (struct ferryComm *)((char *)holders - offsetof(struct ferryComm, holders));
	ferry_plans_free(&comm->plans);
	ferry_user_programs_free(&comm->programs);
	ferry_registrations_free(&comm->registrations);
	ferry_exports_close(comm->mapped.exports);
	ferry_rank_end(&comm->rank);
	ferry_device_close(comm->device);
	ferry_word_table_end(&comm->words);
	ferry_redops_end(&comm->redops);
	pthread_mutex_destroy(&comm->lock);
	comm->magic = 0;
	free(comm);
}

ferryResult_t ferry_comm_new(int nranks, const uint8_t *key, int rank, struct ferryComm **made)
{
	struct ferryComm *comm = calloc(1, sizeof *comm);
	if (!comm)
		return ferry_fail(ferrySystemError, "no memory for a communicator");
	comm->magic = FERRY_COMM_MAGIC;
	comm->holders.free = comm_free;
	ferry_holders_add(&comm->holders);
	ferry_rank_init(&comm->rank, rank, nranks, key);
	pthread_mutex_init(&comm->lock, NULL);
	ferry_redops_init(&comm->redops);
	ferry_word_table_init(&comm->words);
	ferry_numbering_init(&comm->numbers);
	comm->plans.rank = comm->mapped.rank = comm->direct.rank = &comm->rank;
	comm->plans.numbers = comm->mapped.numbers = comm->direct.numbers = &comm->numbers;
	comm->plans.topology = &comm->topology;
	comm->plans.submissions = &comm->mapped.submissions;
	comm->mapped.plans = comm->direct.plans = &comm->plans.cache;
	comm->mapped.words = comm->direct.words = &comm->words;
	comm->direct.holders = &comm->holders;
	*made = comm;
	return ferrySuccess;
}

ferryResult_t ferry_comm_check(struct ferryComm *comm)
{
	if (!comm || (uintptr_t)comm % _Alignof(struct ferryComm) || comm->magic != FERRY_COMM_MAGIC)
		return ferry_fail(ferryInvalidArgument, "communicator %p is NULL, destroyed or not Ferry's",
		                  (void *)comm);
	if (comm->rank.forked)
		return ferry_fail(ferryInvalidUsage,
		                  "communicator %p belongs to the process that forked this one, with its threads",
		                  (void *)comm);
	return ferrySuccess;
}

bool ferry_comm_is_mapped(const struct ferryComm *comm)
{
	return comm->mapped.submissions.ring;
}

void ferry_comm_leave(struct ferryComm *comm, bool abort)
{
	if (ferry_comm_is_mapped(comm))
		ferry_mapped_close(&comm->mapped);
	else
		ferry_direct_close(&comm->direct);
	ferry_rank_detach(&comm->rank, &comm->routers, abort);
}

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
	if (comm && comm->magic == FERRY_COMM_MAGIC && atomic_load_explicit(&comm->rank.failed, memory_order_acquire))
		return comm->rank.error_message;
	return ferry_last_message();
}

/* ---- questions ---- */

ferryResult_t ferryCommGetAsyncError(ferryComm_t comm, ferryResult_t *error)
{
	ferryResult_t result = ferry_comm_check(comm);
	if (result)
		return result;
	if (!error)
		return ferry_fail(ferryInvalidArgument, "ferryCommGetAsyncError: error is NULL");
	ferry_rank_check_sockets(&comm->rank);
	*error = ferry_rank_failed(&comm->rank) ? comm->rank.error : ferrySuccess;
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
		*count = comm->rank.nranks;
	return result;
}

ferryResult_t ferryCommUserRank(ferryComm_t comm, int *rank)
{
	ferryResult_t result = check_question(comm, rank);
	if (!result)
		*rank = comm->rank.self;
	return result;
}

ferryResult_t ferryCommDomain(ferryComm_t comm, int *domain, int *ndomains)
{
	ferryResult_t result = check_question(comm, domain ? ndomains : domain);
	if (result)
		return result;
	*domain = (int)comm->rank.domain;
	*ndomains = (int)comm->rank.ndomains;
	return ferrySuccess;
}

/* ---- buffers ---- */

ferryResult_t ferryCommRegister(ferryComm_t comm, const void *buffer, size_t bytes, void **handle)
{
	ferryResult_t result = ferry_comm_check(comm);
	if (result)
		return result;
	if (!handle || !buffer || !bytes)
		return ferry_fail(ferryInvalidArgument, "ferryCommRegister: buffer %p of %zu bytes, handle %p", buffer,
		                  bytes, (void *)handle);
	result = comm->device->ops->check_buffer(comm->device, buffer, bytes, "buffer");
	if (result)
		return result;
	pthread_mutex_lock(&comm->lock);
	result = ferry_registrations_add(&comm->registrations, comm->mapped.exports, buffer, bytes, handle);
	pthread_mutex_unlock(&comm->lock);
	return result;
}

ferryResult_t ferryCommDeregister(ferryComm_t comm, void *handle)
{
	ferryResult_t result = ferry_comm_check(comm);
	if (result)
		return result;
	pthread_mutex_lock(&comm->lock);
	result = ferry_registrations_remove(&comm->registrations, comm->mapped.exports, handle);
	pthread_mutex_unlock(&comm->lock);
	return result;
}

/* ---- reductions of one's own ---- */

ferryResult_t ferryRedOpCreatePreMulSum(ferryRedOp_t *op, void *scalar, ferryDataType_t type,
                                        ferryScalarResidence_t residence, ferryComm_t comm)
{
	ferryResult_t result = ferry_comm_check(comm);
	return result ? result : ferry_redops_create(&comm->redops, op, scalar, type, residence);
}

ferryResult_t ferryRedOpDestroy(ferryRedOp_t op, ferryComm_t comm)
{
	ferryResult_t result = ferry_comm_check(comm);
	return result ? result : ferry_redops_destroy(&comm->redops, op);
}
