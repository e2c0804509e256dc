/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators that come out of another. */
#include "ipc/publish.h"
#include "ipc/rankset.h"
#include "rank-lib/api/comm_init.h"
#include "rank-lib/api/config.h"
#include "rank-lib/attach/key.h"
#include "rank-lib/call/comm.h"
#include "rank-lib/failover/watchdog.h"

#include <stdio.h>

/* Returns the ranks that have not posted. */
static uint64_t missing(const struct ferry_rank *rank, uint64_t split)
{
	uint64_t ranks = 0;
	for (uint32_t other = 0; other < (uint32_t)rank->nranks; other++)
		if (atomic_load_explicit(&ferry_rank_line(&rank->shared, other)->board[split % 2].seq,
		                         memory_order_acquire) != split)
			ranks |= 1ull << other;
	return ranks;
}

/*
 * Ends the communicator if a rank that has not posted has left, as the boards then get out of step. Does nothing while
 * ranks are still in calls with the one that left.
 */
static void end_without(struct ferry_rank *rank, uint64_t split)
{
	char text[96];
	uint64_t departed = ferry_departed(&rank->shared), absent = departed & missing(rank, split);
	if (!absent || !ferry_departed_are_over(&rank->shared, departed))
		return;
	snprintf(text, sizeof text, "rank %u has left the communicator: it takes no part in its split %llu",
	         ferry_rankset_lowest(absent), (unsigned long long)split);
	ferry_rank_fail(rank, ferryRemoteError, text);
}

/* Logs a stall once; if it lasts too long, fails all ranks. */
static void report_stall(struct ferry_watchdog *watchdog, uint64_t split)
{
	char ranks[FERRY_RANKSET_TEXT], text[FERRY_RANKSET_TEXT + 96];
	uint64_t waited = ferry_now_ns() - watchdog->since, late = missing(watchdog->rank, split);
	if (!late || !ferry_watchdog_is_due(watchdog, waited)) /* the last one may just have come */
		return;
	snprintf(text, sizeof text, "in ferryCommSplit for %s to call it, too (split %llu)",
	         ferry_rankset_print(late, ranks), (unsigned long long)split);
	ferry_watchdog_report(watchdog, waited, text);
}

/* Success if all have posted, even if the communicator has failed since, as other ranks may have gone on. */
static ferryResult_t wait_for_all(struct ferryComm *comm, uint64_t split)
{
	struct ferry_rank *rank = &comm->rank;
	struct ferry_doorbell *bell = &ferry_rank_line(&rank->shared, (uint32_t)rank->self)->app;
	struct ferry_watchdog watchdog = {.rank = rank, .since = ferry_now_ns()};
	while (1) {
		uint32_t ticket = ferry_doorbell_prepare(bell);
		end_without(rank, split);
		bool failed = ferry_rank_failed(rank), posted = !missing(rank, split);
		if (posted || failed) {
			ferry_doorbell_cancel(bell);
			return posted ? ferrySuccess
			              : ferry_fail(rank->error, "ferryCommSplit: %s", rank->error_message);
		}
		ferry_doorbell_wait(bell, ticket, 100000);
		ferry_comm_check_sockets(comm);
		report_stall(&watchdog, split);
	}
}

/* Posts color and key. The slot is free: a rank posts split s when all have posted s - 1, and so have read s - 2. */
static ferryResult_t exchange(struct ferryComm *comm, uint64_t split, int color, int key)
{
	struct ferry_rank *rank = &comm->rank;
	struct ferry_board *board = &ferry_rank_line(&rank->shared, (uint32_t)rank->self)->board[split % 2];
	atomic_store_explicit(&board->color, color, memory_order_relaxed);
	atomic_store_explicit(&board->key, key, memory_order_relaxed);
	atomic_store_explicit(&board->seq, split, memory_order_release);
	for (int other = 0; other < rank->nranks; other++)
		ferry_doorbell_ring(&ferry_rank_line(&rank->shared, (uint32_t)other)->app);
	return wait_for_all(comm, split);
}

/* Makes the new communicator without the parent's lock, as its other ranks may come late. */
static ferryResult_t split_held(struct ferryComm *comm, int color, int key, ferryComm_t *newcomm, ferryConfig_t *known)
{
	ferryResult_t result = ferry_comm_enter(comm);
	if (result)
		return result;
	uint64_t split = ++comm->splits;
	ferry_comm_exit(comm);
	if ((result = exchange(comm, split, color, key)) || color == FERRY_SPLIT_NOCOLOR)
		return result;
	int rank = 0, nranks = 0;
	for (int other = 0; other < comm->rank.nranks; other++) {
		struct ferry_board *board = &ferry_rank_line(&comm->rank.shared, (uint32_t)other)->board[split % 2];
		if (atomic_load_explicit(&board->color, memory_order_relaxed) != color)
			continue;
		int theirs = atomic_load_explicit(&board->key, memory_order_relaxed);
		nranks++;
		rank += theirs < key || (theirs == key && other < comm->rank.self);
	}
	uint8_t derived[FERRY_KEY_BYTES];
	ferry_derive_key(derived, comm->rank.key, split, (uint64_t)color + 1);
	ferry_comm_inherit(comm, known);
	return ferry_comm_make(newcomm, nranks, derived, rank, known, &comm->routers, NULL);
}

ferryResult_t ferryCommSplit(ferryComm_t comm, int color, int key, ferryComm_t *newcomm, const ferryConfig_t *config)
{
	ferryConfig_t known = FERRY_CONFIG_INITIALIZER;
	ferryResult_t result = ferry_comm_hold(comm);
	if (result)
		return result;
	result = ferry_config_read("ferryCommSplit", config, &known, sizeof known);
	if (!result && (!newcomm || (color < 0 && color != FERRY_SPLIT_NOCOLOR)))
		result = ferry_fail(ferryInvalidArgument,
		                    "ferryCommSplit: newcomm %p, color %d (0 up, or FERRY_SPLIT_NOCOLOR)",
		                    (void *)newcomm, color);
	if (!result) {
		*newcomm = NULL;
		result = split_held(comm, color, key, newcomm, &known);
	}
	ferry_comm_release(comm);
	return result;
}
