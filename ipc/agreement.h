/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Agreement: how ranks that make the same calls agree on a word for each call without waiting for each other. Every
 * rank numbers its calls by itself, from 0. The first rank to reach call n seals a word for it in a cell that is
 * written once; all other ranks read that word. No rank ever waits, even if another one is late, has died, or never
 * comes. The cells lie in the arena of domain 0: one ring of cells for the calls of all ranks, and a small ring for the
 * messages of each pair, whose two ranks are its parties.
 *
 * The word FERRY_AGREEMENT_NONE says that the call is NCCL's alone. A rank that has no arena yet makes its calls this
 * way. It may still do so for calls that other ranks have long looked up, so a split may only be sealed where all ranks
 * look the call up. Three rules ensure this:
 *
 * 1. joined: each rank says once from which call number on it looks words up. Only a party that has seen that every
 *    party has joined, with n or a lower number, may seal call n with a word other than NONE. Then all parties look n
 *    up, and find one word.
 * 2. passed: each rank says below which number it never looks again. The cells are a ring: the cell of n held n - C,
 *    n - 2C and so on before. Only a party that has seen that every party has passed n - C seals the cell anew. So no
 *    party misses the word that was there.
 * 3. laps: where some party has not passed n - C yet, the first party to come leaves the sealed word as it is and
 *    counts up `laps` in the cell, by compare and swap: that many next calls of this cell are NCCL's alone, for all
 *    parties. So a rank that runs ahead of the others by more than the ring, as in the capture of a long graph, goes
 *    on. At FERRY_AGREEMENT_LAPS all later calls of this cell are NCCL's alone for good: no party seals it again. That
 *    takes a rank that is 2^14 times the ring ahead of the slowest, 67 million calls.
 *
 * What a party reads of the others stays true: `joined` is set once, and `passed` only grows. A party that sees old
 * values is more careful than it need be, and seals NONE. A cell changes by compare and swap only, and only from the
 * value that was read. So a party that dies leaves the cell valid. Two communicators have two arenas.
 * docs/models/agreement.pml checks this.
 *
 * withdrawn: a rank whose part of Ferry has failed sets this. A party that has seen it seals NONE. The rank itself goes
 * on looking words up: what was sealed before holds, because the calls of NCCL must have the same lengths on all ranks.
 * It makes such a call with NCCL's part alone, and reports an error; its later calls are NCCL's alone once all seals
 * that were under way are past.
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
	_Atomic uint32_t withdrawn; /* some party has withdrawn; any party, 0 to 1 only */
	char pad[124];
};

/* One party's; it alone writes here. The two are apart, as one is read often and the other written often. */
struct ferry_agreement_party {
	_Atomic uint64_t joined; /* 1 + the first number that it looks up, 0 before; once, release after `passed` */
	char pad0[56];
	_Atomic uint64_t passed; /* it never reads the cells of lower numbers again; grows; release, after its read */
	char pad1[56];
};

/* A party's view of a ring. One thread of it at a time. */
struct ferry_agreement {
	struct ferry_agreement_head *head;
	struct ferry_agreement_party *parties;
	/* from the top: 1 + the lap of the number that is sealed (0: none), 28 bits; laps, 14; the word, 22 */
	_Atomic uint64_t *cells;
	uint32_t ncells, nparties, self;
	/* state of the others that is already known, so that a call need not read all of them */
	uint64_t first;        /* 1 + the first number that all look up; 0: not all have joined */
	uint64_t least_passed; /* all have passed it */
};

/** Cells for the messages of a pair: a power of two, fewer where there are many pairs. */
uint32_t ferry_agreement_pair_cells(uint32_t nranks);

/** Bytes that a ring takes; zeroed memory is a ring that no party has joined. */
uint64_t ferry_agreement_bytes(uint32_t nparties, uint32_t ncells);

/** Views a ring in memory of that many bytes, on a cache line. ncells: a power of two. */
void ferry_agreement_open(struct ferry_agreement *agreement, void *memory, uint32_t nparties, uint32_t ncells,
                          uint32_t self);

/**
 * This party looks up all numbers from n on, and has looked up none yet. Called once, by a thread of the party, while
 * no other thread of it is in ferry_agreement_take.
 */
void ferry_agreement_join(struct ferry_agreement *agreement, uint64_t n);

/**
 * Returns the word of call n: `proposal` if no party has sealed another word and all parties look n up, else the sealed
 * word. It is the same for all parties. Returns NONE for numbers before the one that this party has joined with. It
 * must be called for every other number, in order, whatever becomes of the call.
 */
uint32_t ferry_agreement_take(struct ferry_agreement *agreement, uint64_t n, uint32_t proposal);

/** True once all parties have joined: *n is the first number that all look up. */
bool ferry_agreement_joined(struct ferry_agreement *agreement, uint64_t *n);

/** Withdraws this party, which cannot do its part of splits any more. Never undone. */
void ferry_agreement_withdraw(struct ferry_agreement *agreement);

bool ferry_agreement_withdrawn(const struct ferry_agreement *agreement);

#endif
