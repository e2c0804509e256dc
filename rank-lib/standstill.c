/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/standstill.h"

#include "ipc/wait.h"
#include "router/awaited.h"

#include <stdio.h>

#define DEAF_NS 500000000ull /* lanes look ten times as often */

static uint64_t last_look(const struct ferry_rank *rank)
{
	struct ferry_rank_line *line = ferry_rank_line(&rank->shared, (uint32_t)rank->self);
	return atomic_load_explicit(&line->traffic[0].looked, memory_order_relaxed) +
	       atomic_load_explicit(&line->traffic[1].looked, memory_order_relaxed);
}

/* Of the router: to take what was submitted, or to end a call that a stream is at. */
static bool waits(const struct ferry_standstill *standstill, uint64_t taken)
{
	return taken != atomic_load_explicit(&standstill->ring->written, memory_order_relaxed) ||
	       ferry_word_table_waits(standstill->words);
}

/* The first call that the rank is in; NULL: none that the others have been told of. */
static const struct ferry_descriptor *call_of(const struct ferry_rank *rank, uint64_t *seq)
{
	const struct ferry_rank_line *line = ferry_rank_line(&rank->shared, (uint32_t)rank->self);
	const struct ferry_descriptor *found = NULL;
	for (uint32_t bank = 0; bank < FERRY_BANKS; bank++) {
		uint64_t begun = atomic_load_explicit(&line->ring[bank].seq, memory_order_acquire);
		if (begun <= atomic_load_explicit(&line->finished[bank], memory_order_acquire) ||
		    begun % FERRY_BANKS != bank || (found && begun > *seq))
			continue;
		found = &line->ring[bank];
		*seq = begun;
	}
	return found;
}

static bool all_are_in(const struct ferry_rank *rank, uint64_t seq)
{
	for (uint32_t other = 0; other < (uint32_t)rank->nranks; other++)
		if (atomic_load_explicit(&ferry_rank_line(&rank->shared, other)->ring[seq % FERRY_BANKS].seq,
		                         memory_order_acquire) != seq)
			return false;
	return true;
}

static void say_slice(const struct ferry_standstill *standstill, uint64_t hash, uint64_t seq, char *text, size_t bytes)
{
	struct ferry_awaited awaited;
	if (!all_are_in(standstill->rank, seq) || pthread_mutex_trylock(standstill->lock))
		return;
	const struct ferry_plan *plan = ferry_plan_cache_of_hash(standstill->plans, hash);
	if (plan && ferry_awaited_find(&standstill->rank->shared, plan, seq, &awaited))
		snprintf(text, bytes, ", %s, slice %u of %u", ferry_opcode_name(awaited.instr->opcode),
		         awaited.slice + 1, awaited.nslices);
	pthread_mutex_unlock(standstill->lock);
}

static void say_call(const struct ferry_standstill *standstill, uint64_t taken, char *text, size_t bytes)
{
	struct ferry_descriptor_fields fields;
	char slice[80] = "";
	uint64_t seq = 0;
	const struct ferry_descriptor *call = call_of(standstill->rank, &seq);
	if (taken != atomic_load_explicit(&standstill->ring->written, memory_order_relaxed)) {
		snprintf(text, bytes, "to take its calls");
		return;
	}
	if (!call) {
		snprintf(text, bytes, "to begin a call, after %llu",
		         (unsigned long long)atomic_load_explicit(&standstill->ring->ended, memory_order_relaxed));
		return;
	}
	ferry_descriptor_read(call, &fields);
	say_slice(standstill, fields.plan_hash, seq, slice, sizeof slice);
	snprintf(text, bytes, "to go on with call %llu (%s)%s", (unsigned long long)seq,
	         ferry_collective_name(fields.shape & 0xff), slice);
}

bool ferry_standstill_watch(struct ferry_standstill *standstill)
{
	struct ferry_rank *rank = standstill->rank;
	uint64_t taken = atomic_load_explicit(&standstill->ring->taken, memory_order_acquire), now = ferry_now_ns();
	uint64_t looked = last_look(rank);
	char call[160], text[FERRY_MESSAGE_BYTES];
	if (!waits(standstill, taken) || taken != standstill->taken || looked != standstill->looked ||
	    !standstill->since) {
		standstill->taken = taken;
		standstill->looked = looked;
		standstill->since = now;
		standstill->told = false;
		return false;
	}
	uint64_t waited = now - standstill->since;
	if (ferry_rank_failed(rank))
		return waited >= DEAF_NS;
	bool fails = ferry_timeout_over(rank->timeout.fails, waited);
	if (ferry_timeout_over(rank->timeout.replaces, waited) &&
	    ferry_link_kill(&rank->links[rank->domain], rank->timeout.replaces * 1000000000ull, false))
		standstill->told = false;
	if (!fails && (standstill->told || !ferry_timeout_over(rank->timeout.reports, waited)))
		return false;
	standstill->told = true;
	say_call(standstill, taken, call, sizeof call);
	snprintf(text, sizeof text, "%srank %d has waited %llu s for the router of domain %u (process %d) %s",
	         fails ? "FERRY_TIMEOUT: " : "", rank->self, (unsigned long long)(waited / 1000000000), rank->domain,
	         standstill->process, call);
	if (fails)
		ferry_rank_fail(rank, ferryRemoteError, text);
	else
		ferry_log(FERRY_LOG_WARN, "%s", text);
	return fails;
}
