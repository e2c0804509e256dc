/* SPDX-License-Identifier: Apache-2.0 */
/** What suites of messages share: players (players.h) that meet at a barrier. */
#ifndef FERRY_TESTS_NCCL_MESSAGES_H
#define FERRY_TESTS_NCCL_MESSAGES_H

#include "tests/nccl/players.h"

static pthread_barrier_t together;

static inline cudaStream_t stream_of(const struct player *player)
{
	return (cudaStream_t)player->stream;
}

static inline int other(const struct player *player, int apart)
{
	return (player->rank.rank + apart + RANKS) % RANKS;
}

static inline void play(void (*work)(struct rank *rank))
{
	pthread_barrier_init(&together, NULL, RANKS);
	run(work);
	pthread_barrier_destroy(&together);
}

/* All ranks say so. */
static inline bool all(const struct player *player, bool yes)
{
	static bool said[RANKS];
	said[player->rank.rank] = yes;
	pthread_barrier_wait(&together);
	for (int i = 0; i < RANKS; i++)
		yes &= said[i];
	pthread_barrier_wait(&together);
	return yes;
}

#endif
