/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Calls beside bursts of copies both ways between each GPU and the host, a second on and a second off (Figure 6 of
 * HyLink's paper): what fixed shares reach in either, what adaptive ones do, and what the copies lose.
 */
#ifndef FERRY_TESTS_SHARES_BURSTS_H
#define FERRY_TESTS_SHARES_BURSTS_H

#include "tests/shares/crew.h"

struct bursts_plan {
	enum crew_collective collective;
	size_t bytes, copy_bytes;
	double phase_s;
	int rounds;           /* of a phase without copies and one with them */
	const double *shares; /* fixed ones */
	int nshares;
};

/** NULL, or what went wrong. Prints a line for each of the shares, and what adaptive ones are of an oracle. */
const char *bursts_measure(struct crew *crew, const struct bursts_plan *plan);

#endif
