/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What the processes of router_kills share: a job's ranks, and the one that kills and judges. A job is a communicator
 * of some ranks; there are two of them where ranks are killed. A rank's fields are that rank's, but for pid and ended.
 */
#ifndef FERRY_TESTS_KILLS_SHARED_H
#define FERRY_TESTS_KILLS_SHARED_H

#include "ferry.h"
#include "tests/kills/kills_held.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KILLS_RANKS  8    /* of a job, at most */
#define KILLS_CALLS  256  /* of a round, at most */
#define KILLS_STAMPS 1024 /* of a rank's last batches */
#define KILLS_TEXT   512
#define KILLS_SPARES 8    /* of a domain, at most, as ferryrun has it */

struct kills_rank {
	atomic_int pid;
	atomic_int ended;                   /* a wait status + 1, once it has ended */
	atomic_ullong batches;              /* of calls that are over */
	atomic_ullong stamps[KILLS_STAMPS]; /* when each of the last ones was, in ns */
	atomic_ullong calls, wrong;
	atomic_uint step;      /* call of the round */
	atomic_ullong told_ns; /* when it heard that a call had failed; 0: it has not */
	char text[KILLS_TEXT]; /* and why; before told_ns */
	struct kills_held first, last;
	uint64_t hashes[KILLS_CALLS]; /* of what each call gave in the round that nobody disturbs */
};

struct kills_job {
	int nranks;
	atomic_uint arrived, generation; /* of ranks that meet at the end of a round */
	atomic_uint rounds;
	atomic_bool stop, stopped; /* after this round: the killer; and what they have agreed on */
	atomic_bool failed;        /* a rank has heard that a call failed */
	atomic_uint ready;         /* ranks that have their communicator */
	bool loses_ranks;          /* one is killed, and those that are left go on */
	int victim;                /* that one; before it is killed */
	ferryUniqueId id, next;    /* next: of a communicator that follows */
	ferryUniqueId heir;        /* of that of the ranks that are left when one was killed */
	struct kills_rank ranks[KILLS_RANKS];
};

struct kills_options {
	unsigned long long seed, kills, twice, both, still, slow, meanwhile;
	int nranks, domains, ncalls;
	unsigned fresh, spares; /* spares: of each domain, that stand by */
	size_t bytes;
	double every, spread, limit, seconds; /* seconds */
	unsigned long long captured;  /* per cent of the calls */
	bool by_ferryrun, ranks, gpu, messages, alltoallv, sums, verbose;
};

struct kills_shared {
	struct kills_options options;
	atomic_int next_rank; /* of those that ferryrun starts */
	struct kills_job jobs[2];
	char folder[128]; /* of the routers' sockets */
};

uint64_t kills_now_ns(void);
void kills_doze_us(unsigned microseconds);
uint64_t kills_random(uint64_t *state);
/** Between 0 and 1. */
double kills_chance(uint64_t *state);

/** A rank's life, in a process of its own: its exit code. */
int kills_rank_main(struct kills_shared *shared, struct kills_job *job, int rank);

#endif
