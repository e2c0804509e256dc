/* SPDX-License-Identifier: Apache-2.0 */
/** What a process holds, to find what it does not give back. */
#ifndef FERRY_TESTS_KILLS_HELD_H
#define FERRY_TESTS_KILLS_HELD_H

#include <stdbool.h>
#include <sys/types.h>

struct kills_held {
	unsigned descriptors, mappings, threads; /* mappings: of memory without a name */
	unsigned long long locked, resident;     /* bytes */
};

void kills_hold(pid_t process, struct kills_held *held);

/** The same, but for descriptors and mappings of files that one of so many others has open, too: those are its own. */
void kills_hold_beside(pid_t process, const pid_t *others, int nothers, struct kills_held *held);

/**
 * The same, once it has no more descriptors than at first: connections end a little later. After five seconds, or
 * where `first` is NULL after one, the least.
 */
void kills_hold_at_rest(pid_t process, const pid_t *others, int nothers, const struct kills_held *first,
                        struct kills_held *held);

/** What its descriptors are, on stderr. */
void kills_print_descriptors(pid_t process, const char *name);

/**
 * Whether it is more than comes and goes: says so then, or if `verbose`. windows: how many of Ferry's own it may have
 * more, as the driver lets a graph go behind the call that comes next, which then has another.
 */
bool kills_held_more(const char *name, const struct kills_held *first, const struct kills_held *last, unsigned windows,
                     bool verbose);

#endif
