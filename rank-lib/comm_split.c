/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators that come out of another. */
#include "rank-lib/attach/key.h"
#include "rank-lib/comm.h"
#include "rank-lib/comm_init.h"
#include "rank-lib/config.h"

static bool everyone_posted(struct ferry_rank *rank, uint64_t split)
{
	for (int other = 0; other < rank->nranks; other++)
		if (atomic_load_explicit(&ferry_rank_line(&rank->shared, (uint32_t)other)->board[split % 2].seq,
		                         memory_order_acquire) != split)
			return false;
	return true;
}

/*
 * All ranks tell color and key on their boards. Slot s mod 2 is free: whoever posts s + 2 has read everybody's s + 1.
 */
static ferryResult_t exchange(struct ferryComm *comm, uint64_t split, int color, int key)
{
	struct ferry_rank *rank = &comm->rank;
	struct ferry_rank_line *line = ferry_rank_line(&rank->shared, (uint32_t)rank->self);
	struct ferry_board *board = &line->board[split % 2];
	atomic_store_explicit(&board->color, color, memory_order_relaxed);
	atomic_store_explicit(&board->key, key, memory_order_relaxed);
	atomic_store_explicit(&board->seq, split, memory_order_release);
	for (int other = 0; other < rank->nranks; other++)
		ferry_doorbell_ring(&ferry_rank_line(&rank->shared, (uint32_t)other)->app);
	while (1) {
		uint32_t ticket = ferry_doorbell_prepare(&line->app);
		bool posted = everyone_posted(rank, split), failed = ferry_rank_failed(rank);
		if (posted || failed) {
			ferry_doorbell_cancel(&line->app);
			return posted ? ferrySuccess
			              : ferry_fail(rank->error, "ferryCommSplit: %s", rank->error_message);
		}
		ferry_doorbell_wait(&line->app, ticket, 100000);
		ferry_comm_check_sockets(comm);
	}
}

/* The new communicator is made without the lock: its ranks come when they come. */
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
	if (!known->device)
		known->device = comm->device->ops->kind;
	if (known->ordinal < 0)
		known->ordinal = comm->device->ordinal;
	if (known->domain < 0)
		known->domain = (int)comm->rank.domain;
	return ferry_comm_make(newcomm, nranks, derived, rank, known, &comm->routers);
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
	ferry_comm_let_go(comm);
	return result;
}
