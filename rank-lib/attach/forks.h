/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Forks of the application. A child has its parent's communicators as forked ones: their connections are closed in it,
 * and every call refuses them. The handlers take the locks of all tables of this process, and call nothing above them.
 */
#ifndef FERRY_RANK_LIB_ATTACH_FORKS_H
#define FERRY_RANK_LIB_ATTACH_FORKS_H

#include "rank-lib/failover/rank.h"

/** From now on a child gets this rank as a forked one. Before the first connection. */
void ferry_forks_add(struct ferry_rank *rank);

/** Before its connections are closed, and before it is freed. Nothing happens if it was not added. */
void ferry_forks_remove(struct ferry_rank *rank);

#endif
