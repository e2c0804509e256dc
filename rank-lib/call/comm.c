/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a communicator, and the API's functions that only query it. */
#include "rank-lib/call/comm.h"

#include "rank-lib/attach/attach.h"
#include "rank-lib/device/open.h"

#include <stddef.h>
#include <stdlib.h>

/* ---- life ---- */

struct ferryComm *ferry_comm_of(struct ferry_holders *holders)
{
	return (struct ferryComm *)((char *)holders - offsetof(struct ferryComm, holders));
}

static void comm_free(struct ferry_holders *holders)
{
	struct ferryComm *comm = ferry_comm_of(holders);
	ferry_plans_free(&comm->plans);
	ferry_short_calls_free(&comm->shorts);
	ferry_user_programs_free(&comm->programs);
	ferry_registrations_free(&comm->registrations);
	ferry_exports_close(comm->mapped.exports);
	ferry_journal_end(&comm->journal);
	ferry_rank_end(&comm->rank);
	ferry_device_close(comm->device);
	ferry_stream_flag_table_end(&comm->flags);
	ferry_redops_end(&comm->redops);
	pthread_mutex_destroy(&comm->lock);
	atomic_store_explicit(&comm->magic, 0, memory_order_relaxed);
	free(comm);
}

ferryResult_t ferry_comm_new(int nranks, const uint8_t *key, int rank, struct ferryComm **made)
{
	struct ferryComm *comm = calloc(1, sizeof *comm);
	if (!comm)
		return ferry_fail(ferrySystemError, "no memory for a communicator");
	atomic_store_explicit(&comm->magic, FERRY_COMM_MAGIC, memory_order_relaxed);
	comm->holders.free = comm_free;
	ferry_holders_add(&comm->holders);
	ferry_rank_init(&comm->rank, rank, nranks, key);
	pthread_mutex_init(&comm->lock, NULL);
	ferry_redops_init(&comm->redops);
	ferry_stream_flag_table_init(&comm->flags);
	ferry_numbering_init(&comm->numbers);
	ferry_journal_init(&comm->journal);
	comm->takeovers.rank = &comm->rank;
	comm->takeovers.routers = &comm->routers;
	comm->takeovers.journal = comm->plans.journal = comm->mapped.journal = &comm->journal;
	comm->fabrics.rank = &comm->rank;
	comm->fabrics.costs = &comm->plans.options.costs;
	comm->fabrics.topology = &comm->topology;
	comm->plans.fabrics = &comm->fabrics;
	comm->mailboxes.rank = &comm->rank;
	comm->mailboxes.fabrics = &comm->fabrics;
	comm->plans.rank = comm->mapped.rank = comm->direct.rank = &comm->rank;
	comm->plans.numbers = comm->mapped.numbers = comm->direct.numbers = &comm->numbers;
	comm->shorts.direct = &comm->direct;
	comm->shorts.lock = &comm->lock;
	comm->plans.topology = &comm->topology;
	comm->plans.submissions = &comm->mapped.submissions;
	comm->mapped.submissions.journal = comm->mapped.captures.journal = &comm->journal;
	comm->mapped.captures.bounces = &comm->mapped.bounces;
	comm->mapped.plans = comm->mapped.captures.plans = comm->direct.plans = &comm->plans.cache;
	comm->mapped.lock = &comm->lock;
	comm->mapped.flags = comm->mapped.captures.flags = &comm->flags;
	comm->mapped.holders = comm->direct.holders = &comm->holders;
	*made = comm;
	return ferrySuccess;
}

static bool is_live(const struct ferryComm *comm)
{
	return comm && (uintptr_t)comm % _Alignof(struct ferryComm) == 0 &&
	       atomic_load_explicit(&comm->magic, memory_order_relaxed) == FERRY_COMM_MAGIC;
}

static ferryResult_t report_dead(const struct ferryComm *comm)
{
	return ferry_fail(ferryInvalidArgument, "communicator %p is NULL, destroyed or not Ferry's",
	                  (const void *)comm);
}

