/* SPDX-License-Identifier: Apache-2.0 */
/** What the parts of the command share: what it was asked, and the memory that its processes have together. */
#ifndef FERRY_TESTS_HOSTILITY_H
#define FERRY_TESTS_HOSTILITY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define HOSTILE_RANKS 3 /* of a job: two that keep to the rules, one that makes the calls and writes besides */
#define MOST_DOMAINS  2
#define SAID          400

struct options {
	uint64_t writes, seed, first; /* first: of the jobs; others before it are left out */
	int domains, patience_s;
	const char *parts;            /* letters: a, d, l, m */
	bool verbose;
};

/* What a rank of a hostile job has come to. Its own. */
struct fate {
	_Atomic int over; /* 1: the rank has no call under way, nor will have */
	int result;       /* of the call that failed; 0: none did */
	unsigned calls;
	char message[SAID];
};

/* Between the processes of the command. */
struct shared {
	_Atomic uint64_t writes;        /* by hostile ranks into arenas */
	struct fate fates[HOSTILE_RANKS];
	_Atomic int stop;               /* others end */
	_Atomic uint64_t rounds, wrong; /* theirs: of calls that all ranks have judged; elements */
	_Atomic uint64_t longest_ns;    /* of their calls, since it was last set to 0 */
	_Atomic uint64_t handed;        /* hostile descriptors that were sent, in messages of up to 253 of one each */
	_Atomic int done, released;     /* hostile users that have sent all; 1: they may end */
	_Atomic unsigned kinds;         /* that there were: bit k of tests/hostility/strange.h's kind k */
	_Atomic int failed;             /* a call of theirs has */
	char failure[SAID];
};

extern struct options options;
extern struct shared *shared;

/** Where the routers are; the environment that a rank needs is set. */
extern char directory[];

/** A job of ranks on host devices that keep to the rules, in a process of its own, until `stop`. */
pid_t others_start(void);

/**
 * Hostile jobs until so many words have been written into their arenas; false: one hangs, or a rank of one died, and
 * has been told of.
 */
bool scribble(uint64_t writes);

/** So many messages to routers that are not what they should be. */
bool write_letters(uint64_t letters);

/** Descriptors of every kind, so many messages, by users whom root poses as; nothing where this is not root. */
bool hand_over(uint64_t count);

/** Users without other processes: the routers have the second as a tenant. */
#define HOSTILE_STRANGER 61347
#define HOSTILE_TENANT   61348

/** Prints a line about how far it is, each second at most. */
void progress(const char *what, uint64_t done, uint64_t of);

/** Whether routers and others are as they should be; says what is not. */
bool all_is_well(void);

#endif
