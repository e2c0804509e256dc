/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/partner.h"

#include "ipc/error.h"
#include "ipc/wait.h"
#include "rank-lib/comm.h"
#include "rank-lib/comm_init.h"
#include "rank-lib/program/shares.h"

#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define AHEAD_US    1000.0 /* that a program is ahead of its stream: then its thread may wait, */
#define PATIENCE_US 5000.0 /* at most so long */

_Static_assert(sizeof(struct ferry_nccl_key) == FERRY_KEY_BYTES, "a communicator's key is its job's");

/* ---- life ---- */

/* Before the partner is ready: nobody else has the communicator. */
static ferryResult_t look_around(struct ferry_partner *partner, bool *peers)
{
	struct ferryComm *comm = partner->comm;
	ferryResult_t result = ferry_comm_enter(comm);
	if (result)
		return result;
	result = ferry_fabrics_push(&comm->fabrics, peers);
	ferry_comm_exit(comm);
	return result;
}

static void settle(struct ferry_partner *partner, enum ferry_partner_state state)
{
	atomic_store_explicit(&partner->state, state, memory_order_release);
	ferry_futex_wake(&partner->state, INT_MAX, false);
}

void ferry_partner_await(struct ferry_partner *partner, uint64_t deadline)
{
	uint64_t now;
	while (atomic_load_explicit(&partner->state, memory_order_acquire) == FERRY_PARTNER_MAKING &&
	       (now = ferry_now_ns()) < deadline)
		ferry_futex_wait(&partner->state, FERRY_PARTNER_MAKING, (uint32_t)((deadline - now) / 1000 + 1), false);
}

/*
 * All that is to be there for the first call that is shared. From the next one on the rank looks calls up, which it
 * says now: with its first call it would come too late for that one. Who abandons it meanwhile does not look any up:
 * ferry_partner_revoke says so before it takes the lock, so this sees it, or that finds a partner that is ready.
 */
static void get_ready(struct ferry_partner *partner, bool peers)
{
	struct ferryComm *comm = partner->comm;
	const struct ferry_costs *costs = comm->fabrics.costs;
	struct ferry_pace paces[FERRY_NUM_CARRIERS] = {[FERRY_CARRIER_HOST] = ferry_share_pace_of_host(costs, 1),
	                                               [FERRY_CARRIER_PEER] = ferry_share_pace_of_peers(costs, 1)};
	ferry_meter_open(&partner->meter, comm->rank.shared.arenas[0].shares, (uint32_t)partner->nranks,
	                 (uint32_t)partner->rank, peers, paces);
	ferry_arena_seal(&comm->rank.shared.arenas[0], (uint32_t)partner->rank, &partner->seal);
	pthread_mutex_lock(&partner->lock);
	if (!atomic_load_explicit(&partner->abandoned, memory_order_relaxed))
		ferry_seal_join(&partner->seal, partner->made);
	settle(partner, FERRY_PARTNER_READY);
	pthread_mutex_unlock(&partner->lock);
}

/* By the thread that shows. */
static void say_shown(void *argument, uint64_t kind)
{
	struct ferry_partner *partner = argument;
	pthread_mutex_lock(&partner->lock);
	ferry_share_say(partner->meter.ledger.table, (uint32_t)partner->rank, kind, FERRY_SHARE_SHOWN, true);
	pthread_mutex_unlock(&partner->lock);
}

static bool is_abandoned(const struct ferry_maker *maker)
{
	const struct ferry_partner *partner =
	        (const struct ferry_partner *)((const char *)maker - offsetof(struct ferry_partner, maker));
	return atomic_load_explicit(&partner->abandoned, memory_order_relaxed);
}

static void *make(void *argument)
{
	struct ferry_partner *partner = argument;
	partner->maker.gives_up = is_abandoned;
	ferryConfig_t config = FERRY_CONFIG_INITIALIZER;
	uint64_t begun = ferry_now_ns();
	bool peers;
	config.device = "cuda";
	config.ordinal = partner->device;
	ferryResult_t result = ferry_comm_make(&partner->comm, partner->nranks, (const uint8_t *)&partner->key,
	                                       partner->rank, &config, NULL, &partner->maker);
	if (!result && (result = look_around(partner, &peers))) {
		ferryCommAbort(partner->comm);
		partner->comm = NULL;
	}
	if (result) {
		if (!atomic_load_explicit(&partner->abandoned, memory_order_relaxed))
			ferry_log(FERRY_LOG_INFO, "communicator %016jx stays NCCL's alone: %s",
			          (uintmax_t)partner->key.words[0], ferry_last_message());
		settle(partner, FERRY_PARTNER_NONE);
		return NULL;
	}
	if (!partner->rank)
		ferry_log(FERRY_LOG_INFO,
		          "communicator %016jx of %d ranks is shared between NCCL and Ferry's %s, made in %.0f ms",
		          (uintmax_t)partner->key.words[0], partner->nranks,
		          peers ? "pushes and host" : "host", (double)(ferry_now_ns() - begun) / 1e6);
	get_ready(partner, peers);
	ferry_showing_run(&partner->showing, &partner->abandoned,
	                  &(struct ferry_showing_listener){say_shown, partner});
	return NULL;
}

