/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What Ferry and NCCL have of a call: decided as all ranks have agreed (partner.h), and Ferry's part of it made. A part
 * is a range of every block of the user's buffers, or of a message, at its exact offset. Of the thread that makes the
 * call.
 *
 * Ferry has the beginning of each block, and what is left for NCCL are blocks with gaps (call.h), which it moves one by
 * one. Of two ranks NCCL can have an AllGather and a ReduceScatter by its own call: there Ferry has the end of the
 * second block, so that what is left of the two is in one piece.
 */
#ifndef FERRY_ORCHESTRATOR_SPLIT_H
#define FERRY_ORCHESTRATOR_SPLIT_H

#include "orchestrator/call.h"
#include "orchestrator/shadow_comm.h"

struct ferry_split {
	struct ferry_shadow_comm *shadow_comm; /* NULL: NCCL has all, and nobody is asked */
	struct ferry_balancer_call asked;
	enum ferry_fabric fabric;
	uint32_t word;
	bool whole, measure;
	struct ferry_tempo_marks marks; /* to be timed before it */
	uint64_t n;                 /* its number */
	uint64_t ferrys, nccls;     /* elements of each block; Ferry's come first, */
	bool mirrored;              /* but in the second of two blocks last */
	struct ferry_sample *sample; /* NULL: it is not measured */
	bool lost;                  /* Ferry could not begin its part */
};

/**
 * Decides. Takes the call's number with all ranks; so once for each call, in the program's order. alone: the only one
 * of its communicator in a group, or in none; or the first of its messages there. first: of another message, that one;
 * else NULL.
 */
void ferry_split_decide(const struct ferry_nccl_call *call, bool alone, const struct ferry_split *first,
                        struct ferry_split *split);

/** Asks Ferry for its part, inside a group of Ferry's. */
ferryResult_t ferry_split_ask(const struct ferry_nccl_call *call, const struct ferry_split *split);

/** The call as it is left for NCCL. */
struct ferry_nccl_call ferry_split_rest(const struct ferry_nccl_call *call, const struct ferry_split *split);

#endif
