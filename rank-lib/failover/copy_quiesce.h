/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A router that copies into a rank's memory, seen from the rank: whether copies of its may still be under way. As long
 * as they may, the rank's streams must not go on, nor may its memory be freed. That is the router that moves the rank's
 * data, and any of another domain whose GPUs put into its memory. Opened and closed with the rank's submissions; asked
 * by the router monitor, and then by who ends the communicator.
 *
 * That the connection has closed says little: of a process that is killed the kernel closes the sockets first and ends
 * the work of its GPUs after that. Three things tell more, and one of the first two always comes:
 * - A router that lives takes all copies of the rank to their end, says so in `released` of its arena (ipc/arena.h),
 *   and closes the connection after that; so where the bit is set nobody waits for an end that does not come. One of
 *   another domain does nothing for the rank any more, either, when all ranks of its own that reach the rank's memory
 *   have stopped (router/engine/put_targets.h): it is so when the job has failed and the rank has not left.
 * - A router that dies before has ended as a process, with all its threads and all that it had open, once its pidfd is
 *   readable.
 * - One that is stopped, or hangs, says nothing. But a lane notes in `moves` that copies of the rank's may be under
 *   way, before the first of them, and looks after that whether the job has failed. So who has failed it, and then sees
 *   that no lane which reaches the rank's memory moves anything, knows that none will, whenever the router goes on.
 *   With copies under way there is no such end: whatever of them the device does, a thread that was stopped in the
 *   driver, between its look and its copy, makes that copy when it goes on, into memory that may be something else by
 *   then. So that is waited for, 10 seconds at most. Words are another matter: a router that goes on may pass one whose
 *   call it had, so those are not used again.
 */
#ifndef FERRY_RANK_LIB_FAILOVER_COPY_QUIESCE_H
#define FERRY_RANK_LIB_FAILOVER_COPY_QUIESCE_H

#include "rank-lib/failover/rank.h"

struct ferry_copy_quiesce {
	struct ferry_rank *rank;
	uint32_t domain;  /* the router's */
	bool copies;      /* it is the rank's own, or reaches its memory; else there is nothing to wait for */
	int process;      /* its pidfd; -1: not to be had */
	int pid;
	uint64_t lost_ns; /* when it began to be waited for; 0: not yet */
};

/**
 * The connection to that domain is open, its arena mapped, and the job ready. Where there is no pidfd (an old kernel,
 * one that forbids it, a router in another name space of processes) a connection that has closed is all that there is
 * to know.
 */
void ferry_copy_quiesce_open(struct ferry_copy_quiesce *copy_quiesce, struct ferry_rank *rank, uint32_t domain);

void ferry_copy_quiesce_close(struct ferry_copy_quiesce *copy_quiesce);

/** The connection has closed, or the rank waits for it: its patience begins, if it has not. */
void ferry_copy_quiesce_lose(struct ferry_copy_quiesce *copy_quiesce);

/** The rank has left: whether that router may still write to the rank's words. */
bool ferry_copy_quiesce_has_flags(const struct ferry_copy_quiesce *copy_quiesce);

/** After ferry_copy_quiesce_lose: whether a copy may still be under way. Never true without a pidfd. */
bool ferry_copy_quiesce_may_copy(const struct ferry_copy_quiesce *copy_quiesce);

/** Whether that has lasted for 10 seconds, after which nobody waits any more; then `text` says so. */
bool ferry_copy_quiesce_is_overdue(const struct ferry_copy_quiesce *copy_quiesce, char *text, size_t bytes);

/** The rank has left: returns once no copy may be under way, or when that is overdue, which the log tells then. */
void ferry_copy_quiesce_wait(struct ferry_copy_quiesce *copy_quiesce);

#endif
