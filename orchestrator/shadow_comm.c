/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/shadow_comm.h"

#include "ipc/environment.h"
#include "ipc/error.h"
#include "ipc/wait.h"
#include "orchestrator/clock.h"
#include "rank-lib/api/comm_init.h"
#include "rank-lib/call/comm.h"
#include "rank-lib/call/gpu_sums.h"
#include "rank-lib/kernels/kernel_call.h"
#include "rank-lib/kernels/kernel_launch.h"

#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define ENOUGH      8u     /* short calls after which a communicator counts as used */
#define POLL_US     100u   /* between looks whether all ranks have joined */
#define AHEAD_US    200.0  /* that a program is ahead of its stream: then its thread may wait, */
#define PATIENCE_US 5000.0 /* at most so long */

_Static_assert(sizeof(struct ferry_nccl_key) == FERRY_KEY_BYTES, "a communicator's key is its job's");

/* ---- life ---- */

/* Before the shadow communicator is ready: no other thread has the meter. Only rank 0 measures. */
static void prepare_meter(struct ferry_shadow_comm *shadow_comm)
{
	struct ferry_device *device = shadow_comm->comm->device;
	struct ferry_device_visit visit;
	if (shadow_comm->rank || !device->ops->enter || device->ops->enter(device, &visit))
		return;
	ferry_meter_prepare(&shadow_comm->meter);
	device->ops->leave(&visit);
}

/* Before the shadow communicator is ready: no other thread has the communicator. */
static ferryResult_t look_around(struct ferry_shadow_comm *shadow_comm, bool *peers)
{
	struct ferryComm *comm = shadow_comm->comm;
	ferryResult_t result = ferry_comm_enter(comm);
	if (result)
		return result;
	result = ferry_fabrics_push(&comm->fabrics, peers);
	ferry_comm_exit(comm);
	return result;
}

static void settle(struct ferry_shadow_comm *shadow_comm, enum ferry_shadow_comm_state state)
{
	atomic_store_explicit(&shadow_comm->state, state, memory_order_release);
	ferry_futex_wake(&shadow_comm->state, INT_MAX, false);
}

bool ferry_shadow_comm_is_none(const struct ferry_shadow_comm *shadow_comm)
{
	return atomic_load_explicit(&shadow_comm->state, memory_order_acquire) == FERRY_SHADOW_COMM_NONE;
}

static bool have_joined(struct ferry_shadow_comm *shadow_comm)
{
	uint64_t first;
	pthread_mutex_lock(&shadow_comm->lock);
	bool joined = shadow_comm->failed || ferry_agreement_joined(&shadow_comm->calls.agreement, &first);
	pthread_mutex_unlock(&shadow_comm->lock);
	return joined;
}

void ferry_shadow_comm_await(struct ferry_shadow_comm *shadow_comm, uint64_t deadline)
{
	uint64_t now;
	while (atomic_load_explicit(&shadow_comm->begun, memory_order_relaxed) &&
	       atomic_load_explicit(&shadow_comm->state, memory_order_acquire) == FERRY_SHADOW_COMM_MAKING &&
	       (now = ferry_now_ns()) < deadline)
		ferry_futex_wait(&shadow_comm->state, FERRY_SHADOW_COMM_MAKING, (uint32_t)((deadline - now) / 1000 + 1),
		                 false);
	while (ferry_shadow_comm_is_ready(shadow_comm) && !have_joined(shadow_comm) && ferry_now_ns() < deadline &&
	       !atomic_load_explicit(&shadow_comm->abandoned, memory_order_relaxed))
		ferry_futex_wait(&shadow_comm->state, FERRY_SHADOW_COMM_READY, POLL_US, false);
}

