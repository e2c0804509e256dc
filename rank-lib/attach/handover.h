/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What a rank gives to the router that succeeds one that has ended: itself, with the arenas of its job, then what its
 * journal holds for that router: plans, exports and submissions that are not over. Called by the thread that attaches,
 * which has no journal yet, and later by the router monitor (rank-lib/failover/takeover.h). Makes no CUDA calls.
 */
#ifndef FERRY_RANK_LIB_ATTACH_HANDOVER_H
#define FERRY_RANK_LIB_ATTACH_HANDOVER_H

#include "rank-lib/failover/journal.h"
#include "rank-lib/failover/rank.h"

/* What a rank adds if a router moves its data. Called by the router monitor. */
struct ferry_handover_ops {
	/** Returns the rank's GPU, FERRY_GPU_BYTES, and the descriptor of its stream flags. */
	const uint8_t *(*gpu)(void *context, int *flags);
	/** Returns whether a stream waits for a call. */
	bool (*waits)(void *context);
	/** Called when another router serves the domain. */
	void (*renewed)(void *context, uint32_t domain);
	/** Called when no router takes over: nothing moves the rank's data any more. The rank fails, or has failed. */
	void (*lost)(void *context, uint32_t domain);
};

struct ferry_handover {
	const struct ferry_rank *rank;
	struct ferry_journal *journal; /* NULL: none yet */
	/* NULL: the rank is on a host device, and is no foreign rank of that router's */
	const struct ferry_handover_ops *ops;
	void *context;
	uint32_t domain;
	int connection;                 /* to the router; the caller's */
	uint64_t lost_ns;               /* since when the rank has had no router (ferry_now_ns) */
	const _Atomic uint32_t *given_up; /* as in ferry_attach_exchange */
	int process;                    /* out: the router's pidfd, which the caller closes; -1: it has not answered */
};

/**
 * Hands the rank over. Errors: those of ferry_attach_exchange; ferryRefused if the router cannot move the data of a
 * rank that needs it.
 */
ferryResult_t ferry_hand_over(struct ferry_handover *handover);

#endif
