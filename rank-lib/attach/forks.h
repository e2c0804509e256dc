/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Forks of the application. In a child the parent's communicators are marked as forked: their connections are closed
 * there, and every call refuses them. The handlers take the locks of all tables of this process.
 */
#ifndef FERRY_RANK_LIB_ATTACH_FORKS_H
#define FERRY_RANK_LIB_ATTACH_FORKS_H

#include "rank-lib/failover/rank.h"

/** Makes forks mark this rank. To be called before its first connection. */
void ferry_forks_add(struct ferry_rank *rank);

/** To be called before the rank's connections are closed. Does nothing if the rank was not added. */
void ferry_forks_remove(struct ferry_rank *rank);

#endif
