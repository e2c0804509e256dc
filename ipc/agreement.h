/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Seals: how ranks that make the same calls agree on a word for each of them without waiting for each other. Every rank
 * numbers its calls by itself, from 0. The first to reach call n seals a word for it in a cell that is written once;
 * all others read it. Nobody ever waits, whoever is late, has died, or never comes. In the arena of domain 0: one ring
 * of cells for the calls of all ranks, and a small one for the messages of each pair, with these two as its parties.
 *
 * A word of FERRY_AGREEMENT_NONE says that the call is NCCL's alone. It is what a rank does that has no arena yet; and
 * since a rank may do so for calls that others have long looked up, a split may only be sealed where all look:
 *
 * 1. joined: a rank says once from which number on it looks. Call n may get another word than NONE only from who has
 *    seen that every party has joined, with n or before. Then all parties look n up, and find one word.
 * 2. passed: a rank says below which number it never looks again. Cells are a ring: n's held n - C, n - 2C and so on.
 *    It is sealed anew only by who has seen that every party has passed n - C. So nobody misses what was there.
 * 3. laps: where somebody has not passed that yet, who comes first leaves what is sealed and counts up `laps` in the
 *    same word, by compare and swap: the next so many calls of this cell are NONE's, for everybody. So a rank that runs
 *    ahead of the others by more than the ring, as in the capture of a long graph, goes on.
 *    At FERRY_AGREEMENT_LAPS all later calls of this cell are NONE's for good: nobody seals it again. That is 2^14
 *    times the ring ahead of the slowest, 67 million calls.
 *
 * All that one reads of others stays true: joined is set once, passed grows. Who sees old values is careful where he
 * need not be, and seals NONE. A cell changes by compare and swap only, and only from what was read. So who dies leaves
 * it valid. Two communicators have two arenas. docs/models/seal.pml checks this.
 *
 * withdrawn: a rank whose part of Ferry has failed says so. Who has seen that seals NONE. It goes on looking: what was
 * sealed before holds, for the calls of NCCL on all ranks must have the same lengths. Such a call it makes with NCCL's
 * part alone, and reports an error; its later calls are NCCL's alone once all seals that were under way are past.
 */
#ifndef FERRY_IPC_AGREEMENT_H
#define FERRY_IPC_AGREEMENT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define FERRY_AGREEMENT_NONE  0u
#define FERRY_AGREEMENT_BITS  22 /* of a word */
#define FERRY_AGREEMENT_LAPS  ((1u << 14) - 1)
#define FERRY_AGREEMENT_CALLS 4096u /* cells for calls of all ranks */

struct ferry_agreement_head {
	_Atomic uint32_t withdrawn; /* some party has; anybody, 0 to 1 only */
	char pad[124];
};

/* One party's; it alone writes here. The two are apart, as one is read often and the other written often. */
struct ferry_agreement_party {
	_Atomic uint64_t joined; /* 1 + the first number that it looks up, 0 before; once, release after `passed` */
	char pad0[56];
	_Atomic uint64_t passed; /* it never looks again at numbers below; grows; release, after its look */
	char pad1[56];
};

/* A party's view of a ring. One thread of it at a time. */
struct ferry_agreement {
	struct ferry_agreement_head *head;
	struct ferry_agreement_party *parties;
	/* from the top: 1 + the lap of the number that is sealed (0: none), 28 bits; laps, 14; the word, 22 */
	_Atomic uint64_t *cells;
	uint32_t ncells, nparties, self;
	/* what is known of the others, so that a call need not look at all of them */
	uint64_t first;        /* 1 + the first number that all look up; 0: not all have joined */
	uint64_t least_passed; /* all have passed it */
};

/** Cells for the messages of a pair: a power of two, fewer where there are many pairs. */
uint32_t ferry_agreement_pair_cells(uint32_t nranks);

/** Bytes that a ring takes; zeroed, it is one that nobody has joined. */
uint64_t ferry_agreement_bytes(uint32_t nparties, uint32_t ncells);

/** Views a ring in memory of that many bytes, on a cache line. ncells: a power of two. */
void ferry_agreement_open(struct ferry_agreement *agreement, void *memory, uint32_t nparties, uint32_t ncells,
                          uint32_t self);

/**
 * This party looks up all numbers from n on, and has looked up none yet. Once, by no more than one thread of the
 * party's while none is in ferry_agreement_take.
 */
void ferry_agreement_join(struct ferry_agreement *agreement, uint64_t n);

/**
 * The word of call n, which is `proposal` if nobody has sealed another and all look; the same for all parties. NONE for
 * numbers before that with which this party has joined. It must be called for all others, in order, whatever becomes of
 * the call.
 */
uint32_t ferry_agreement_take(struct ferry_agreement *agreement, uint64_t n, uint32_t proposal);

/** True once all parties have joined: *n is the first number that all look up. */
bool ferry_agreement_joined(struct ferry_agreement *agreement, uint64_t *n);

/** No new split is to be sealed: this party could not do its part. */
void ferry_agreement_withdraw(struct ferry_agreement *agreement);

bool ferry_agreement_withdrawn(const struct ferry_agreement *agreement);

#endif
