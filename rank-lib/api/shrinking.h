/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Shrinking: how ranks of a communicator agree on the ranks of its successor. They use the arenas alone, which outlive
 * the routers and the communicator's failure. Called by the threads in ferryCommShrink (comm_shrink.c), one at a time.
 *
 * Shrinking goes in rounds: the n-th call of every rank is round n. When all ranks that are neither excluded nor gone
 * have come to the round, the first rank that notices decides by compare and swap which ranks the round is for. So all
 * ranks read the same set, even if some die meanwhile. These ranks make a communicator, and each publishes that it has.
 * The first rank to see that all have made it stores MADE. A rank that first sees another one gone, failed or late
 * stores GIVEN_UP. This is one compare and swap, too, so either all ranks return the new communicator or none does, and
 * after GIVEN_UP they may come to the next round.
 *
 * The routers say which ranks are gone: they see connections close and set `gone` in their arenas. One router suffices.
 * When the routers have died with a rank, the end of the rank's process says it.
 */
#ifndef FERRY_RANK_LIB_API_SHRINKING_H
#define FERRY_RANK_LIB_API_SHRINKING_H

#include "rank-lib/failover/rank.h"

struct ferry_shrinking {
	struct ferry_rank *rank;
	struct ferry_maker maker; /* gives up once it is known that the round will be given up */
	uint64_t excluded;
	bool aborts;              /* else it is given up where the communicator fails */
	uint64_t round;           /* from 1 */
	uint64_t ranks;           /* the ranks of the round, once decided */
	uint64_t deadline;        /* ferry_now_ns: the rank stops waiting for others then */
};

/**
 * Enters the round with this number, from 1, and waits until its ranks are decided. Returns ferrySuccess if this rank
 * is one of them. Errors: ferryRemoteError when ranks do not come within FERRY_ATTACH_TIMEOUT, have gone on without
 * this rank or have given up the round; ferryInvalidUsage when ranks exclude different ranks, or after too many rounds;
 * the rank's.
 */
ferryResult_t ferry_shrinking_begin(struct ferry_shrinking *shrinking, struct ferry_rank *rank, uint64_t round,
                                    uint64_t excluded, bool aborts);

/** This rank has made the round's communicator. Returns when all ranks have; an error if the round is given up. */
ferryResult_t ferry_shrinking_finish(struct ferry_shrinking *shrinking);

/**
 * This rank has not made the communicator, so no rank may use it. Returns `why`, as ferry_fail gave it, or
 * ferryRemoteError with the ranks that are gone, which comes first.
 */
ferryResult_t ferry_shrinking_give_up(const struct ferry_shrinking *shrinking, ferryResult_t why);

#endif
