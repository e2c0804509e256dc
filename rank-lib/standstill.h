/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Standstill: that the router which moves a rank's data does not look at the rank any more, though it lives: it is
 * stopped, or hangs. Its own lanes cannot tell, so the rank's keeper does, four times a second: a router takes
 * submissions whether their streams have come to them or not, and its lanes note every 50 ms that they have looked at a
 * rank that has calls (ipc/arena.h). Whom a router waits for that does look, its lanes say (router/watch.h).
 */
#ifndef FERRY_RANK_LIB_STANDSTILL_H
#define FERRY_RANK_LIB_STANDSTILL_H

#include "rank-lib/plan_cache.h"
#include "rank-lib/submissions.h"
#include "rank-lib/words.h"

struct ferry_standstill {
	/* constant, from who watches */
	struct ferry_rank *rank;
	const struct ferry_ring *ring;
	struct ferry_word_table *words;
	const struct ferry_plan_cache *plans;
	pthread_mutex_t *lock; /* of the plans: tried, and where somebody has it they are not looked at */
	int process;           /* the router's, for people */
	/* the keeper's: what the router had taken and when its lanes had looked since `since`; told: so was said */
	uint64_t taken, looked, since;
	bool told;
};

/**
 * Looks, and tells what there is to tell. True: the rank has failed, for that or for what somebody else has found, and
 * the router does not let its streams go on.
 */
bool ferry_standstill_watch(struct ferry_standstill *standstill);

#endif
