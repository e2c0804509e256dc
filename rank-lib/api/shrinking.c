/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/api/shrinking.h"

#include "ipc/deadline.h"
#include "ipc/publish.h"
#include "ipc/rankset.h"

#include <stddef.h>
#include <stdio.h>

static struct ferry_decision *decision_of(const struct ferry_rank *rank, uint64_t round)
{
	return &rank->shared.arenas[0].header->decisions[round - 1];
}

static struct ferry_shrink_post *post_of(const struct ferry_rank *rank, uint32_t other)
{
	return &ferry_rank_line(&rank->shared, other)->shrink;
}

static uint32_t outcome_of(const struct ferry_rank *rank, uint64_t round)
{
	return atomic_load_explicit(&decision_of(rank, round)->outcome, memory_order_acquire);
}

/* The ranks in `of` that take no further part. If a rank's router has died with it, its process's end says so. */
static uint64_t gone(const struct ferry_rank *rank, uint64_t of)
{
	uint64_t ranks = ferry_departed(&rank->shared);
	for (uint32_t domain = 0; domain < rank->ndomains; domain++)
		ranks |= atomic_load_explicit(&rank->shared.arenas[domain].header->gone, memory_order_acquire);
	for (uint64_t left = of & ~ranks; left; left &= left - 1)
		if (ferry_rank_has_ended(rank, ferry_rankset_lowest(left)))
			ranks |= left & -left;
	return ranks & of;
}

static void ring_all(const struct ferry_rank *rank)
{
	ferry_full_fence();
	for (uint32_t other = 0; other < (uint32_t)rank->nranks; other++)
		ferry_doorbell_ring(&ferry_rank_line(&rank->shared, other)->app);
}

/* Stores an outcome unless there is one; returns the outcome that holds. */
static enum ferry_outcome end_as(const struct ferry_shrinking *shrinking, enum ferry_outcome outcome)
{
	uint32_t open = FERRY_OUTCOME_OPEN;
	struct ferry_decision *decision = decision_of(shrinking->rank, shrinking->round);
	if (!atomic_compare_exchange_strong_explicit(&decision->outcome, &open, outcome, memory_order_acq_rel,
	                                             memory_order_acquire))
		return (enum ferry_outcome)open;
	ring_all(shrinking->rank);
	return outcome;
}

static bool is_late(const struct ferry_shrinking *shrinking)
{
	return ferry_now_ns() > shrinking->deadline;
}

/* Sleeps until another rank rings, or for a while: no rank rings when a router has died. */
struct turn {
	struct ferry_doorbell *bell;
	uint32_t ticket;
};

static struct turn begin_turn(const struct ferry_rank *rank)
{
	struct ferry_doorbell *bell = &ferry_rank_line(&rank->shared, (uint32_t)rank->self)->app;
	return (struct turn){bell, ferry_doorbell_prepare(bell)};
}

static void end_turn(const struct turn *turn, bool over)
{
	if (over)
		ferry_doorbell_cancel(turn->bell);
	else
		ferry_doorbell_wait(turn->bell, turn->ticket, 100000);
}

/* ---- the ranks of the round ---- */

/* The ranks among these that have not come to the round. */
static uint64_t absent(const struct ferry_shrinking *shrinking, uint64_t ranks)
{
	uint64_t missing = 0;
	for (uint64_t left = ranks; left; left &= left - 1) {
		uint32_t other = ferry_rankset_lowest(left);
		if (atomic_load_explicit(&post_of(shrinking->rank, other)->round, memory_order_acquire) <
		    shrinking->round)
			missing |= 1ull << other;
	}
	return missing;
}

/* Whether all ranks have made the round's communicator. */
static bool all_have_made_it(const struct ferry_shrinking *shrinking)
{
	for (uint64_t left = shrinking->ranks; left; left &= left - 1)
		if (atomic_load_explicit(&post_of(shrinking->rank, ferry_rankset_lowest(left))->made,
		                         memory_order_acquire) < shrinking->round)
			return false;
	return true;
}

static const char *name_excluded(uint64_t ranks, char text[FERRY_RANKSET_TEXT])
{
	return ranks ? ferry_rankset_print(ranks, text) : "nobody";
}

/* Checks that the ranks that have come exclude the same ranks. */
static ferryResult_t compare_excluded(const struct ferry_shrinking *shrinking, uint64_t ranks)
{
	char mine[FERRY_RANKSET_TEXT], theirs[FERRY_RANKSET_TEXT];
	for (uint64_t left = ranks; left; left &= left - 1) {
		uint32_t other = ferry_rankset_lowest(left);
		const struct ferry_shrink_post *post = post_of(shrinking->rank, other);
		uint64_t excluded = atomic_load_explicit(&post->excluded, memory_order_relaxed);
		if (excluded == shrinking->excluded)
			continue;
		end_as(shrinking, FERRY_OUTCOME_GIVEN_UP);
		return ferry_fail(ferryInvalidUsage, "rank %d excludes %s and rank %u %s", shrinking->rank->self,
		                  name_excluded(shrinking->excluded, mine), other, name_excluded(excluded, theirs));
	}
	return ferrySuccess;
}

static ferryResult_t report_given_up(const struct ferry_shrinking *shrinking)
{
	char text[FERRY_RANKSET_TEXT];
	uint64_t lost = gone(shrinking->rank, shrinking->ranks);
	if (lost)
		return ferry_fail(ferryRemoteError, "%s died or left while the communicator was shrunk; call it again",
		                  ferry_rankset_print(lost, text));
	return ferry_fail(ferryRemoteError,
	                  "another rank has given the shrinking of the communicator up: it says why; call it again");
}

