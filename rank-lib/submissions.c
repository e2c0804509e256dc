/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/submissions.h"

bool ferry_submissions_idle(const struct ferry_submissions *submissions)
{
	return atomic_load_explicit(&submissions->ring->ended, memory_order_acquire) == submissions->calls;
}

bool ferry_submissions_taken(const struct ferry_submissions *submissions)
{
	return atomic_load_explicit(&submissions->ring->taken, memory_order_acquire) ==
	       atomic_load_explicit(&submissions->ring->written, memory_order_relaxed);
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
