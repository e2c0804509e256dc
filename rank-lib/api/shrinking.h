/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Shrinking: how ranks of a communicator agree on who goes on without the others, through its arenas alone, which
 * outlive its routers and its failure. By the threads that call ferryCommShrink (comm_shrink.c), one at a time.
 *
 * It goes in rounds: the n-th call of every rank is round n. Once all have come to it that are neither excluded nor
 * gone, whoever sees it first decides, by compare and swap, which ranks the round is for;
 * so all read the same, whoever dies when. Those make a communicator, each says when it has, and whoever sees first
 * that all have says MADE; or GIVEN_UP, where it sees before that one of them is gone, has failed to make it or does
 * not come. That, too, is one compare and swap, so either all return the new communicator or none does, and then they
 * may come to the next round.
 *
 * Who is gone the routers say, who see connections close (`gone` in their arenas): any one of them does. Where they
 * have died with it, so does its process.
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
	uint64_t ranks;           /* whom it is for, once that is decided */
	uint64_t deadline;        /* ferry_now_ns: nobody is waited for longer */
};

/**
 * Comes to that round, from 1, and waits until it is decided whom it is for, this rank included. Errors:
 * ferryRemoteError for ranks that do not come in FERRY_ATTACH_TIMEOUT, that have gone on without this one or that have
 * given the round up; ferryInvalidUsage for ranks that exclude others than this one, or too many rounds; the rank's.
 */
ferryResult_t ferry_shrinking_begin(struct ferry_shrinking *shrinking, struct ferry_rank *rank, uint64_t round,
                                    uint64_t excluded, bool aborts);

/** The rank has made the round's communicator: returns once all have, or the round is given up, which is an error. */
ferryResult_t ferry_shrinking_finish(struct ferry_shrinking *shrinking);

/** The rank has not, so that nobody may. Returns why, as ferry_fail gave it, or who is gone, which comes before. */
ferryResult_t ferry_shrinking_give_up(const struct ferry_shrinking *shrinking, ferryResult_t why);

#endif