/* Under the lock. Maps the agreements. joins: this rank looks up all calls and messages that it numbers from now on. */
static void open_agreements(struct ferry_shadow_comm *shadow_comm, bool joins)
{
	const struct ferry_arena *arena = &shadow_comm->comm->rank.shared.arenas[0];
	int self = shadow_comm->rank;
	for (int peer = 0; peer < shadow_comm->nranks; peer++) {
		for (int sends = 0; sends < 2; sends++) {
			struct ferry_shadow_comm_numbers *pair = &shadow_comm->pairs[sends][peer];
			ferry_arena_agreement_pair(arena, (uint32_t)(sends ? self : peer),
			                           (uint32_t)(sends ? peer : self), !sends, &pair->agreement);
			if (joins && peer != self)
				ferry_agreement_join(&pair->agreement, pair->made);
		}
	}
	ferry_arena_agreement(arena, (uint32_t)self, &shadow_comm->calls.agreement);
	if (joins) /* last: a rank that sees this one join finds the pairs joined, too */
		ferry_agreement_join(&shadow_comm->calls.agreement, shadow_comm->calls.made);
}

/*
 * Prepares all that Ferry's first call needs. From the next call on the rank looks calls up, and publishes that now:
 * then it would be too late. An abandoned communicator does not join: ferry_shadow_comm_revoke sets `abandoned` before
 * it takes the lock, so either this function sees that, or revoke finds the communicator ready.
 */
static void get_ready(struct ferry_shadow_comm *shadow_comm, bool peers)
{
	struct ferryComm *comm = shadow_comm->comm;
	shadow_comm->kernels = ferry_kernels_ready(comm);
	ferry_meter_open(&shadow_comm->meter, comm->rank.shared.arenas[0].shares, (uint32_t)shadow_comm->nranks,
	                 (uint32_t)shadow_comm->rank, peers, ferry_gpu_sums_push(comm, FERRY_ALLREDUCE),
	                 shadow_comm->tuned, comm->fabrics.costs->link * 1e3);
	prepare_meter(shadow_comm);
	pthread_mutex_lock(&shadow_comm->lock);
	open_agreements(shadow_comm, !atomic_load_explicit(&shadow_comm->abandoned, memory_order_relaxed));
	settle(shadow_comm, FERRY_SHADOW_COMM_READY);
	pthread_mutex_unlock(&shadow_comm->lock);
}

/* Called by the thread that registers buffers ahead (preregister.h). */
static void report_registered(void *argument, uint64_t kind)
{
	struct ferry_shadow_comm *shadow_comm = argument;
	pthread_mutex_lock(&shadow_comm->lock);
	ferry_share_publish(shadow_comm->meter.table, (uint32_t)shadow_comm->rank, kind, FERRY_SHARE_PREREGISTERED,
	                    true);
	pthread_mutex_unlock(&shadow_comm->lock);
}

static bool is_abandoned(const struct ferry_maker *maker)
{
	const struct ferry_shadow_comm
	        *shadow_comm = (const struct ferry_shadow_comm *)((const char *)maker -
	                                                          offsetof(struct ferry_shadow_comm, maker));
	return atomic_load_explicit(&shadow_comm->abandoned, memory_order_relaxed);
}

static void *make(void *argument)
{
	struct ferry_shadow_comm *shadow_comm = argument;
	shadow_comm->maker.gives_up = is_abandoned;
	ferryConfig_t config = FERRY_CONFIG_INITIALIZER;
	uint64_t begun = ferry_now_ns();
	bool peers;
	config.device = "cuda";
	config.ordinal = shadow_comm->device;
	ferryResult_t result = ferry_comm_make(&shadow_comm->comm, shadow_comm->nranks,
	                                       (const uint8_t *)&shadow_comm->key, shadow_comm->rank, &config, NULL,
	                                       &shadow_comm->maker);
	if (!result && (result = look_around(shadow_comm, &peers))) {
		ferryCommAbort(shadow_comm->comm);
		shadow_comm->comm = NULL;
	}
	if (result) {
		if (!atomic_load_explicit(&shadow_comm->abandoned, memory_order_relaxed))
			ferry_log(FERRY_LOG_INFO, "communicator %016jx stays NCCL's alone: %s",
			          (uintmax_t)shadow_comm->key.words[0], ferry_last_message());
		settle(shadow_comm, FERRY_SHADOW_COMM_NONE);
		return NULL;
	}
	if (!shadow_comm->rank)
		ferry_log(FERRY_LOG_INFO,
		          "communicator %016jx of %d ranks is shared between NCCL and Ferry's %s, made in %.0f ms",
		          (uintmax_t)shadow_comm->key.words[0], shadow_comm->nranks, peers ? "pushes and host" : "host",
		          (double)(ferry_now_ns() - begun) / 1e6);
	get_ready(shadow_comm, peers);
	ferry_preregister_run(&shadow_comm->preregister, &shadow_comm->abandoned,
	                      &(struct ferry_preregister_listener){report_registered, shadow_comm});
	return NULL;
}

