/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Ranks of a ferryrun that have ended, with code 0, before they attached, while others wait for them: a script that
 * left early, or one of several that is another program. ferryrun knows who has ended, and the router of domain 0 who
 * has attached. Called by ferryrun, now and then once a rank has ended and others live.
 */
#ifndef FERRY_LAUNCH_MISSING_RANKS_H
#define FERRY_LAUNCH_MISSING_RANKS_H

#include <stdbool.h>
#include <stdint.h>

/**
 * Asks that router, for at most 0.2 s, and prints a line where a job of all `nranks` ranks waits for one of those that
 * have ended, a set. Returns true if it did.
 */
bool ferry_missing_ranks_tell(const char *directory, uint64_t ended, unsigned nranks);

#endif
