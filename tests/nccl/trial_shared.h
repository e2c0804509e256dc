/* SPDX-License-Identifier: Apache-2.0 */
/** What the processes of random programs (nccl_trials) share: the ranks' and the one that watches them. */
#ifndef FERRY_TESTS_TRIAL_SHARED_H
#define FERRY_TESTS_TRIAL_SHARED_H

#include "tests/nccl/trial_call.h"

#include <stdatomic.h>
#include <stdio.h>

#define TRIAL_NOT_HERE  77 /* a worker's exit code: there are no two GPUs or there is no NCCL; */
#define TRIAL_CUT_SHORT 10 /* another one was killed */

enum trial_victim { TRIAL_NOBODY, TRIAL_ROUTER, TRIAL_RANK, TRIAL_VICTIMS };
enum trial_end { TRIAL_EQUAL, TRIAL_ERROR, TRIAL_HUNG, TRIAL_WRONG, TRIAL_ENDS };

/* Of all runs in which such a one was to be killed. Written by rank 0 while it lives, and else by the watcher. */
struct trial_tally {
	atomic_uint ends[TRIAL_ENDS];
	atomic_ullong us, longest_us;
};

struct trial_shared {
	atomic_uint arrived, generation; /* of ranks that meet */
	atomic_bool failed, struck;      /* in this run: all give up; something is being killed */
	atomic_bool dead, over;          /* a rank is gone; the time is */
	atomic_ullong progress, run;     /* run: the seed */
	atomic_uint kills;               /* enum trial_victim: what is to be killed in it */
	atomic_ullong began_us;
	atomic_ullong killed[TRIAL_VICTIMS];
	atomic_uint step[TRIAL_RANKS];
	const char *_Atomic doing[TRIAL_RANKS]; /* the same address in all processes: they are forked */
	struct trial_tally tallies[TRIAL_VICTIMS];
	ncclUniqueId id;
};

struct trial_options {
	unsigned long long seed, runs;
	double until, limit; /* trial_now; and seconds without any progress: a hang */
	unsigned per_cent, fresh;
	size_t most;
	bool one, alone;
};

extern struct trial_shared *trial_shared;
extern struct trial_options trial_options;

/* In seconds. */
double trial_now(void);
void trial_doze_us(unsigned microseconds);

/** A rank, in a thread of its own that begins with trial_player_main. */
struct trial_player;
struct trial_player *trial_player_new(int rank);
void *trial_player_main(void *player);

/** The run that began last has ended so. */
void trial_tally(enum trial_end end);
unsigned trial_tallied(enum trial_end end);
void trial_tally_print(FILE *file);

#endif
