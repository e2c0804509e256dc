/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/api/freed.h"

#include "ipc/error.h"
#include "rank-lib/call/comm.h"
#include "rank-lib/call/ranges.h"

#include <time.h>

#define MOST 64 /* communicators that have exported the same memory; others unmap it once it is idle */

static bool lock_within_a_second(struct ferryComm *comm)
{
	struct timespec until;
	if (!pthread_mutex_trylock(&comm->lock))
		return true;
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec++;
	return !pthread_mutex_clocklock(&comm->lock, CLOCK_MONOTONIC, &until);
}

/* Does nothing if the communicator has failed: its router gets no more requests. */
static bool forget(struct ferryComm *comm, uint64_t start, uint64_t end, bool gone)
{
	bool left = false;
	if (comm->rank.forked || !lock_within_a_second(comm))
		return false;
	if (!comm->closed && ferry_comm_is_mapped(comm) && !ferry_rank_failed(&comm->rank)) {
		uint64_t over = atomic_load_explicit(&comm->mapped.submissions.ring->over, memory_order_acquire);
		ferry_captures_sweep(&comm->mapped.captures);
		left = ferry_exports_forget_range(comm->mapped.exports, start, end, gone ? UINT64_MAX : over, gone);
	}
	pthread_mutex_unlock(&comm->lock);
	return left;
}

static bool forget_everywhere(const void *memory, size_t bytes, bool gone)
{
	struct ferry_holders *holders[MOST];
	uint64_t start = (uint64_t)(uintptr_t)memory, end = start + bytes;
	bool left = false;
	uint32_t count = memory ? ferry_ranges_find(start, end < start ? UINT64_MAX : end, holders, MOST) : 0;
	for (uint32_t i = 0; i < count; i++) {
		left |= forget(ferry_comm_of(holders[i]), start, end, gone);
		ferry_holders_drop(holders[i]);
	}
	return left;
}

bool ferry_freed_before(const void *memory, size_t bytes)
{
	return forget_everywhere(memory, bytes, false);
}

void ferry_freed_behind(const void *memory, size_t bytes)
{
	forget_everywhere(memory, bytes, true);
}