/* Signals are for the application's threads. */
static bool begin_thread(struct ferry_partner *partner)
{
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	bool begun = !pthread_create(&partner->thread, NULL, make, partner);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return begun;
}

static void partner_free(struct ferry_partner *partner)
{
	if (!partner)
		return;
	pthread_mutex_destroy(&partner->lock);
	ferry_showing_free(&partner->showing);
	ferry_meter_free(&partner->meter);
	free(partner->pairs[0]);
	free(partner->pairs[1]);
	free(partner);
}

struct ferry_partner *ferry_partner_new(const struct ferry_nccl_key *key, int rank, int nranks, int device)
{
	struct ferry_partner *partner = calloc(1, sizeof *partner);
	if (!partner)
		return NULL;
	partner->key = *key;
	partner->rank = rank;
	partner->nranks = nranks;
	partner->device = device;
	pthread_mutex_init(&partner->lock, NULL);
	ferry_showing_init(&partner->showing);
	if (ferry_meter_init(&partner->meter)) {
		ferry_log(FERRY_LOG_WARN, "communicators stay NCCL's alone: %s", ferry_last_message());
		partner_free(partner);
		return NULL;
	}
	for (int sends = 0; sends < 2; sends++)
		partner->pairs[sends] = calloc((size_t)nranks, sizeof *partner->pairs[sends]);
	if (partner->pairs[0] && partner->pairs[1])
		return partner;
	partner_free(partner);
	return NULL;
}

void ferry_partner_begin(struct ferry_partner *partner)
{
	pthread_mutex_lock(&partner->lock);
	partner->begun = begin_thread(partner);
	if (!partner->begun)
		settle(partner, FERRY_PARTNER_NONE);
	pthread_mutex_unlock(&partner->lock);
}

bool ferry_partner_abandon(struct ferry_partner *partner)
{
	atomic_store_explicit(&partner->abandoned, true, memory_order_release);
	return atomic_load_explicit(&partner->state, memory_order_acquire) == FERRY_PARTNER_MAKING;
}

void ferry_partner_end(struct ferry_partner *partner, bool abort)
{
	char had[128];
	if (!partner)
		return;
	atomic_store_explicit(&partner->abandoned, true, memory_order_release);
	/* the thread may be asking a router that hangs: it waits no longer than the rank is whole */
	if (abort && ferry_partner_is_ready(partner) && !ferry_rank_failed(&partner->comm->rank))
		ferry_rank_fail(&partner->comm->rank, ferryRemoteError, "the communicator is aborted");
	ferry_showing_ring(&partner->showing);
	pthread_mutex_lock(&partner->lock); /* who begins it may not be out yet */
	bool begun = partner->begun;
	pthread_mutex_unlock(&partner->lock);
	if (begun)
		pthread_join(partner->thread, NULL);
	if (ferry_partner_is_ready(partner) && !partner->rank)
		ferry_log(FERRY_LOG_INFO, "communicator %016jx ends: %s", (uintmax_t)partner->key.words[0],
		          ferry_tally_print(&partner->tally, had, sizeof had));
	if (partner->comm && (abort || ferry_rank_failed(&partner->comm->rank)))
		ferryCommAbort(partner->comm);
	else if (partner->comm)
		ferryCommDestroy(partner->comm);
	partner_free(partner);
}

/* ---- agreement ---- */

bool ferry_partner_is_ready(const struct ferry_partner *partner)
{
	return atomic_load_explicit(&partner->state, memory_order_acquire) == FERRY_PARTNER_READY;
}

/* Under the lock. What others have sealed holds all the same. */
static bool proposes_nothing(const struct ferry_partner *partner)
{
	return partner->failed || atomic_load_explicit(&partner->abandoned, memory_order_relaxed);
}