ferryResult_t ferry_comm_check(struct ferryComm *comm)
{
	if (!is_live(comm))
		return report_dead(comm);
	if (comm->rank.forked)
		return ferry_fail(ferryInvalidUsage,
		                  "communicator %p belongs to the process that forked this one, with its threads",
		                  (void *)comm);
	return ferrySuccess;
}

ferryResult_t ferry_comm_hold(struct ferryComm *comm)
{
	ferryResult_t result = ferry_comm_check(comm);
	if (result)
		return result;
	return ferry_holders_join(&comm->holders) ? ferrySuccess : report_dead(comm);
}

void ferry_comm_release(struct ferryComm *comm)
{
	ferry_holders_drop(&comm->holders);
}

static ferryResult_t enter(struct ferryComm *comm, bool (*has_failed)(struct ferry_rank *rank))
{
	ferryResult_t result = ferrySuccess;
	pthread_mutex_lock(&comm->lock);
	if (has_failed(&comm->rank))
		result = ferry_rank_report_failure(&comm->rank);
	else if (comm->closed)
		result = ferry_fail(ferryInvalidUsage, "communicator %p was destroyed meanwhile", (void *)comm);
	if (result)
		pthread_mutex_unlock(&comm->lock);
	return result;
}

ferryResult_t ferry_comm_enter(struct ferryComm *comm)
{
	return enter(comm, ferry_rank_failed);
}

ferryResult_t ferry_comm_enter_kernels(struct ferryComm *comm)
{
	return enter(comm, ferry_rank_ends_kernels);
}

bool ferry_comm_try_enter(struct ferryComm *comm)
{
	if (pthread_mutex_trylock(&comm->lock))
		return false;
	if (!ferry_rank_failed(&comm->rank) && !comm->closed)
		return true;
	pthread_mutex_unlock(&comm->lock);
	return false;
}

void ferry_comm_exit(struct ferryComm *comm)
{
	pthread_mutex_unlock(&comm->lock);
}

void ferry_comm_check_sockets(struct ferryComm *comm)
{
	if (pthread_mutex_trylock(&comm->lock))
		return;
	if (!comm->closed) {
		ferry_rank_check_sockets(&comm->rank);
		ferry_short_calls_settle(&comm->shorts);
	}
	pthread_mutex_unlock(&comm->lock);
}

bool ferry_comm_is_mapped(const struct ferryComm *comm)
{
	return comm->mapped.submissions.ring;
}

void ferry_comm_inherit(const struct ferryComm *comm, ferryConfig_t *config)
{
	if (!config->device)
		config->device = comm->device->ops->kind;
	if (config->ordinal < 0)
		config->ordinal = comm->device->ordinal;
	if (config->domain < 0)
		config->domain = (int)comm->rank.domain;
}

void ferry_comm_leave(struct ferryComm *comm, bool abort)
{
	bool mapped = ferry_comm_is_mapped(comm);
	ferry_mailboxes_close(&comm->mailboxes);
	if (mapped)
		ferry_mapped_close(&comm->mapped);
	else
		ferry_direct_close(&comm->direct);
	if (!abort)
		ferry_rank_announce_departure(&comm->rank);
	ferry_takeovers_close(&comm->takeovers);
	ferry_rank_detach(&comm->rank, &comm->routers);
	if (mapped)
		ferry_mapped_end(&comm->mapped);
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
	if (is_live(comm) && atomic_load_explicit(&comm->rank.failed, memory_order_acquire))
		return comm->rank.error_message;
	return ferry_last_message();
}

/* ---- questions ---- */

ferryResult_t ferryCommGetAsyncError(ferryComm_t comm, ferryResult_t *error)
{
	if (!error)
		return ferry_fail(ferryInvalidArgument, "ferryCommGetAsyncError: error is NULL");
	ferryResult_t result = ferry_comm_hold(comm);
	if (result)
		return result;
	ferry_comm_check_sockets(comm);
	*error = ferry_rank_failed(&comm->rank) ? comm->rank.error : ferrySuccess;
	ferry_comm_release(comm);
	return ferrySuccess;
}

