/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Whether a router may still copy into a rank's memory, seen from the rank. As long as it may, the rank's streams must
 * not go on, nor may its memory be freed. This concerns the router that moves the rank's data, and every router of
 * another domain whose GPUs put into its memory. Opened and closed with the rank's submissions; asked by the router
 * monitor, and later by the thread that ends the communicator.
 *
 * A closed connection does not suffice: when a process is killed the kernel closes its sockets first and ends the work
 * of its GPUs after that. Three facts say more, and one of the first two always comes:
 * - A living router completes all copies of the rank, sets the rank's bit in `released` of its arena (ipc/arena.h), and
 *   closes the connection after that; once the bit is set no thread waits for the router's process to end. A router of
 *   another domain does nothing more for the rank either, once all ranks of its own domain that reach the rank's memory
 *   have stopped (router/engine/put_targets.h): so it is when the job has failed and the rank has not left.
 * - A router that dies before has ended as a process, with all its threads and descriptors, once its pidfd is readable.
 * - A router that is stopped, or hangs, says nothing. But a lane sets `moves` before the first copy of the rank's, and
 *   checks after that whether the job has failed. So if a rank fails the job and then sees `moves` clear in all lanes
 *   that reach its memory, none of them will copy, whenever the router goes on. If `moves` is set there is no such
 *   proof: a thread that was stopped in the driver, between its check and its copy, makes that copy when it goes on,
 *   into memory that may be something else by then. The rank waits for that, 10 seconds at most. Stream flags differ: a
 *   router that goes on may still write the flag of a call that it had, so these flags are not reused.
 */
#ifndef FERRY_RANK_LIB_FAILOVER_COPY_QUIESCE_H
#define FERRY_RANK_LIB_FAILOVER_COPY_QUIESCE_H

#include "rank-lib/failover/rank.h"

struct ferry_copy_quiesce {
	struct ferry_rank *rank;
	uint32_t domain;  /* the router's */
	bool copies;      /* it serves the rank's domain, or reaches its memory; else there is nothing to wait for */
	int process;      /* its pidfd; -1: not available */
	int pid;
	uint64_t lost_ns; /* when the wait for it began; 0: not yet */
};

/**
 * To be called when the connection to that domain is open, its arena mapped, and the job ready. Without a pidfd (an old
 * kernel, one that forbids it, a router in another PID namespace) a closed connection is all that the rank can see.
 */
void ferry_copy_quiesce_open(struct ferry_copy_quiesce *copy_quiesce, struct ferry_rank *rank, uint32_t domain);

void ferry_copy_quiesce_close(struct ferry_copy_quiesce *copy_quiesce);

/** The connection has closed, or the rank waits for it: starts the 10 seconds, unless they have started. */
void ferry_copy_quiesce_lose(struct ferry_copy_quiesce *copy_quiesce);

/** To be called after the rank has left: whether that router may still write to the rank's stream flags. */
bool ferry_copy_quiesce_has_flags(const struct ferry_copy_quiesce *copy_quiesce);

/** To be called after ferry_copy_quiesce_lose: whether a copy may still be under way. Never true without a pidfd. */
bool ferry_copy_quiesce_may_copy(const struct ferry_copy_quiesce *copy_quiesce);

/** Whether that has lasted for 10 seconds, after which no thread waits any more; `text` then says so. */
bool ferry_copy_quiesce_is_overdue(const struct ferry_copy_quiesce *copy_quiesce, char *text, size_t bytes);

/**
 * To be called after the rank has left: returns once no copy may be under way, or when that is overdue, and logs that.
 */
void ferry_copy_quiesce_wait(struct ferry_copy_quiesce *copy_quiesce);

#endif
