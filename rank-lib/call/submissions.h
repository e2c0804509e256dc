/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What a rank has submitted to the router that moves its data, and how much of it is over. Written under the
 * communicator's lock; the router writes the other fields of the ring (ipc/submission.h).
 */
#ifndef FERRY_RANK_LIB_CALL_SUBMISSIONS_H
#define FERRY_RANK_LIB_CALL_SUBMISSIONS_H

#include "ipc/submission.h"
#include "rank-lib/call/numbering.h"
#include "rank-lib/failover/journal.h"
#include "rank-lib/failover/rank.h"

struct ferry_submissions {
	struct ferry_ring *ring;       /* NULL: no router moves its data */
	struct ferry_journal *journal; /* constant; has copies of the records, and counts them */
};

/**
 * Writes a record to the ring as soon as that has room. The router takes submissions before their streams come to them,
 * so that is soon. behind: `more` bytes that follow the head. Error: the rank's, if it fails meanwhile.
 */
ferryResult_t ferry_submissions_write(struct ferry_submissions *submissions, struct ferry_rank *rank,
                                      const struct ferry_numbering *numbers, struct ferry_submission *head,
                                      const void *behind, size_t more);

/** Whether all that was submitted is over; captured calls do not count. */
bool ferry_submissions_idle(const struct ferry_submissions *submissions);

/** Whether the router has taken all that was submitted. */
bool ferry_submissions_taken(const struct ferry_submissions *submissions);

/** Returns when they are idle, or the rank has failed. */
void ferry_submissions_wait(const struct ferry_submissions *submissions, struct ferry_rank *rank);

#endif
