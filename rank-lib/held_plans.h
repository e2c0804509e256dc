/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The plans that routers have from a rank, to be handed to the next router of a domain as they are. Written under the
 * communicator's lock (rank-lib/plans.c), read by the keeper, for which the list has a lock of its own: who waits for a
 * router holds the communicator's.
 */
#ifndef FERRY_RANK_LIB_HELD_PLANS_H
#define FERRY_RANK_LIB_HELD_PLANS_H

#include "ipc/plan.h"

#include <pthread.h>

struct ferry_held_plan {
	const struct ferry_plan *plan;
	uint32_t domains; /* bit d: the router of domain d has it, or is being given it */
};

struct ferry_held_plans {
	pthread_mutex_t lock;
	struct ferry_held_plan *all;
	size_t count, capacity;
};

void ferry_held_plans_init(struct ferry_held_plans *plans);
void ferry_held_plans_end(struct ferry_held_plans *plans);

/** Before a router is given it: whoever takes that one's place then gets it, too. Error: ferrySystemError. */
ferryResult_t ferry_held_plans_add(struct ferry_held_plans *plans, const struct ferry_plan *plan, uint32_t domains);

/** Before it is taken back, and before it is freed: when this returns nobody reads it. */
void ferry_held_plans_remove(struct ferry_held_plans *plans, const struct ferry_plan *plan);

/**
 * Calls `give` with each plan that the router of that domain has, until one of the calls fails, which is the result. No
 * plan goes meanwhile.
 */
ferryResult_t ferry_held_plans_each(struct ferry_held_plans *plans, uint32_t domain,
                                    ferryResult_t (*give)(void *context, const struct ferry_plan *plan),
                                    void *context);

#endif
