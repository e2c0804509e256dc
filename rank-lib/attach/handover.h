/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What a rank gives to the router that takes the place of one that has ended: itself, with the arenas of its job, then
 * the plans that the old one had. By the thread that attaches, and by the keeper from then on (rank-lib/takeover.h).
 */
#ifndef FERRY_RANK_LIB_ATTACH_HANDOVER_H
#define FERRY_RANK_LIB_ATTACH_HANDOVER_H

#include "rank-lib/held_plans.h"
#include "rank-lib/rank.h"

struct ferry_handover {
	const struct ferry_rank *rank;
	struct ferry_held_plans *plans; /* NULL: none yet */
	uint32_t domain;
	int connection;                 /* to the router; the caller's */
	uint64_t lost_ns;               /* since when the rank has had no router (ferry_now_ns) */
	const _Atomic uint32_t *given_up; /* as in ferry_attach_exchange */
	int process;                    /* out: the router's pidfd, the caller's; -1: it had not answered */
};

/** Errors: those of ferry_attach_exchange. */
ferryResult_t ferry_hand_over(struct ferry_handover *handover);

#endif
