/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/mover.h"

#include "ipc/endpoint.h"
#include "ipc/process.h"
#include "ipc/wait.h"
#include "router/copy/copy.h"

#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PATIENCE_SECONDS 10
#define SILENT_NS 300000000ull /* one that is well has let go by then, and gives the rank's words back with that */
#define LOOK_US 1000 /* how soon it is looked whether the process has ended, for which nobody rings */

/* Whether that rank's GPU reaches this one's memory, as its router has found. */
static bool reaches(const struct ferry_rank *rank, uint32_t other)
{
	const struct ferry_arena_header *header = rank->shared.arenas[rank->shared.rank_domain[other]].header;
	return atomic_load_explicit(&header->reach[other], memory_order_relaxed) >> rank->self & 1;
}

/* Of ranks of the router's domain; lives: those that have not stopped. */
static bool any_reaches(const struct ferry_mover *mover, bool lives)
{
	const struct ferry_rank *rank = mover->rank;
	for (uint32_t other = 0; other < rank->shared.nranks; other++) {
		if (rank->shared.rank_domain[other] != mover->domain || !reaches(rank, other))
			continue;
		if (!lives || !atomic_load_explicit(&ferry_rank_line(&rank->shared, other)->stopped,
		                                    memory_order_acquire))
			return true;
	}
	return false;
}

void ferry_mover_open(struct ferry_mover *mover, struct ferry_rank *rank, uint32_t domain)
{
	int connection = rank->links[domain].socket;
	struct ucred peer;
	socklen_t bytes = sizeof peer;
	*mover = (struct ferry_mover){.rank = rank, .domain = domain, .process = -1};
	mover->copies = domain == rank->domain || any_reaches(mover, false);
	if (!mover->copies)
		return;
	/* 0: it has no number here. Our own end we would wait for in vain. */
	if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) || peer.pid <= 0 || peer.pid == getpid())
		return;
	mover->pid = peer.pid;
	mover->process = ferry_descriptor_above((int)syscall(SYS_pidfd_open, peer.pid, 0));
	/* The number may be another process's by now, unless the router has been there all the time. */
	if (ferry_endpoint_closed(connection))
		ferry_mover_close(mover);
}

void ferry_mover_close(struct ferry_mover *mover)
{
	if (mover->process >= 0)
		close(mover->process);
	mover->process = -1;
}

void ferry_mover_lose(struct ferry_mover *mover)
{
	if (!mover->lost_ns)
		mover->lost_ns = ferry_now_ns();
}

static bool lane_moves(const struct ferry_rank *rank, uint32_t of, enum ferry_direction direction)
{
	return atomic_load_explicit(&ferry_rank_line(&rank->shared, of)->traffic[direction].moves,
	                            memory_order_acquire);
}

/* The job has failed: of the rank's own lanes, and of those that put into its memory. */
static bool any_moves(const struct ferry_mover *mover)
{
	const struct ferry_rank *rank = mover->rank;
	uint32_t self = (uint32_t)rank->self;
	ferry_full_fence(); /* against that of ferry_traffic_may_move */
	if (mover->domain == rank->domain && (lane_moves(rank, self, FERRY_UP) || lane_moves(rank, self, FERRY_DOWN)))
		return true;
	for (uint32_t other = 0; other < rank->shared.nranks; other++)
		if (rank->shared.rank_domain[other] == mover->domain && reaches(rank, other) &&
		    lane_moves(rank, other, FERRY_UP))
			return true;
	return false;
}

bool ferry_mover_has_words(const struct ferry_mover *mover)
{
	const struct ferry_rank *rank = mover->rank;
	const struct ferry_arena_header *header = rank->shared.arenas[mover->domain].header;
	struct pollfd end = {mover->process, POLLIN, 0};
	return mover->process >= 0 && mover->domain == rank->domain &&
	       !(atomic_load_explicit(&header->let_go, memory_order_acquire) >> rank->self & 1) &&
	       poll(&end, 1, 0) <= 0;
}

bool ferry_mover_may_copy(const struct ferry_mover *mover)
{
	struct ferry_rank *rank = mover->rank;
	const struct ferry_arena_header *header = rank->shared.arenas[mover->domain].header;
	struct pollfd end = {mover->process, POLLIN, 0};
	if (mover->process < 0 || atomic_load_explicit(&header->let_go, memory_order_acquire) >> rank->self & 1)
		return false;
	if (mover->domain != rank->domain && !any_reaches(mover, true))
		return false;
	if (ferry_now_ns() - mover->lost_ns >= SILENT_NS && ferry_rank_failed(rank) && !any_moves(mover))
		return false;
	return poll(&end, 1, 0) <= 0;
}

bool ferry_mover_is_overdue(const struct ferry_mover *mover, char *text, size_t bytes)
{
	if (ferry_now_ns() - mover->lost_ns < PATIENCE_SECONDS * 1000000000ull)
		return false;
	snprintf(text, bytes,
	         "the router of domain %u, process %d, has not ended for %d s, nor let go of the rank: it may still "
	         "copy",
	         mover->domain, mover->pid, PATIENCE_SECONDS);
	return true;
}

void ferry_mover_wait(struct ferry_mover *mover)
{
	struct ferry_doorbell *bell = &ferry_rank_line(&mover->rank->shared, (uint32_t)mover->rank->self)->app;
	char text[200];
	if (!mover->copies)
		return;
	ferry_mover_lose(mover);
	while (1) {
		uint32_t ticket = ferry_doorbell_prepare(bell);
		bool may_copy = ferry_mover_may_copy(mover);
		bool overdue = may_copy && ferry_mover_is_overdue(mover, text, sizeof text);
		if (overdue || !may_copy) {
			ferry_doorbell_cancel(bell);
			if (overdue)
				ferry_log(FERRY_LOG_WARN, "rank %d leaves: %s", mover->rank->self, text);
			return;
		}
		ferry_doorbell_wait(bell, ticket, LOOK_US);
	}
}