/* Signals are for the application's threads. */
static bool begin_thread(struct ferry_shadow_comm *shadow_comm)
{
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	bool begun = !pthread_create(&shadow_comm->thread, NULL, make, shadow_comm);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return begun;
}

static void shadow_comm_free(struct ferry_shadow_comm *shadow_comm)
{
	if (!shadow_comm)
		return;
	pthread_mutex_destroy(&shadow_comm->lock);
	ferry_preregister_free(&shadow_comm->preregister);
	ferry_meter_free(&shadow_comm->meter);
	free(shadow_comm->pairs[0]);
	free(shadow_comm->pairs[1]);
	free(shadow_comm);
}

struct ferry_shadow_comm *ferry_shadow_comm_new(const struct ferry_nccl_key *key, int rank, int nranks, int device)
{
	struct ferry_shadow_comm *shadow_comm = calloc(1, sizeof *shadow_comm);
	if (!shadow_comm)
		return NULL;
	shadow_comm->key = *key;
	shadow_comm->rank = rank;
	shadow_comm->nranks = nranks;
	shadow_comm->device = device;
	pthread_mutex_init(&shadow_comm->lock, NULL);
	ferry_preregister_init(&shadow_comm->preregister);
	if (ferry_meter_init(&shadow_comm->meter)) {
		ferry_log(FERRY_LOG_WARN, "communicator %016jx stays NCCL's alone: %s", (uintmax_t)key->words[0],
		          ferry_last_message());
		settle(shadow_comm, FERRY_SHADOW_COMM_NONE);
	}
	for (int sends = 0; sends < 2; sends++)
		shadow_comm->pairs[sends] = calloc((size_t)nranks, sizeof *shadow_comm->pairs[sends]);
	if (shadow_comm->pairs[0] && shadow_comm->pairs[1])
		return shadow_comm;
	shadow_comm_free(shadow_comm);
	return NULL;
}

void ferry_shadow_comm_begin(struct ferry_shadow_comm *shadow_comm)
{
	uint32_t state = atomic_load_explicit(&shadow_comm->state, memory_order_relaxed);
	pthread_mutex_lock(&shadow_comm->lock);
	if (!shadow_comm->begun && state == FERRY_SHADOW_COMM_MAKING) {
		shadow_comm->begun = begin_thread(shadow_comm);
		if (!shadow_comm->begun)
			settle(shadow_comm, FERRY_SHADOW_COMM_NONE);
	}
	pthread_mutex_unlock(&shadow_comm->lock);
}

/* Whether so many ranks may have kernels, and FERRY_NCCL allows them. */
static bool may_have_kernels(const struct ferry_shadow_comm *shadow_comm)
{
	return shadow_comm->nranks <= (int)FERRY_KERNEL_RANKS && !shadow_comm->meter.nccl_alone;
}

void ferry_shadow_comm_expect(struct ferry_shadow_comm *shadow_comm, bool large, bool captured)
{
	/* of more than two ranks some may exchange messages while others do nothing for long */
	uint64_t messages = shadow_comm->nranks == 2 ? shadow_comm->messages : shadow_comm->messages / ENOUGH;
	bool enough = captured || shadow_comm->calls.made + messages + 1 >= ENOUGH;
	bool worth = large || (may_have_kernels(shadow_comm) && enough);
	if (worth && !atomic_load_explicit(&shadow_comm->begun, memory_order_relaxed))
		ferry_shadow_comm_begin(shadow_comm);
}

