/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The router that moves a rank's data, seen from the rank: whether copies of its may still be under way. As long as
 * they may, the rank's streams must not go on, nor may its memory be freed. Opened and closed with the rank's
 * submissions; asked by the keeper, and then by who ends the communicator.
 *
 * That the connection has closed says little: of a process that is killed the kernel closes the sockets first and ends
 * the work of its GPUs after that. Two things tell more, and one of them always comes:
 * - A router that lives takes all copies of the rank to their end, says so in `let_go` of its arena (ipc/arena.h), and
 *   closes the connection after that; so where the bit is set nobody waits for an end that does not come.
 * - A router that dies before has ended as a process, with all its threads and all that it had open, once its pidfd is
 *   readable.
 */
#ifndef FERRY_RANK_LIB_MOVER_H
#define FERRY_RANK_LIB_MOVER_H

#include "rank-lib/rank.h"

struct ferry_mover {
	struct ferry_rank *rank;
	int process;      /* its pidfd; -1: not to be had */
	int pid;
	uint64_t lost_ns; /* when the connection was seen to have closed; 0: not yet */
};

/**
 * The connection to the rank's own domain is open, its arena mapped. Where there is no pidfd (an old kernel, one that
 * forbids it, a router in another name space of processes) a connection that has closed is all that there is to know.
 */
void ferry_mover_open(struct ferry_mover *mover, struct ferry_rank *rank);

void ferry_mover_close(struct ferry_mover *mover);

/** The connection has closed: its patience begins. */
void ferry_mover_lose(struct ferry_mover *mover);

/** After ferry_mover_lose: whether a copy may still be under way. Never true without a pidfd. */
bool ferry_mover_may_copy(const struct ferry_mover *mover);

/** Whether that has lasted for 10 seconds, after which nobody waits any more; then `text` says so. */
bool ferry_mover_is_overdue(const struct ferry_mover *mover, char *text, size_t bytes);

/** The rank has left: returns once no copy may be under way, or when that is overdue, which the log tells then. */
void ferry_mover_wait(struct ferry_mover *mover);

#endif
