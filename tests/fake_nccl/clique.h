/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The ranks of one communicator of the double, in threads and processes of one machine: memory that they share, named
 * by the unique id (process and descriptor of its maker). As with the real one, a rank that aborts ends its own waiting
 * and nobody else's: the others wait for what will never come, until they abort, too. A process may be killed anywhere:
 * the lock is robust, and waiting is on one word, as condition variables wait for their dead.
 */
#ifndef FERRY_TESTS_FAKE_NCCL_CLIQUE_H
#define FERRY_TESTS_FAKE_NCCL_CLIQUE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CLIQUE_RANKS 8
#define CLIQUE_CHUNK ((size_t)256 * 1024) /* per rank, of a collective */
#define CLIQUE_PIECE ((size_t)64 * 1024)  /* per pair, of a message */
#define CLIQUE_WORDS 8

struct clique_pair {
	size_t bytes; /* 0: empty */
	unsigned char piece[CLIQUE_PIECE];
};

/* All but the chunks and pieces is under the lock; those are written and read between two meetings, or while full. */
struct clique {
	pthread_mutex_t lock;
	_Atomic uint32_t moved; /* futex word: something has changed */
	int nranks, joined;
	bool gone[CLIQUE_RANKS]; /* the ranks that have aborted */
	unsigned meetings;
	int arrived;
	uint64_t words[CLIQUE_RANKS][CLIQUE_WORDS];
	unsigned char chunks[CLIQUE_RANKS][CLIQUE_CHUNK];
	struct clique_pair pairs[CLIQUE_RANKS][CLIQUE_RANKS]; /* from, to */
};

/** A new one, in 128 bytes of id. */
bool clique_make(char id[128]);

/** Opens it; NULL for an id that clique_make has not given. */
struct clique *clique_open(const char id[128]);

/** Comes in and waits for all; false if this rank aborts. */
bool clique_join(struct clique *clique, int rank, int nranks);

/** Waits until all ranks are here; false if this rank aborts. */
bool clique_meet(struct clique *clique, int rank);

/** Around all that is under the lock. */
void clique_lock(struct clique *clique);
void clique_unlock(struct clique *clique);

/** Under the lock: says that something has changed, and waits for that. */
void clique_moved(struct clique *clique);
void clique_wait(struct clique *clique);

/** Tells all ranks eight words and reads theirs. */
bool clique_exchange(struct clique *clique, int rank, const uint64_t mine[CLIQUE_WORDS],
                     uint64_t all[CLIQUE_RANKS][CLIQUE_WORDS]);

/** Ends all waiting of this rank, for good. */
void clique_abort(struct clique *clique, int rank);

void clique_close(struct clique *clique);

#endif