/* Feeds what has been measured. Rank 0 says what has come of the program's tempo. */
static void look_at_meter(struct ferry_partner *partner)
{
	if (!ferry_meter_look(&partner->meter, partner->comm))
		return;
	const struct ferry_tempo_verdict *verdict = &partner->meter.tempo.verdict;
	ferry_log(FERRY_LOG_INFO,
	          "communicator %016jx: steps of %u calls: %.2f ms with Ferry, %.2f without, +-%.1f%%: %s",
	          (uintmax_t)partner->key.words[0], verdict->period, verdict->us[1] / 1e3, verdict->us[0] / 1e3,
	          100 * verdict->spread, verdict->gives_way ? "NCCL's" : "shared");
}

static void withdraw(struct ferry_partner *partner, const char *why);

/*
 * Under the lock. Whether all ranks number the same calls. Where one does not, no rank ever comes to propose anything,
 * as none does before it has seen that all say the same; so no call is sealed but as NCCL's.
 */
static bool is_counted_alike(struct ferry_partner *partner)
{
	uint64_t own = partner->meter.floor_bytes, other = own;
	uint32_t rank = 0, nranks = (uint32_t)partner->nranks;
	for (; rank < nranks && !partner->alike && other == own; rank++)
		other = ferry_share_floor(partner->meter.ledger.table, rank);
	partner->alike |= other == own;
	if (!partner->alike && other) {
		char why[128];
		snprintf(why, sizeof why, "FERRY_SPLIT_FLOOR is %ju bytes here, and %ju at rank %u", (uintmax_t)own,
		         (uintmax_t)other, rank - 1);
		withdraw(partner, why);
	}
	return partner->alike;
}

static uint32_t take(struct ferry_partner *partner, struct ferry_seal *seal, uint64_t n,
                     const struct ferry_partner_caller *caller)
{
	uint64_t first;
	bool all = !proposes_nothing(partner) && ferry_seal_joined(seal, &first) && is_counted_alike(partner);
	uint32_t word = ferry_seal_take(seal, n, all ? caller->propose(caller->argument, n) : FERRY_SEAL_NONE);
	if (all)
		caller->agreed(caller->argument, n, word);
	return word;
}

uint32_t ferry_partner_take(struct ferry_partner *partner, const struct ferry_partner_caller *caller, uint64_t *n)
{
	uint32_t word = FERRY_SEAL_NONE;
	pthread_mutex_lock(&partner->lock);
	if (ferry_partner_is_ready(partner)) {
		look_at_meter(partner);
		word = take(partner, &partner->seal, partner->made, caller);
	}
	*n = partner->made++;
	pthread_mutex_unlock(&partner->lock);
	return word;
}

uint32_t ferry_partner_take_message(struct ferry_partner *partner, int peer, bool sends,
                                    const struct ferry_partner_caller *caller)
{
	uint32_t word = FERRY_SEAL_NONE;
	struct ferry_partner_pair *pair = &partner->pairs[sends][peer];
	pthread_mutex_lock(&partner->lock);
	if (ferry_partner_is_ready(partner)) {
		look_at_meter(partner);
		uint32_t source = (uint32_t)(sends ? partner->rank : peer);
		uint32_t destination = (uint32_t)(sends ? peer : partner->rank);
		if (!pair->joined) {
			ferry_arena_seal_pair(&partner->comm->rank.shared.arenas[0], source, destination, !sends,
			                      &pair->seal);
			ferry_seal_join(&pair->seal, pair->made);
		}
		pair->joined = true;
		word = take(partner, &pair->seal, pair->made, caller);
	}
	pair->made++;
	pthread_mutex_unlock(&partner->lock);
	return word;
}

/*
 * Readiness, in the table of shares (ipc/shares.h). A rank's words are its own: who makes its calls writes them,
 * and the thread that shows, both under the lock. `wanted` is what it would propose for its last call of the kind.
 * `shown` is set when its routers have what the last such call that was asked for needs, by whoever finds that out, and
 * taken back by a call that finds something missing; a call that nobody wants finds nothing out and leaves it.
 *
 * Words are relaxed, and ranks may see them at different times: they say what to propose, and no more. What happens to
 * call n is what its cell is sealed with (ipc/seal.h), by one rank, and the others find it there whatever they would
 * have proposed. Who sees a word too early or too late, so:
 *  - not yet that a rank has shown: proposes NCCL. Nothing is lost but a call.
 *  - still that a rank has shown, whose next call comes with a new buffer or an idle one: that rank finds Ferry sealed,
 *    and shows in the call. The one wait that is left; where ranks change buffers together, whoever is first at the
 *    call misses its own, and proposes NCCL.
 *  - `wanted` too late: shows one call later.
 */
