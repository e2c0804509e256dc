/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/communicators.h"

#include "ipc/environment.h"
#include "ipc/error.h"
#include "ipc/wait.h"
#include "orchestrator/config.h"
#include "orchestrator/real.h"

#include <pthread.h>
#include <stdlib.h>

#define CHAINS 256

static struct ferry_nccl_comm *_Atomic chains[CHAINS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

enum { UNKNOWN, ASKING, KNOWN };

static struct ferry_nccl_comm *_Atomic *chain_of(ncclComm_t handle)
{
	return &chains[((uintptr_t)handle >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 56];
}

_Static_assert(CHAINS == 1 << 8, "chain_of takes eight bits");

/* Called by the thread that drops the last use. */
static void end(struct ferry_nccl_comm *comm)
{
	while (comm->redops) {
		struct ferry_nccl_redop *next = comm->redops->next;
		free(comm->redops);
		comm->redops = next;
	}
	while (comm->ways) {
		struct ferry_nccl_way *next = comm->ways->next;
		free(comm->ways);
		comm->ways = next;
	}
	ferry_shadow_comm_end(atomic_load_explicit(&comm->shadow_comm, memory_order_acquire),
	                      atomic_load_explicit(&comm->aborted, memory_order_relaxed));
	ferry_nccl_tuner_end(comm->tuner);
	ferry_nccl_tuner_release(comm->tuner);
	atomic_store_explicit(&comm->vacant, true, memory_order_release);
}

void ferry_nccl_comm_release(struct ferry_nccl_comm *comm)
{
	if (comm && atomic_fetch_sub_explicit(&comm->users, 1, memory_order_acq_rel) == 1)
		end(comm);
}

void ferry_nccl_comm_hold(struct ferry_nccl_comm *comm)
{
	atomic_fetch_add_explicit(&comm->users, 1, memory_order_relaxed);
}

struct ferry_nccl_comm *ferry_nccl_comm_take(ncclComm_t handle)
{
	struct ferry_nccl_comm *comm = atomic_load_explicit(chain_of(handle), memory_order_acquire);
	if (!handle) /* entries of ended communicators have that handle */
		return NULL;
	for (; comm; comm = atomic_load_explicit(&comm->next, memory_order_acquire)) {
		unsigned users = atomic_load_explicit(&comm->users, memory_order_relaxed);
		if (atomic_load_explicit(&comm->handle, memory_order_acquire) != handle)
			continue;
		while (users && !atomic_compare_exchange_weak_explicit(&comm->users, &users, users + 1,
		                                                       memory_order_acquire, memory_order_relaxed))
			;
		if (!users)
			continue;
		if (atomic_load_explicit(&comm->handle, memory_order_acquire) == handle)
			return comm;
		ferry_nccl_comm_release(comm);
	}
	return NULL;
}

static struct ferry_nccl_comm *find(ncclComm_t handle)
{
	struct ferry_nccl_comm *comm = atomic_load_explicit(chain_of(handle), memory_order_relaxed);
	while (comm && atomic_load_explicit(&comm->handle, memory_order_relaxed) != handle)
		comm = atomic_load_explicit(&comm->next, memory_order_relaxed);
	return comm;
}

/* A free entry of the chain, or a new one at its front. */
static struct ferry_nccl_comm *vacancy(ncclComm_t handle)
{
	struct ferry_nccl_comm *_Atomic *chain = chain_of(handle);
	struct ferry_nccl_comm *first = atomic_load_explicit(chain, memory_order_relaxed), *comm = first;
	while (comm && !atomic_load_explicit(&comm->vacant, memory_order_acquire))
		comm = atomic_load_explicit(&comm->next, memory_order_relaxed);
	if (comm || !(comm = calloc(1, sizeof *comm)))
		return comm;
	atomic_init(&comm->next, first);
	atomic_store_explicit(chain, comm, memory_order_release);
	return comm;
}

void ferry_nccl_comm_add(ncclComm_t handle, const struct ferry_nccl_pending_comm *pending_comm)
{
	if (!handle)
		return;
	ferry_nccl_comm_remove(handle);
	pthread_mutex_lock(&lock);
	struct ferry_nccl_comm *comm = vacancy(handle);
	if (comm) {
		atomic_store_explicit(&comm->vacant, false, memory_order_relaxed);
		comm->key = pending_comm->key;
		comm->has_key = pending_comm->has_key;
		comm->miscounted = false;
		comm->copies = ferry_nccl_policy_copies(pending_comm->copies);
		comm->tuner = pending_comm->tuner;
		ferry_nccl_tuner_hold(comm->tuner);
		atomic_store_explicit(&comm->known, UNKNOWN, memory_order_relaxed);
		atomic_store_explicit(&comm->state, 0, memory_order_relaxed);
		atomic_store_explicit(&comm->calls, 0, memory_order_relaxed);
		atomic_store_explicit(&comm->shadow_comm, NULL, memory_order_relaxed);
		atomic_store_explicit(&comm->aborted, false, memory_order_relaxed);
		atomic_store_explicit(&comm->handle, handle, memory_order_release);
		atomic_store_explicit(&comm->users, 1, memory_order_release);
	}
	pthread_mutex_unlock(&lock);
	if (!comm)
		ferry_log(FERRY_LOG_WARN, "no memory to watch a communicator of NCCL's: its calls are passed on");
}

void ferry_nccl_comm_remove(ncclComm_t handle)
{
	pthread_mutex_lock(&lock);
	struct ferry_nccl_comm *comm = handle ? find(handle) : NULL;
	if (comm)
		atomic_store_explicit(&comm->handle, NULL, memory_order_release);
	pthread_mutex_unlock(&lock);
	ferry_nccl_comm_release(comm);
}

unsigned ferry_nccl_comm_change(ncclComm_t handle, unsigned set, unsigned clear)
{
	struct ferry_nccl_comm *comm = ferry_nccl_comm_take(handle);
	if (!comm)
		return 0;
	unsigned before = atomic_fetch_or_explicit(&comm->state, set, memory_order_acq_rel);
	atomic_fetch_and_explicit(&comm->state, ~clear, memory_order_acq_rel);
	ferry_nccl_comm_release(comm);
	return set & ~before;
}

struct ferry_nccl_comm *ferry_nccl_comm_give_up(ncclComm_t handle)
{
	struct ferry_nccl_comm *comm = ferry_nccl_comm_take(handle);
	struct ferry_shadow_comm *shadow_comm = comm ? atomic_load_explicit(&comm->shadow_comm, memory_order_acquire)
	                                             : NULL;
	if (comm)
		atomic_store_explicit(&comm->aborted, true, memory_order_release);
	if (shadow_comm && ferry_shadow_comm_abandon(shadow_comm))
		return comm;
	ferry_nccl_comm_release(comm);
	return NULL;
}

unsigned ferry_nccl_comm_revoke(ncclComm_t handle)
{
	struct ferry_nccl_comm *comm = ferry_nccl_comm_take(handle);
	struct ferry_shadow_comm *shadow_comm = comm ? atomic_load_explicit(&comm->shadow_comm, memory_order_acquire)
	                                             : NULL;
	unsigned set = ferry_nccl_comm_change(handle, FERRY_NCCL_REVOKED, 0);
	if (shadow_comm)
		ferry_shadow_comm_revoke(shadow_comm);
	ferry_nccl_comm_release(comm);
	return set;
}

/*
 * A revoke sets REVOKED before it may lose Ferry's part. So a thread that sees the loss also sees REVOKED, as it reads
 * that second.
 */
bool ferry_nccl_comm_lost(ncclComm_t handle)
{
	struct ferry_nccl_comm *comm = ferry_nccl_comm_take(handle);
	struct ferry_shadow_comm *shadow_comm = comm ? atomic_load_explicit(&comm->shadow_comm, memory_order_acquire)
	                                             : NULL;
	bool lost = shadow_comm && ferry_shadow_comm_lost(shadow_comm) &&
	            !(atomic_load_explicit(&comm->state, memory_order_acquire) & FERRY_NCCL_REVOKED);
	ferry_nccl_comm_release(comm);
	return lost;
}

static bool ask(struct ferry_nccl_comm *comm)
{
	ncclComm_t handle = atomic_load_explicit(&comm->handle, memory_order_relaxed);
	return !ferry_nccl_real_CommCount(handle, &comm->nranks) &&
	       !ferry_nccl_real_CommUserRank(handle, &comm->rank) &&
	       !ferry_nccl_real_CommCuDevice(handle, &comm->device);
}

#define TEXT(number)    #number
#define TEXT_OF(number) TEXT(number)

/* Why a learned communicator is NCCL's alone for good; NULL: it is not. */
static const char *why_alone(const struct ferry_nccl_comm *comm)
{
	if (comm->copies)
		return "its calls are for NCCL's copy engines (CTA policy zero)";
	if (!comm->has_key)
		return "its ranks share no name, as after ncclCommGrow";
	if (comm->nranks > FERRY_MAX_RANKS)
		return "Ferry's have " TEXT_OF(FERRY_MAX_RANKS) " ranks at most";
	return NULL;
}

static void notify(const struct ferry_nccl_comm *comm)
{
	const char *why = why_alone(comm);
	if (why)
		ferry_log(FERRY_LOG_INFO,
		          "NCCL's communicator of %d ranks, rank 0 on device %d, stays NCCL's alone: %s", comm->nranks,
		          comm->device, why);
	else
		ferry_log(FERRY_LOG_INFO, "watching NCCL's communicator %016jx of %d ranks, rank 0 on device %d",
		          (uintmax_t)comm->key.words[0], comm->nranks, comm->device);
}

bool ferry_nccl_comm_learn(struct ferry_nccl_comm *comm)
{
	int known = atomic_load_explicit(&comm->known, memory_order_acquire);
	if (known == KNOWN)
		return true;
	/* If another thread is just asking, this thread's call is NCCL's alone. */
	if (known != UNKNOWN || !atomic_compare_exchange_strong_explicit(&comm->known, &known, ASKING,
	                                                                 memory_order_acquire, memory_order_relaxed))
		return false;
	bool logged = ask(comm);
	if (logged && !comm->rank)
		notify(comm);
	atomic_store_explicit(&comm->known, logged ? KNOWN : UNKNOWN, memory_order_release);
	return logged;
}

struct ferry_shadow_comm *ferry_nccl_comm_shadow_comm(struct ferry_nccl_comm *comm)
{
	struct ferry_shadow_comm *shadow_comm = atomic_load_explicit(&comm->shadow_comm, memory_order_acquire),
	                         *none = NULL;
	if (shadow_comm || why_alone(comm))
		return shadow_comm;
	struct ferry_shadow_comm *made = ferry_shadow_comm_new(&comm->key, comm->rank, comm->nranks, comm->device);
	if (!made)
		return NULL;
	made->tuned = ferry_nccl_tuner_serves(comm->tuner, comm->nranks);
	if (atomic_compare_exchange_strong_explicit(&comm->shadow_comm, &none, made, memory_order_acq_rel,
	                                            memory_order_acquire))
		return made;
	ferry_shadow_comm_end(made, true);
	return none;
}

static bool is_first(const struct ferry_nccl_comm *comm)
{
	static _Atomic uint64_t first;
	uint64_t none = 0;
	return atomic_compare_exchange_strong_explicit(&first, &none, comm->key.words[0], memory_order_relaxed,
	                                               memory_order_relaxed) ||
	       none == comm->key.words[0];
}

/* FERRY_SPLIT_WAIT, in seconds. Unset: 1 for the process's first communicator, 0 for others. */
static uint64_t seconds_to_wait(const struct ferry_nccl_comm *comm)
{
	long seconds;
	return ferry_env_integer("FERRY_SPLIT_WAIT", 0, 3600, is_first(comm), &seconds) ? 0 : (uint64_t)seconds;
}

void ferry_nccl_comm_made(ncclComm_t handle)
{
	struct ferry_nccl_comm *comm = ferry_nccl_comm_take(handle);
	struct ferry_shadow_comm *shadow_comm = NULL;
	if (comm && comm->has_key && !comm->copies && (is_first(comm) || seconds_to_wait(comm)) &&
	    ferry_nccl_comm_learn(comm) && comm->nranks > 1)
		shadow_comm = ferry_nccl_comm_shadow_comm(comm);
	if (shadow_comm)
		ferry_shadow_comm_begin(shadow_comm);
	ferry_nccl_comm_release(comm);
}

void ferry_nccl_comm_await(ncclComm_t handle, uint64_t since_ns)
{
	struct ferry_nccl_comm *comm = ferry_nccl_comm_take(handle);
	struct ferry_shadow_comm *shadow_comm = comm ? atomic_load_explicit(&comm->shadow_comm, memory_order_acquire)
	                                             : NULL;
	if (shadow_comm)
		ferry_shadow_comm_await(shadow_comm, since_ns + seconds_to_wait(comm) * 1000000000u);
	ferry_nccl_comm_release(comm);
}