static ferryResult_t report_absent(const struct ferry_shrinking *shrinking, uint64_t missing)
{
	char text[FERRY_RANKSET_TEXT];
	end_as(shrinking, FERRY_OUTCOME_GIVEN_UP);
	return ferry_fail(ferryRemoteError,
	                  "%s did not come to shrink the communicator in time; rank %d waits no longer (a rank that "
	                  "is to be left out though it lives is excluded by all; FERRY_ATTACH_TIMEOUT sets the "
	                  "seconds)",
	                  ferry_rankset_print(missing, text), shrinking->rank->self);
}

/* One look: *decided once it is. */
static ferryResult_t try_to_decide(struct ferry_shrinking *shrinking, bool *decided)
{
	struct ferry_rank *rank = shrinking->rank;
	_Atomic uint64_t *cell = &decision_of(rank, shrinking->round)->ranks;
	uint64_t all = ferry_rankset_all((uint32_t)rank->nranks);
	uint64_t found = atomic_load_explicit(cell, memory_order_acquire);
	uint64_t wanted = all & ~shrinking->excluded;
	wanted &= ~gone(rank, wanted);
	uint64_t missing = absent(shrinking, wanted);
	if (!found && !shrinking->aborts && ferry_rank_failed(rank)) {
		end_as(shrinking, FERRY_OUTCOME_GIVEN_UP);
		return ferry_fail(rank->error, "without FERRY_SHRINK_ABORT: %s", rank->error_message);
	}
	if (!found && outcome_of(rank, shrinking->round) == FERRY_OUTCOME_GIVEN_UP)
		return report_given_up(shrinking);
	if (!found && missing)
		return is_late(shrinking) ? report_absent(shrinking, missing) : ferrySuccess;
	if (!found) {
		ferryResult_t result = compare_excluded(shrinking, wanted);
		if (result)
			return result;
		if (atomic_compare_exchange_strong_explicit(cell, &found, wanted, memory_order_acq_rel,
		                                            memory_order_acquire)) {
			found = wanted;
			ring_all(rank);
		}
	}
	*decided = true;
	shrinking->ranks = found;
	if (!(found >> rank->self & 1) || found & ~all)
		return ferry_fail(ferryRemoteError, "the other ranks have gone on without rank %d", rank->self);
	return ferrySuccess;
}

static bool gives_up(const struct ferry_maker *maker)
{
	const struct ferry_shrinking *shrinking =
	        (const struct ferry_shrinking *)((const char *)maker - offsetof(struct ferry_shrinking, maker));
	if (gone(shrinking->rank, shrinking->ranks))
		end_as(shrinking, FERRY_OUTCOME_GIVEN_UP);
	return outcome_of(shrinking->rank, shrinking->round) == FERRY_OUTCOME_GIVEN_UP;
}

ferryResult_t ferry_shrinking_begin(struct ferry_shrinking *shrinking, struct ferry_rank *rank, uint64_t round,
                                    uint64_t excluded, bool aborts)
{
	long seconds;
	ferryResult_t result = ferry_deadline_seconds(&seconds);
	if (!result && round > FERRY_MOST_ROUNDS)
		result = ferry_fail(ferryInvalidUsage, "a communicator is shrunk, or tried to, at most %d times",
		                    FERRY_MOST_ROUNDS);
	if (result)
		return result;
	*shrinking = (struct ferry_shrinking){.rank = rank,
	                                      .maker = {gives_up},
	                                      .excluded = excluded,
	                                      .aborts = aborts,
	                                      .round = round,
	                                      .deadline = ferry_now_ns() + (uint64_t)seconds * 1000000000u};
	struct ferry_shrink_post *post = post_of(rank, (uint32_t)rank->self);
	atomic_store_explicit(&post->excluded, excluded, memory_order_relaxed);
	atomic_store_explicit(&post->round, round, memory_order_release);
	ring_all(rank);
	for (bool decided = false; !result && !decided;) {
		struct turn turn = begin_turn(rank);
		result = try_to_decide(shrinking, &decided);
		end_turn(&turn, result || decided);
	}
	return result;
}

/* ---- its end ---- */

ferryResult_t ferry_shrinking_finish(struct ferry_shrinking *shrinking)
{
	struct ferry_rank *rank = shrinking->rank;
	uint32_t outcome = FERRY_OUTCOME_OPEN;
	atomic_store_explicit(&post_of(rank, (uint32_t)rank->self)->made, shrinking->round, memory_order_release);
	ring_all(rank);
	while (outcome == FERRY_OUTCOME_OPEN) {
		struct turn turn = begin_turn(rank);
		if (all_have_made_it(shrinking))
			outcome = end_as(shrinking, FERRY_OUTCOME_MADE);
		else if (gone(rank, shrinking->ranks) || is_late(shrinking))
			outcome = end_as(shrinking, FERRY_OUTCOME_GIVEN_UP);
		else
			outcome = outcome_of(rank, shrinking->round);
		end_turn(&turn, outcome != FERRY_OUTCOME_OPEN);
	}
	return outcome == FERRY_OUTCOME_MADE ? ferrySuccess : report_given_up(shrinking);
}

ferryResult_t ferry_shrinking_give_up(const struct ferry_shrinking *shrinking, ferryResult_t why)
{
	end_as(shrinking, FERRY_OUTCOME_GIVEN_UP);
	return gone(shrinking->rank, shrinking->ranks) ? report_given_up(shrinking) : why;
}
