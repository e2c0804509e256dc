/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/failover/copy_quiesce.h"

#include "ipc/deadline.h"
#include "ipc/endpoint.h"
#include "ipc/process.h"
#include "ipc/wait.h"
#include "router/copy/copy.h"

#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* a healthy router has released the rank by then, and gives the rank's stream flags back with that */
#define SILENT_NS 300000000ull
#define LOOK_US   1000 /* the end of a process rings no doorbell: it is checked so often */

/* Whether that rank's GPU reaches this one's memory, as its router has found. */
static bool reaches(const struct ferry_rank *rank, uint32_t other)
{
	const struct ferry_arena_header *header = rank->shared.arenas[rank->shared.rank_domain[other]].header;
	return atomic_load_explicit(&header->reach[other], memory_order_relaxed) >> rank->self & 1;
}

/* Whether any rank of the router's domain reaches this one's memory; lives: one that has not stopped. */
static bool any_reaches(const struct ferry_copy_quiesce *copy_quiesce, bool lives)
{
	const struct ferry_rank *rank = copy_quiesce->rank;
	for (uint32_t other = 0; other < rank->shared.nranks; other++) {
		if (rank->shared.rank_domain[other] != copy_quiesce->domain || !reaches(rank, other))
			continue;
		if (!lives ||
		    !atomic_load_explicit(&ferry_rank_line(&rank->shared, other)->stopped, memory_order_acquire))
			return true;
	}
	return false;
}

void ferry_copy_quiesce_open(struct ferry_copy_quiesce *copy_quiesce, struct ferry_rank *rank, uint32_t domain)
{
	int connection = rank->links[domain].socket;
	struct ucred peer;
	socklen_t bytes = sizeof peer;
	*copy_quiesce = (struct ferry_copy_quiesce){.rank = rank, .domain = domain, .process = -1};
	copy_quiesce->copies = domain == rank->domain || any_reaches(copy_quiesce, false);
	if (!copy_quiesce->copies)
		return;
	/* 0: the router is in another PID namespace. To wait for the end of this process itself would be in vain. */
	if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) || peer.pid <= 0 || peer.pid == getpid())
		return;
	copy_quiesce->pid = peer.pid;
	copy_quiesce->process = ferry_descriptor_above((int)syscall(SYS_pidfd_open, peer.pid, 0));
	/* The number may be another process's by now, unless the router has been there all the time. */
	if (ferry_endpoint_closed(connection))
		ferry_copy_quiesce_close(copy_quiesce);
}

void ferry_copy_quiesce_close(struct ferry_copy_quiesce *copy_quiesce)
{
	if (copy_quiesce->process >= 0)
		close(copy_quiesce->process);
	copy_quiesce->process = -1;
}

void ferry_copy_quiesce_lose(struct ferry_copy_quiesce *copy_quiesce)
{
	if (!copy_quiesce->lost_ns)
		copy_quiesce->lost_ns = ferry_now_ns();
}

static bool lane_moves(const struct ferry_rank *rank, uint32_t of, enum ferry_direction direction)
{
	return atomic_load_explicit(&ferry_rank_line(&rank->shared, of)->traffic[direction].moves,
	                            memory_order_acquire);
}

/* The job has failed: whether the rank's own lanes, or those that put into its memory, may copy. */
static bool any_moves(const struct ferry_copy_quiesce *copy_quiesce)
{
	const struct ferry_rank *rank = copy_quiesce->rank;
	uint32_t self = (uint32_t)rank->self;
	ferry_full_fence(); /* pairs with the fence of ferry_traffic_may_move */
	if (copy_quiesce->domain == rank->domain &&
	    (lane_moves(rank, self, FERRY_DIR_D2H) || lane_moves(rank, self, FERRY_DIR_H2D)))
		return true;
	for (uint32_t other = 0; other < rank->shared.nranks; other++)
		if (rank->shared.rank_domain[other] == copy_quiesce->domain && reaches(rank, other) &&
		    lane_moves(rank, other, FERRY_DIR_D2H))
			return true;
	return false;
}

bool ferry_copy_quiesce_has_flags(const struct ferry_copy_quiesce *copy_quiesce)
{
	const struct ferry_rank *rank = copy_quiesce->rank;
	const struct ferry_arena_header *header = rank->shared.arenas[copy_quiesce->domain].header;
	struct pollfd end = {copy_quiesce->process, POLLIN, 0};
	return copy_quiesce->process >= 0 && copy_quiesce->domain == rank->domain &&
	       !(atomic_load_explicit(&header->released, memory_order_acquire) >> rank->self & 1) &&
	       poll(&end, 1, 0) <= 0;
}

bool ferry_copy_quiesce_may_copy(const struct ferry_copy_quiesce *copy_quiesce)
{
	struct ferry_rank *rank = copy_quiesce->rank;
	const struct ferry_arena_header *header = rank->shared.arenas[copy_quiesce->domain].header;
	struct pollfd end = {copy_quiesce->process, POLLIN, 0};
	if (copy_quiesce->process < 0 ||
	    atomic_load_explicit(&header->released, memory_order_acquire) >> rank->self & 1)
		return false;
	if (copy_quiesce->domain != rank->domain && !any_reaches(copy_quiesce, true))
		return false;
	if (ferry_now_ns() - copy_quiesce->lost_ns >= SILENT_NS && ferry_rank_failed(rank) && !any_moves(copy_quiesce))
		return false;
	return poll(&end, 1, 0) <= 0;
}

bool ferry_copy_quiesce_is_overdue(const struct ferry_copy_quiesce *copy_quiesce, char *text, size_t bytes)
{
	if (ferry_now_ns() - copy_quiesce->lost_ns < FERRY_PATIENCE_S * 1000000000ull)
		return false;
	snprintf(text, bytes,
	         "the router of domain %u, process %d, has not ended for %d s, nor let go of the rank: it may still "
	         "copy",
	         copy_quiesce->domain, copy_quiesce->pid, FERRY_PATIENCE_S);
	return true;
}

void ferry_copy_quiesce_wait(struct ferry_copy_quiesce *copy_quiesce)
{
	struct ferry_doorbell *bell = &ferry_rank_line(&copy_quiesce->rank->shared, (uint32_t)copy_quiesce->rank->self)
	                                       ->app;
	char text[200];
	if (!copy_quiesce->copies)
		return;
	ferry_copy_quiesce_lose(copy_quiesce);
	while (1) {
		uint32_t ticket = ferry_doorbell_prepare(bell);
		bool may_copy = ferry_copy_quiesce_may_copy(copy_quiesce);
		bool overdue = may_copy && ferry_copy_quiesce_is_overdue(copy_quiesce, text, sizeof text);
		if (overdue || !may_copy) {
			ferry_doorbell_cancel(bell);
			if (overdue)
				ferry_log(FERRY_LOG_WARN, "rank %d leaves: %s", copy_quiesce->rank->self, text);
			return;
		}
		ferry_doorbell_wait(bell, ticket, LOOK_US);
	}
}
