/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The keys of communicators that are made out of others: the same on all their ranks, and no two alike. The ranks know
 * how often they have made a communicator in the same way, as they do that together: all ranks of the parent make a
 * split, the remaining ranks make a shrink. So splits are counted by themselves, and shrinks by the ranks that they
 * exclude. A rank that took no part in some of the shrinks has still counted all others.
 *
 * Called by constructors.c, from any thread; the list of a communicator's ways is under one lock.
 */
#ifndef FERRY_ORCHESTRATOR_CHILD_KEYS_H
#define FERRY_ORCHESTRATOR_CHILD_KEYS_H

#include "orchestrator/communicators.h"

/** The way of splits, in which all ranks take part whatever their color. */
extern const struct ferry_nccl_key ferry_nccl_child_keys_split;

/**
 * The way of shrinks by these ranks, in any order. Returns false if NCCL refuses the list, if it is longer than Ferry
 * has ranks, or without memory.
 */
bool ferry_nccl_child_keys_shrink(const int *excluded, int count, struct ferry_nccl_key *way);

/**
 * Counts a communicator made in this way, and gives the key of the one of this color. False: a count was missed for
 * want of memory, now or before.
 */
bool ferry_nccl_child_keys_count(struct ferry_nccl_comm *parent, const struct ferry_nccl_key *way, int color,
                                 struct ferry_nccl_key *key);

/** NCCL has refused it on this rank, and so on all ranks: takes the count back. */
void ferry_nccl_child_keys_uncount(struct ferry_nccl_comm *parent, const struct ferry_nccl_key *way);

#endif
