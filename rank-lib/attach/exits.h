/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Exits: the end of a process that hosts routers, by exit or by the end of main. Its routers end with it, so it waits
 * until the calls that its ranks have finished are over on the other ranks, which may still need them; for ten seconds
 * at most while nothing moves. A process that is killed, or ends by _exit, does not wait.
 */
#ifndef FERRY_RANK_LIB_ATTACH_EXITS_H
#define FERRY_RANK_LIB_ATTACH_EXITS_H

#include "rank-lib/failover/rank.h"

/** The rank has attached, to routers of which this process hosts some: from now on the exit waits for its calls. */
void ferry_exits_add(struct ferry_rank *rank);

#endif
