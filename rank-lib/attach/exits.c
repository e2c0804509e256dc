/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/attach/exits.h"

#include "ipc/wait.h"
#include "rank-lib/attach/forks.h"

#include <stdlib.h>
#include <time.h>

#define LOOK_NS     200000
#define PATIENCE_NS 10000000000ull

static uint64_t progress; /* of the jobs that are waited for; the exiting thread */

static bool is_awaited(struct ferry_rank *rank)
{
	if (!atomic_load_explicit(&rank->exit_waits, memory_order_acquire) || ferry_rank_failed(rank) ||
	    ferry_departed_are_over(&rank->shared, 1ull << rank->self))
		return false;
	progress += ferry_job_progress(&rank->shared);
	return true;
}

static void wait_for_others(void)
{
	uint64_t before = 0, since = ferry_now_ns();
	while (progress = 0, ferry_forks_any(is_awaited)) {
		uint64_t now = ferry_now_ns();
		since = progress != before ? now : since;
		before = progress;
		if (now - since > PATIENCE_NS)
			return;
		nanosleep(&(struct timespec){0, LOOK_NS}, NULL);
	}
}

void ferry_exits_add(struct ferry_rank *rank)
{
	static _Atomic uint32_t asked;
	if (!atomic_exchange(&asked, 1))
		atexit(wait_for_others);
	atomic_store_explicit(&rank->exit_waits, 1, memory_order_release);
}
