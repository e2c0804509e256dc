/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What a rank has submitted to the router that moves its data, and how far that is. Written under the communicator's
 * lock; the router writes the ring's own counters.
 */
#ifndef FERRY_RANK_LIB_SUBMISSIONS_H
#define FERRY_RANK_LIB_SUBMISSIONS_H

#include "rank-lib/rank.h"

struct ferry_submissions {
	struct ferry_ring *ring; /* NULL: no router moves its data */
	uint64_t written;        /* records */
	uint64_t calls;          /* in them, but for captured ones */
};

/** Whether all that was submitted is over; captured calls do not count. */
bool ferry_submissions_idle(const struct ferry_submissions *submissions);

/** Whether the router has taken all that was submitted. */
bool ferry_submissions_taken(const struct ferry_submissions *submissions);

/** Returns when they are idle, or the rank has failed. */
void ferry_submissions_wait(const struct ferry_submissions *submissions, struct ferry_rank *rank);

#endif