void ferry_shadow_comm_await_for_capture(struct ferry_shadow_comm *shadow_comm)
{
	long seconds;
	if (may_have_kernels(shadow_comm) && !shadow_comm->awaited &&
	    !ferry_env_integer("FERRY_SPLIT_WAIT", 0, 3600, 1, &seconds))
		ferry_shadow_comm_await(shadow_comm, ferry_now_ns() + (uint64_t)seconds * 1000000000u);
	shadow_comm->awaited = true;
}

bool ferry_shadow_comm_abandon(struct ferry_shadow_comm *shadow_comm)
{
	atomic_store_explicit(&shadow_comm->abandoned, true, memory_order_release);
	return atomic_load_explicit(&shadow_comm->state, memory_order_acquire) == FERRY_SHADOW_COMM_MAKING;
}

void ferry_shadow_comm_end(struct ferry_shadow_comm *shadow_comm, bool abort)
{
	char had[128];
	if (!shadow_comm)
		return;
	atomic_store_explicit(&shadow_comm->abandoned, true, memory_order_release);
	/* the thread may wait for a router that hangs: it gives up once the rank has failed */
	if (abort && ferry_shadow_comm_is_ready(shadow_comm))
		ferry_rank_abort(&shadow_comm->comm->rank, "the communicator is aborted");
	ferry_preregister_ring(&shadow_comm->preregister);
	pthread_mutex_lock(&shadow_comm->lock); /* the thread that begins it may still hold it */
	bool begun = shadow_comm->begun;
	pthread_mutex_unlock(&shadow_comm->lock);
	if (begun)
		pthread_join(shadow_comm->thread, NULL);
	if (ferry_shadow_comm_is_ready(shadow_comm) && !shadow_comm->rank)
		ferry_log(FERRY_LOG_INFO, "communicator %016jx ends: %s", (uintmax_t)shadow_comm->key.words[0],
		          ferry_tally_print(&shadow_comm->tally, had, sizeof had));
	if (shadow_comm->comm && (abort || ferry_rank_ends_kernels(&shadow_comm->comm->rank)))
		ferryCommAbort(shadow_comm->comm);
	else if (shadow_comm->comm)
		ferryCommDestroy(shadow_comm->comm);
	shadow_comm_free(shadow_comm);
}

/* ---- agreement ---- */

bool ferry_shadow_comm_is_ready(const struct ferry_shadow_comm *shadow_comm)
{
	return atomic_load_explicit(&shadow_comm->state, memory_order_acquire) == FERRY_SHADOW_COMM_READY;
}

/* Under the lock. Calls on which other ranks have agreed keep their shares. */
static bool proposes_nothing(const struct ferry_shadow_comm *shadow_comm)
{
	return shadow_comm->failed || atomic_load_explicit(&shadow_comm->abandoned, memory_order_relaxed);
}

/* Feeds measured times to the tuner. Rank 0 logs a new verdict on the program's steps. */
static void look_at_meter(struct ferry_shadow_comm *shadow_comm)
{
	if (!ferry_meter_look(&shadow_comm->meter))
		return;
	const struct ferry_veto_verdict *verdict = &shadow_comm->meter.veto.verdict;
	ferry_log(FERRY_LOG_INFO,
	          "communicator %016jx: steps of %u calls: %.2f ms with Ferry, %.2f without, +-%.1f%%: %s",
	          (uintmax_t)shadow_comm->key.words[0], verdict->period, verdict->us[1] / 1e3, verdict->us[0] / 1e3,
	          100 * verdict->spread, verdict->holds ? "NCCL's" : "shared");
}

static void withdraw(struct ferry_shadow_comm *shadow_comm, const char *why);

static bool take_tunings(const struct ferry_shadow_comm *shadow_comm)
{
	bool all = true;
	for (int rank = 0; rank < shadow_comm->nranks; rank++)
		all &= ferry_share_tuned(shadow_comm->meter.table, (uint32_t)rank);
	return all;
}

