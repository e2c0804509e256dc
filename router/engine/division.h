/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Divisions: how much of each block of an alltoallv goes over which of its paths, call by call. The plan has every path
 * (ipc/paths.h) and one DIVIDE, which a worker of one domain's router runs once all ranks have submitted the call and
 * so have announced what they send and expect (router/engine/order.c). It compares these lengths, plans, and stores in
 * the counter of each instruction how much that moves, 0 for most. Lanes read that once DIVIDE is published, so nothing
 * has moved where lengths differ. It depends on lengths and links alone: a router that takes this one's place comes to
 * the same division. One per plan and router; each parity has scratch of its own, which one worker uses at a time.
 */
#ifndef FERRY_ROUTER_ENGINE_DIVISION_H
#define FERRY_ROUTER_ENGINE_DIVISION_H

#include "ipc/publish.h"
#include "router/engine/balance.h"

struct ferry_division {
	const struct ferry_plan *plan; /* outlives it */
	struct ferry_paths paths;
	struct ferry_divided {
		struct ferry_balancer balance;
		uint64_t *sends, *expects; /* bytes by pair: from * nranks + to */
		bool planned;              /* balance->flow is for `sends` */
	} parities[FERRY_PARITIES];
};

/** Errors: ferrySystemError without memory; ferryProgramError if an instruction names a path that does not exist. */
ferryResult_t ferry_division_open(const struct ferry_plan *plan, struct ferry_division **division);
void ferry_division_close(struct ferry_division *division);

/**
 * Divides call `seq`, which all ranks have submitted. False: lengths differ, and text says which. The caller publishes
 * DIVIDE.
 */
bool ferry_division_run(struct ferry_division *division, const struct ferry_job_arenas *shared, uint64_t seq,
                        char text[FERRY_MESSAGE_BYTES]);

#endif
