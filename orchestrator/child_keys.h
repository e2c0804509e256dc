/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The keys of communicators that are made out of others: the same on all their ranks, and no two alike. The ranks know
 * how often they have made a communicator in the same way, as they do that together: all ranks of the parent make a
 * split, the remaining ranks make a shrink. So splits are counted by themselves, and shrinks by the ranks that they
 * exclude. A rank that took no part in some of the shrinks has still counted all others.
 *
 * Called by constructors.c, from any thread; the list of a communicator's shrinks is under one lock.
 */
#ifndef FERRY_ORCHESTRATOR_CHILD_KEYS_H
#define FERRY_ORCHESTRATOR_CHILD_KEYS_H

#include "orchestrator/communicators.h"

/**
 * Counts a split, in which all ranks take part whatever their color, and returns the key of this color's communicator.
 */
struct ferry_nccl_key ferry_nccl_child_keys_split(struct ferry_nccl_comm *parent, int color);

/** NCCL has refused the split on this rank, and so on all ranks: takes the count back. */
void ferry_nccl_child_keys_unsplit(struct ferry_nccl_comm *parent);

/**
 * Counts a shrink by these ranks, in any order, and gives the key of the remaining communicator. Returns false, without
 * a key, if NCCL refuses the list, if it is longer than Ferry has ranks, or without memory.
 */
bool ferry_nccl_child_keys_shrink(struct ferry_nccl_comm *parent, const int *excluded, int count,
                                  struct ferry_nccl_key *key);

/** The same for a shrink that NCCL has refused. */
void ferry_nccl_child_keys_unshrink(struct ferry_nccl_comm *parent, const int *excluded, int count);

#endif
