/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/call/put_gate.h"

#include "ipc/deadline.h"
#include "ipc/rankset.h"

static struct ferry_rank_line *line_of(const struct ferry_rank *rank, uint32_t other)
{
	return ferry_rank_line(&rank->shared, other);
}

/* ---- the rank that puts ---- */

bool ferry_put_gate_enter(struct ferry_rank *rank, uint32_t owner)
{
	_Atomic uint64_t *putting = &line_of(rank, (uint32_t)rank->self)->putting;
	/* Its one writer: no fetch-or is needed. */
	atomic_store_explicit(putting, atomic_load_explicit(putting, memory_order_relaxed) | 1ull << owner,
	                      memory_order_relaxed);
	ferry_full_fence(); /* the bit before the look */
	if (!atomic_load_explicit(&line_of(rank, owner)->shut, memory_order_acquire))
		return true;
	ferry_put_gate_leave(rank, owner);
	return false;
}

void ferry_put_gate_leave(struct ferry_rank *rank, uint32_t owner)
{
	_Atomic uint64_t *putting = &line_of(rank, (uint32_t)rank->self)->putting;
	atomic_store_explicit(putting, atomic_load_explicit(putting, memory_order_relaxed) & ~(1ull << owner),
	                      memory_order_release);
	ferry_full_fence(); /* the bit before the check whether the owner waits for it */
	struct ferry_rank_line *line = line_of(rank, owner);
	if (!atomic_load_explicit(&line->shut, memory_order_relaxed))
		return;
	ferry_doorbell_ring(&line->d2h);
	ferry_doorbell_ring(&line->h2d);
}

/* ---- the owner ---- */

static uint64_t inside(const struct ferry_rank *rank)
{
	uint64_t ranks = 0;
	for (uint32_t other = 0; other < (uint32_t)rank->nranks; other++)
		if (atomic_load_explicit(&line_of(rank, other)->putting, memory_order_acquire) >> rank->self & 1 &&
		    !ferry_rank_has_ended(rank, other)) /* where that is unknown it may still put */
			ranks |= 1ull << other;
	return ranks;
}

bool ferry_put_gate_shut(struct ferry_put_gate *put_gate, struct ferry_rank *rank)
{
	char text[FERRY_RANKSET_TEXT];
	if (!put_gate->shut_ns) {
		put_gate->shut_ns = ferry_now_ns();
		atomic_store_explicit(&line_of(rank, (uint32_t)rank->self)->shut, 1, memory_order_release);
		ferry_full_fence(); /* `shut` before the look */
	}
	uint64_t ranks = put_gate->given_up ? 0 : inside(rank);
	if (!ranks || ferry_now_ns() - put_gate->shut_ns < FERRY_PATIENCE_S * 1000000000ull)
		return !ranks;
	put_gate->given_up = true;
	ferry_log(FERRY_LOG_WARN,
	          "rank %d's streams go on: %s, in the middle of putting into its memory, has not come out of that for "
	          "%d s, and may still write there",
	          rank->self, ferry_rankset_print(ranks, text), FERRY_PATIENCE_S);
	return true;
}
