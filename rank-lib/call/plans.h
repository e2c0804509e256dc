/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The plans of a communicator: found by their key, else synthesized or replaced, compiled, and given to the routers
 * that need them. The cache (plan_cache.h) keeps them; idle ones are taken back from routers here. Under the
 * communicator's lock.
 */
#ifndef FERRY_RANK_LIB_CALL_PLANS_H
#define FERRY_RANK_LIB_CALL_PLANS_H

#include "rank-lib/call/fabrics.h"
#include "rank-lib/call/numbering.h"
#include "rank-lib/call/plan_cache.h"
#include "rank-lib/failover/journal.h"
#include "rank-lib/failover/rank.h"
#include "rank-lib/program/program.h"

struct ferry_plans {
	struct ferry_plan_cache cache;
	/* constant, set by the maker of the communicator */
	struct ferry_rank *rank;
	struct ferry_journal *journal; /* has the plans of the cache, and one that is being given to routers */
	const struct ferry_topology *topology;
	const struct ferry_numbering *numbers;
	const struct ferry_submissions *submissions;
	struct ferry_fabrics *fabrics;
	struct ferry_compile_options options; /* but for what a plan's key says, and the staging */
	bool shown;                           /* FERRY_DEBUG=plan */
	uint64_t late; /* plans that a call had to wait for: not prepared ahead of it */
};

/**
 * Returns the plan for this key, with a reference for the caller to give back. If it is not kept, compiles it and gives
 * it to the routers: rank 0 to those with work in it, every rank to the router that moves its data. Waits for no call.
 * An error after the compiling fails the rank.
 */
ferryResult_t ferry_plans_find(struct ferry_plans *plans, const struct ferry_plan_key *key,
                               struct ferry_plan_entry **entry);

/**
 * Makes the plan before calls need it: if it is not kept, compiles it and gives it to the routers, which have it when
 * this returns. It then stays as if a call had used it. Errors: as above, but none fails the rank, as no rank waits for
 * it.
 */
ferryResult_t ferry_plans_prepare(struct ferry_plans *plans, const struct ferry_plan_key *key);

void ferry_plans_free(struct ferry_plans *plans);

#endif
