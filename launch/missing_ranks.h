/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Ranks of a ferryrun that have ended, with code 0, before they attached, while others wait for them: a script that
 * left early, or one of several that is another program. ferryrun knows which ranks have ended, and the router of
 * domain 0 which have attached. Called by ferryrun, now and then once a rank has ended and others live.
 */
#ifndef FERRY_LAUNCH_MISSING_RANKS_H
#define FERRY_LAUNCH_MISSING_RANKS_H

#include <stdbool.h>
#include <stdint.h>

/**
 * Asks the router of domain 0, whose socket is in `directory`, for at most 0.2 s. Prints a line if a job of all
 * `nranks` ranks waits for a rank that has ended (`ended`, a set), and returns whether it did.
 */
bool ferry_missing_ranks_tell(const char *directory, uint64_t ended, unsigned nranks);

#endif