static uint32_t said_by(const struct ferry_share_table *table, uint32_t rank, uint64_t kind)
{
	uint32_t what = 0;
	if (!ferry_share_said(table, rank, kind, &what))
		ferry_share_said(table, rank, kind ^ FERRY_PARTNER_IN_PLACE, &what);
	return what;
}

bool ferry_partner_is_wanted(struct ferry_partner *partner, struct ferry_partner_kind kind, bool wanted,
                             bool *all_shown)
{
	struct ferry_share_table *table = partner->meter.ledger.table;
	uint32_t self = (uint32_t)partner->rank, any = 0, all = FERRY_SHARE_SHOWN;
	uint32_t first = kind.peer < 0 ? 0 : (uint32_t)kind.peer, count = kind.peer < 0 ? (uint32_t)partner->nranks : 1;
	ferry_share_say(table, self, kind.name, FERRY_SHARE_WANTED, wanted);
	for (uint32_t rank = first; rank < first + count; rank++) {
		uint32_t said = rank == self ? FERRY_SHARE_SHOWN : said_by(table, rank, kind.name);
		any |= said;
		all &= said;
	}
	*all_shown = all;
	return wanted || any & FERRY_SHARE_WANTED;
}

bool ferry_partner_has_shown(struct ferry_partner *partner, const struct ferry_showing_asked *call, bool now)
{
	double ahead_us = now ? ferry_meter_ahead_us(&partner->meter) : 0;
	enum ferry_shown shown = ferry_showing_has(&partner->showing, call);
	if (shown != FERRY_SHOWN && ahead_us > AHEAD_US)
		shown = ferry_showing_await(&partner->showing, call, fmin(ahead_us / 2, PATIENCE_US));
	if (shown != FERRY_SHOWN_UNKNOWN)
		ferry_share_say(partner->meter.ledger.table, (uint32_t)partner->rank, call->kind, FERRY_SHARE_SHOWN,
		                shown == FERRY_SHOWN);
	return shown == FERRY_SHOWN;
}

/* ---- failure ---- */

/* Under the lock. */
static void withdraw(struct ferry_partner *partner, const char *why)
{
	if (partner->failed)
		return;
	partner->failed = true;
	ferry_seal_withdraw(&partner->seal);
	ferry_log(FERRY_LOG_WARN, "communicator %016jx is NCCL's alone from now on, rank %d of %d: %s",
	          (uintmax_t)partner->key.words[0], partner->rank, partner->nranks, why);
}

/* Under the lock. What had not ended when nothing had failed yet may have been lost. */
static bool look(struct ferry_partner *partner)
{
	struct ferryComm *comm = partner->comm;
	uint64_t ended = atomic_load_explicit(&comm->mapped.submissions.ring->ended, memory_order_acquire);
	if (!ferry_rank_failed(&comm->rank)) {
		partner->confirmed = ended;
		return true;
	}
	if (!partner->failed)
		partner->lost |= partner->captured || comm->journal.calls > partner->confirmed;
	withdraw(partner, comm->rank.error_message);
	return false;
}

/* The other ranks may have begun what this one cannot: their streams must not wait for it. */
void ferry_partner_withdraw(struct ferry_partner *partner, const char *why)
{
	pthread_mutex_lock(&partner->lock);
	if (ferry_partner_is_ready(partner)) {
		if (!ferry_rank_failed(&partner->comm->rank))
			ferry_rank_fail(&partner->comm->rank, ferryRemoteError, why);
		look(partner);
	}
	pthread_mutex_unlock(&partner->lock);
}

void ferry_partner_revoke(struct ferry_partner *partner)
{
	ferry_partner_abandon(partner);
	ferry_partner_withdraw(partner, "the communicator is revoked");
}

bool ferry_partner_works(struct ferry_partner *partner)
{
	pthread_mutex_lock(&partner->lock);
	bool works = ferry_partner_is_ready(partner) && !partner->failed && look(partner);
	pthread_mutex_unlock(&partner->lock);
	return works;
}

void ferry_partner_captured(struct ferry_partner *partner)
{
	pthread_mutex_lock(&partner->lock);
	partner->captured = true;
	pthread_mutex_unlock(&partner->lock);
}

bool ferry_partner_lost(struct ferry_partner *partner)
{
	pthread_mutex_lock(&partner->lock);
	if (ferry_partner_is_ready(partner))
		look(partner);
	bool lost = partner->lost;
	pthread_mutex_unlock(&partner->lock);
	return lost;
}
