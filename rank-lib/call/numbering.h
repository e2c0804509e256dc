/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The numbers that a communicator gives its calls and messages. As long as nothing was captured the n-th call made is
 * number n; from then on rank 0 decides (router/engine/call.h). Under the communicator's lock.
 */
#ifndef FERRY_RANK_LIB_CALL_NUMBERING_H
#define FERRY_RANK_LIB_CALL_NUMBERING_H

#include "router/copy/copy.h"

#include <stdbool.h>
#include <stdint.h>

struct ferry_numbering {
	uint64_t made;  /* calls */
	uint64_t fixed; /* numbers up to this one are in the order of making; UINT64_MAX: all */
	uint64_t messages[2][FERRY_MAX_RANKS]; /* given out so far, by direction and peer */
	/* some messages were captured: those made from then on are numbered as streams come to them */
	bool messages_named;
	/* a group had one end alone of what the rank sends to itself: routers have all of that from then on */
	bool own_by_routers;
};

/* Where a call comes among the others, as in struct ferry_call. */
struct ferry_number {
	uint64_t seq, name;
};

static inline void ferry_numbering_init(struct ferry_numbering *numbering)
{
	*numbering = (struct ferry_numbering){.fixed = UINT64_MAX};
}

/** The number of the call that is made now. */
static inline struct ferry_number ferry_numbering_next(struct ferry_numbering *numbering, bool captured)
{
	struct ferry_number number = {0};
	if (captured && numbering->fixed == UINT64_MAX)
		numbering->fixed = numbering->made;
	uint64_t made = ++numbering->made;
	if (made <= numbering->fixed)
		number.seq = made;
	else
		number.name = made;
	return number;
}

/**
 * Returns the number of the message that is made now, or, once messages are numbered as streams come to them, how many
 * were numbered before.
 */
static inline uint64_t ferry_numbering_message(struct ferry_numbering *numbering, enum ferry_direction direction,
                                               uint32_t peer)
{
	return numbering->messages[direction][peer] += !numbering->messages_named;
}

#endif
