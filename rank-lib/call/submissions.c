/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/call/submissions.h"

bool ferry_submissions_idle(const struct ferry_submissions *submissions)
{
	return atomic_load_explicit(&submissions->ring->ended, memory_order_acquire) == submissions->journal->calls;
}

bool ferry_submissions_taken(const struct ferry_submissions *submissions)
{
	return atomic_load_explicit(&submissions->ring->taken, memory_order_acquire) ==
	       atomic_load_explicit(&submissions->ring->written, memory_order_relaxed);
}

ferryResult_t ferry_submissions_write(struct ferry_submissions *submissions, struct ferry_rank *rank,
                                      const struct ferry_numbering *numbers, struct ferry_submission *head,
                                      const void *behind, size_t more)
{
	struct ferry_doorbell *bell = &ferry_rank_line(&rank->shared, (uint32_t)rank->self)->app;
	head->number = submissions->journal->number + 1;
	head->fixed = numbers->fixed;
	bool written;
	ferryResult_t result;
	while (!(result = ferry_journal_write(submissions->journal, head, behind, more, &written)) && !written) {
		ferry_wake(&rank->shared, 1ull << rank->self, 0, 0); /* the router's thread that makes room may be
		                                                        asleep */
		uint32_t ticket = ferry_doorbell_prepare(bell);
		if (ferry_rank_failed(rank)) {
			ferry_doorbell_cancel(bell);
			return ferry_rank_report_failure(rank);
		}
		if (ferry_submissions_taken(submissions))
			ferry_doorbell_cancel(bell);
		else
			ferry_doorbell_wait(bell, ticket, 100000);
	}
	return result;
}

void ferry_submissions_wait(const struct ferry_submissions *submissions, struct ferry_rank *rank)
{
	struct ferry_doorbell *bell = &ferry_rank_line(&rank->shared, (uint32_t)rank->self)->app;
	while (1) {
		uint32_t ticket = ferry_doorbell_prepare(bell);
		if (ferry_submissions_idle(submissions) || ferry_rank_failed(rank)) {
			ferry_doorbell_cancel(bell);
			return;
		}
		ferry_doorbell_wait(bell, ticket, 100000);
	}
}
