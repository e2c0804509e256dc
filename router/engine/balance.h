/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The planner of uneven traffic: divides what each rank sends to each other one among its paths. It begins with direct
 * paths and moves bytes off the most loaded resources, to where both ends of a move become equally loaded, so at no
 * time is it worse than direct paths (NIMBLE's greedy can be: docs/lab/topologies.md). Integers alone: the same paths
 * and bytes give the same division in every process. A balance belongs to one thread, which is no lane's.
 */
#ifndef FERRY_ROUTER_ENGINE_BALANCE_H
#define FERRY_ROUTER_ENGINE_BALANCE_H

#include "ipc/paths.h"

#define FERRY_LEAST_PIECE (1u << 20) /* bytes of a pair on a path, where it has several */

/* Of a resource. */
struct ferry_load {
	uint64_t time;   /* units by weight */
	uint32_t weight; /* as in ferry_resource */
	uint32_t price;  /* of a unit more */
};

struct ferry_balancer {
	const struct ferry_paths *paths; /* outlives it */
	uint64_t *flow;                  /* by path: bytes */
	struct ferry_load *load;         /* by resource */
	uint64_t *hidden;                /* by use of a path: the times while it is hidden */
	uint32_t *sources;               /* room for the paths that load a resource */
	uint32_t shift;                  /* a unit is 1 << shift bytes */
	uint64_t least;                  /* units of FERRY_LEAST_PIECE */
	uint32_t looks;                  /* at paths: a plan may take so many */
	uint32_t price_shift;            /* a price is of a time without so many of its bits */
	uint64_t worst;                  /* units by weight: the most loaded resource */
	double direct_us, us;            /* the most loaded resource by direct paths, and as divided */
};

/** False without memory. */
bool ferry_balance_open(struct ferry_balancer *balance, const struct ferry_paths *paths);
void ferry_balance_close(struct ferry_balancer *balance);

/**
 * Divides bytes[from * nranks + to] (a rank's own are 0) into balance->flow. What is under FERRY_LEAST_PIECE stays on
 * its direct path. The work is bounded by a count, not by time, so that it ends at the same place everywhere.
 */
void ferry_balance_plan(struct ferry_balancer *balance, const uint64_t *bytes);

/** At how many paths a plan looks at most, give or take those of one resource. */
uint32_t ferry_balance_looks(uint32_t nranks);

/** Microseconds that the resource is busy with its load. */
double ferry_balance_busy_us(const struct ferry_balancer *balance, uint32_t resource);

#endif