static const char *print_counts(uint64_t counts, char text[80])
{
	snprintf(text, 80, "%ju bytes%s%s", (uintmax_t)(counts & ~(FERRY_METER_PINNED | FERRY_METER_ALONE)),
	         counts & FERRY_METER_PINNED ? " with FERRY_SHARES" : "",
	         counts & FERRY_METER_ALONE ? " with FERRY_NCCL=tune" : "");
	return text;
}

/*
 * Under the lock. Whether all ranks number the same calls. No rank proposes anything before it has seen that: so if one
 * rank differs, all calls are sealed as NCCL's.
 */
static bool is_counted_alike(struct ferry_shadow_comm *shadow_comm)
{
	uint64_t own = ferry_meter_counts(&shadow_comm->meter), other = own;
	uint32_t rank = 0, nranks = (uint32_t)shadow_comm->nranks;
	for (; rank < nranks && !shadow_comm->alike && other == own; rank++)
		other = ferry_share_floor(shadow_comm->meter.table, rank);
	if (other == own && !shadow_comm->alike)
		ferry_meter_adopt(&shadow_comm->meter, take_tunings(shadow_comm));
	shadow_comm->alike |= other == own;
	if (!shadow_comm->alike && other) {
		char why[240], mine[80], others[80];
		snprintf(why, sizeof why, "FERRY_SPLIT_FLOOR is %s here, and %s at rank %u", print_counts(own, mine),
		         print_counts(other, others), rank - 1);
		withdraw(shadow_comm, why);
	}
	return shadow_comm->alike;
}

/*
 * Under the lock. Drops a tuning that not all ranks take: NCCL hangs if ranks run a call differently, and a hostile
 * rank may have written it into the table. When one is sealed all ranks have published whether they take any.
 */
static uint32_t without_refused(const struct ferry_shadow_comm *shadow_comm, uint32_t word)
{
	uint32_t tuning = ferry_shares_tuning(word);
	return tuning && !take_tunings(shadow_comm) ? word - tuning : word;
}

/* Under the lock. All ranks get the word that begins kernels at the same call, or both ends at the same message. */
static uint32_t agree(struct ferry_shadow_comm *shadow_comm, struct ferry_shadow_comm_numbers *of,
                      const struct ferry_shadow_comm_caller *caller)
{
	uint64_t first, n = of->made;
	bool all = !proposes_nothing(shadow_comm) && ferry_agreement_joined(&of->agreement, &first) &&
	           is_counted_alike(shadow_comm);
	bool begins = !atomic_load_explicit(&of->kernels_begun, memory_order_relaxed);
	uint32_t proposal = all ? caller->propose(caller->argument, n) ^ (begins ? FERRY_SHARES_BEGINS : 0)
	                        : FERRY_AGREEMENT_NONE;
	uint32_t word = ferry_agreement_take(&of->agreement, n, proposal);
	if (ferry_shares_begin(&word) && begins) {
		atomic_store_explicit(&of->kernels_begun, true, memory_order_relaxed);
		if (!shadow_comm->rank && shadow_comm->kernels && of == &shadow_comm->calls)
			ferry_log(FERRY_LOG_INFO,
			          "communicator %016jx: short calls go by kernels of Ferry's from call %ju on",
			          (uintmax_t)shadow_comm->key.words[0], (uintmax_t)n);
	}
	word = without_refused(shadow_comm, word);
	if (all)
		caller->agreed(caller->argument, n, word);
	return word;
}

/* *n: the number. */
static uint32_t take(struct ferry_shadow_comm *shadow_comm, struct ferry_shadow_comm_numbers *of,
                     const struct ferry_shadow_comm_caller *caller, uint64_t *n)
{
	uint32_t word = FERRY_AGREEMENT_NONE;
	pthread_mutex_lock(&shadow_comm->lock);
	if (ferry_shadow_comm_is_ready(shadow_comm)) {
		look_at_meter(shadow_comm);
		word = agree(shadow_comm, of, caller);
	}
	*n = of->made++;
	shadow_comm->messages += of != &shadow_comm->calls;
	pthread_mutex_unlock(&shadow_comm->lock);
	return word;
}

