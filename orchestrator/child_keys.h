/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The keys of communicators that are made out of others: the same on all their ranks, and no two alike. Ranks know how
 * often they have made one in the same way, as they do that together: splits are made by all ranks of the parent, what
 * a shrink leaves by those that it leaves. So splits are counted by themselves, and shrinks by the ranks that go; a
 * rank that was not there for some of them has counted the others all the same.
 *
 * Called by constructors.c, from any thread; the list of a communicator's shrinks is under one lock.
 */
#ifndef FERRY_ORCHESTRATOR_CHILD_KEYS_H
#define FERRY_ORCHESTRATOR_CHILD_KEYS_H

#include "orchestrator/communicators.h"

/** Counts a split, which all ranks do whatever their color, and gives the key of what has this color after it. */
struct ferry_nccl_key ferry_nccl_child_keys_split(struct ferry_nccl_comm *parent, int color);

/** NCCL has refused it on this rank, so that it has not been, on any. */
void ferry_nccl_child_keys_unsplit(struct ferry_nccl_comm *parent);

/**
 * Counts a shrink by these ranks, in any order, and gives the key of what it leaves. False, without a key: no list that
 * NCCL takes, a longer one than Ferry has ranks, or no memory.
 */
bool ferry_nccl_child_keys_shrink(struct ferry_nccl_comm *parent, const int *excluded, int count,
                                  struct ferry_nccl_key *key);

/** As of splits. */
void ferry_nccl_child_keys_unshrink(struct ferry_nccl_comm *parent, const int *excluded, int count);

#endif