static ferryResult_t hold_for_question(ferryComm_t comm, const int *where)
{
	if (!where)
		return ferry_fail(ferryInvalidArgument, "the pointer to write the answer to is NULL");
	return ferry_comm_hold(comm);
}

ferryResult_t ferryCommCount(ferryComm_t comm, int *count)
{
	ferryResult_t result = hold_for_question(comm, count);
	if (result)
		return result;
	*count = comm->rank.nranks;
	ferry_comm_release(comm);
	return ferrySuccess;
}

ferryResult_t ferryCommUserRank(ferryComm_t comm, int *rank)
{
	ferryResult_t result = hold_for_question(comm, rank);
	if (result)
		return result;
	*rank = comm->rank.self;
	ferry_comm_release(comm);
	return ferrySuccess;
}

ferryResult_t ferryCommDomain(ferryComm_t comm, int *domain, int *ndomains)
{
	ferryResult_t result = hold_for_question(comm, domain ? ndomains : domain);
	if (result)
		return result;
	*domain = (int)comm->rank.domain;
	*ndomains = (int)comm->rank.ndomains;
	ferry_comm_release(comm);
	return ferrySuccess;
}

/* ---- buffers ---- */

static ferryResult_t register_held(ferryComm_t comm, const void *buffer, size_t bytes, void **handle)
{
	ferryResult_t result = comm->device->ops->check_buffer(comm->device, buffer, bytes, "buffer");
	if (!result)
		result = ferry_comm_enter(comm);
	if (result)
		return result;
	result = ferry_registrations_add(&comm->registrations, comm->mapped.exports, buffer, bytes, handle);
	if (result == ferrySystemError && ferry_rank_failed(&comm->rank)) /* the router's answer was not waited for */
		result = ferry_rank_report_failure(&comm->rank);
	ferry_comm_exit(comm);
	return result;
}

ferryResult_t ferryCommRegister(ferryComm_t comm, const void *buffer, size_t bytes, void **handle)
{
	ferryResult_t result = ferry_comm_hold(comm);
	if (result)
		return result;
	if (!handle || !buffer || !bytes)
		result = ferry_fail(ferryInvalidArgument, "ferryCommRegister: buffer %p of %zu bytes, handle %p",
		                    buffer, bytes, (void *)handle);
	else
		result = register_held(comm, buffer, bytes, handle);
	ferry_comm_release(comm);
	return result;
}

ferryResult_t ferryCommDeregister(ferryComm_t comm, void *handle)
{
	ferryResult_t result = ferry_comm_hold(comm);
	if (result)
		return result;
	pthread_mutex_lock(&comm->lock); /* also if it has failed: its registrations can still be removed */
	result = comm->closed ? ferry_fail(ferryInvalidUsage, "communicator %p was ended meanwhile", (void *)comm)
	                      : ferry_registrations_remove(&comm->registrations, comm->mapped.exports, handle);
	pthread_mutex_unlock(&comm->lock);
	ferry_comm_release(comm);
	return result;
}

/* ---- reductions of one's own ---- */

ferryResult_t ferryRedOpCreatePreMulSum(ferryRedOp_t *op, void *scalar, ferryDataType_t type,
                                        ferryScalarResidence_t residence, ferryComm_t comm)
{
	ferryResult_t result = ferry_comm_hold(comm);
	if (result)
		return result;
	result = ferry_redops_create(&comm->redops, op, scalar, type, residence);
	ferry_comm_release(comm);
	return result;
}

ferryResult_t ferryRedOpDestroy(ferryRedOp_t op, ferryComm_t comm)
{
	ferryResult_t result = ferry_comm_hold(comm);
	if (result)
		return result;
	result = ferry_redops_destroy(&comm->redops, op);
	ferry_comm_release(comm);
	return result;
}