uint32_t ferry_shadow_comm_take(struct ferry_shadow_comm *shadow_comm, const struct ferry_shadow_comm_caller *caller,
                                uint64_t *n)
{
	return take(shadow_comm, &shadow_comm->calls, caller, n);
}

uint32_t ferry_shadow_comm_take_message(struct ferry_shadow_comm *shadow_comm, int peer, bool sends,
                                        const struct ferry_shadow_comm_caller *caller)
{
	uint64_t n;
	return take(shadow_comm, &shadow_comm->pairs[sends][peer], caller, &n);
}

/*
 * Readiness, in the table of shares (ipc/shares.h). Each rank writes its own entries: the threads that make its calls,
 * and the thread that preregisters, both under the lock. `wanted` says that the rank would propose Ferry for its last
 * call of the kind. The thread that finds it out sets `preregistered` when the rank's routers have what the last such
 * call needs. A call that finds something missing clears it. A call that no rank wants does not check, and leaves it.
 *
 * Entries are relaxed, and ranks may see them at different times: they influence proposals, and no more. Call n gets
 * what its cell is agreed on (ipc/agreement.h) by one rank, and the others find it there whatever they would have
 * proposed. So a rank that sees an entry too early or too late has these effects:
 * - It does not see yet that another rank is ready: it proposes NCCL. Ferry loses a call.
 * - It still sees as ready a rank whose next call comes with a new buffer or an idle one: that rank finds Ferry agreed
 *   on, and preregisters in the call. This is the only wait that is left; if ranks change buffers together, the first
 *   rank at the call finds its own missing, and proposes NCCL.
 * - It sees `wanted` too late: it preregisters one call later.
 */
static uint32_t said_by(const struct ferry_share_table *table, uint32_t rank, uint64_t kind)
{
	uint32_t what = 0;
	if (!ferry_share_said(table, rank, kind, &what))
		ferry_share_said(table, rank, kind ^ FERRY_SHADOW_COMM_IN_PLACE, &what);
	return what;
}

bool ferry_shadow_comm_is_wanted(struct ferry_shadow_comm *shadow_comm, struct ferry_shadow_comm_kind kind, bool wanted,
                                 bool *all_preregistered)
{
	struct ferry_share_table *table = shadow_comm->meter.table;
	uint32_t self = (uint32_t)shadow_comm->rank, any = 0, all = FERRY_SHARE_PREREGISTERED;
	uint32_t first = kind.peer < 0 ? 0 : (uint32_t)kind.peer,
	         count = kind.peer < 0 ? (uint32_t)shadow_comm->nranks : 1;
	ferry_share_publish(table, self, kind.name, FERRY_SHARE_WANTED, wanted);
	for (uint32_t rank = first; rank < first + count; rank++) {
		uint32_t said = rank == self ? FERRY_SHARE_PREREGISTERED : said_by(table, rank, kind.name);
		any |= said;
		all &= said;
	}
	*all_preregistered = all;
	return wanted || any & FERRY_SHARE_WANTED;
}

bool ferry_shadow_comm_has_preregistered(struct ferry_shadow_comm *shadow_comm,
                                         const struct ferry_preregister_asked *call, bool now)
{
	double ahead_us = now ? ferry_meter_ahead_us(&shadow_comm->meter) : 0;
	enum ferry_preregistered has = ferry_preregister_has(&shadow_comm->preregister, call, now);
	if (has != FERRY_PREREGISTERED && ahead_us > AHEAD_US)
		has = ferry_preregister_await(&shadow_comm->preregister, call, fmin(ahead_us / 2, PATIENCE_US));
	if (has != FERRY_PREREGISTERED_UNKNOWN)
		ferry_share_publish(shadow_comm->meter.table, (uint32_t)shadow_comm->rank, call->kind,
		                    FERRY_SHARE_PREREGISTERED, has == FERRY_PREREGISTERED);
	return has == FERRY_PREREGISTERED;
}

