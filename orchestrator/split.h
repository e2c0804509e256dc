/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What Ferry and NCCL have of a call: decides it as all ranks have agreed (shadow_comm.h), and makes Ferry's part. A
 * part is a range of every block of the user's buffers, or of a message, at its exact offset. Of the thread that makes
 * the call.
 *
 * Ferry has the beginning of each block, and NCCL's rest is blocks with gaps (call.h), which it moves one by one. With
 * two ranks NCCL can make an AllGather and a ReduceScatter by its own call: there Ferry has the end of the second
 * block, so that the rest of both is contiguous.
 */
#ifndef FERRY_ORCHESTRATOR_SPLIT_H
#define FERRY_ORCHESTRATOR_SPLIT_H

#include "orchestrator/call.h"
#include "orchestrator/shadow_comm.h"

struct ferry_split {
	struct ferry_shadow_comm *shadow_comm; /* NULL: NCCL has all, without an agreement */
	bool kernel;                           /* a kernel carries it, and all below `asked` is unused */
	uint32_t before;                       /* such calls of the communicator that its group has before it */
	int first;                             /* of its group, up to it (launch.c, first_before) */
	struct ferry_tuner_call asked;
	uint32_t word;
	bool captured;              /* what its stream gets goes into a graph */
	bool measure;
	struct ferry_veto_marks marks; /* to be timed before it */
	uint64_t n;                 /* its number */
	uint64_t ferrys, nccls;     /* elements of each block; Ferry's come first, */
	bool mirrored;              /* but in the second of two blocks last */
	struct ferry_sample *sample; /* NULL: it is not measured */
	bool timed;                  /* its clock runs */
	bool lost;                  /* Ferry could not begin its part */
};

/** To be called for all calls of a group before the first of them is decided: begins Ferry's communicators. */
void ferry_split_expect(const struct ferry_nccl_call *call);

/**
 * Decides. Numbers the call among all ranks; so it is called once for each call, in the program's order. alone: beside
 * what the rank sends to itself and messages by kernels, the call is the only one of its communicator in the group, or
 * the first of messages that are alike in count and type. first: for each further message, the split of the first one;
 * else NULL. look: what was found of the group's streams.
 */
void ferry_split_decide(const struct ferry_nccl_call *call, bool alone, const struct ferry_split *first,
                        struct ferry_clock_look *look, struct ferry_split *split);

/** Whether Ferry would take the whole call, by its buffers and stream. For messages of a rank to itself. */
bool ferry_split_may_ask(const struct ferry_nccl_call *call, const struct ferry_split *split);

/** Gives Ferry its part, inside a group of Ferry's. */
ferryResult_t ferry_split_ask(const struct ferry_nccl_call *call, const struct ferry_split *split);

/** Returns the call that is left for NCCL. */
struct ferry_nccl_call ferry_split_rest(const struct ferry_nccl_call *call, const struct ferry_split *split);

#endif