/* ---- failure ---- */

/* Under the lock. */
static void withdraw(struct ferry_shadow_comm *shadow_comm, const char *why)
{
	if (shadow_comm->failed)
		return;
	shadow_comm->failed = true;
	ferry_agreement_withdraw(&shadow_comm->calls.agreement);
	bool kernels = ferry_shadow_comm_kernels_begun(shadow_comm) && shadow_comm->kernels;
	const char *which = !kernels                                            ? ""
	                    : ferry_rank_ends_kernels(&shadow_comm->comm->rank) ? " but for short calls, which fail"
	                                                                        : " but for short calls";
	ferry_log(FERRY_LOG_WARN, "communicator %016jx is NCCL's alone from now on%s, rank %d of %d: %s",
	          (uintmax_t)shadow_comm->key.words[0], which, shadow_comm->rank, shadow_comm->nranks, why);
}

/*
 * Under the lock. Calls that had not ended at the last look before a failure may be lost, and so may all of kernels.
 * The thread that makes calls counts one without the lock, so it may do so after the look that finds the failure: then
 * a later look finds it.
 */
static bool look(struct ferry_shadow_comm *shadow_comm)
{
	struct ferryComm *comm = shadow_comm->comm;
	uint64_t ended = atomic_load_explicit(&comm->mapped.submissions.ring->ended, memory_order_acquire);
	if (!ferry_rank_failed(&comm->rank)) {
		shadow_comm->confirmed = ended;
		return true;
	}
	uint64_t calls = atomic_load_explicit(&comm->journal.calls, memory_order_relaxed);
	shadow_comm->lost |= shadow_comm->captured || calls > shadow_comm->confirmed;
	shadow_comm->lost |= ferry_tally_kernels(&shadow_comm->tally) && ferry_rank_ends_kernels(&comm->rank);
	withdraw(shadow_comm, comm->rank.error_message);
	return false;
}

static void end_ferrys(struct ferry_shadow_comm *shadow_comm, const char *why, bool kernels)
{
	pthread_mutex_lock(&shadow_comm->lock);
	if (ferry_shadow_comm_is_ready(shadow_comm)) {
		struct ferry_rank *rank = &shadow_comm->comm->rank;
		if (kernels)
			ferry_rank_abort(rank, why);
		else
			ferry_rank_fail_request(rank, ferryRemoteError, why);
		look(shadow_comm);
	}
	pthread_mutex_unlock(&shadow_comm->lock);
}

/* The other ranks may have begun what this one cannot: their streams must not wait for it. */
void ferry_shadow_comm_withdraw(struct ferry_shadow_comm *shadow_comm, const char *why)
{
	end_ferrys(shadow_comm, why, false);
}

void ferry_shadow_comm_revoke(struct ferry_shadow_comm *shadow_comm)
{
	ferry_shadow_comm_abandon(shadow_comm);
	end_ferrys(shadow_comm, "the communicator is revoked", true);
}

bool ferry_shadow_comm_works(struct ferry_shadow_comm *shadow_comm)
{
	pthread_mutex_lock(&shadow_comm->lock);
	bool works = ferry_shadow_comm_is_ready(shadow_comm) && !shadow_comm->failed && look(shadow_comm);
	pthread_mutex_unlock(&shadow_comm->lock);
	return works;
}

void ferry_shadow_comm_captured(struct ferry_shadow_comm *shadow_comm)
{
	pthread_mutex_lock(&shadow_comm->lock);
	shadow_comm->captured = true;
	pthread_mutex_unlock(&shadow_comm->lock);
}

bool ferry_shadow_comm_lost(struct ferry_shadow_comm *shadow_comm)
{
	pthread_mutex_lock(&shadow_comm->lock);
	if (ferry_shadow_comm_is_ready(shadow_comm))
		look(shadow_comm);
	bool lost = shadow_comm->lost;
	pthread_mutex_unlock(&shadow_comm->lock);
	return lost;
}
