/* SPDX-License-Identifier: Apache-2.0 */
/**
 * How soon shares are good: each size with fixed shares, in turn, and then from a cold start, call by call. Prints a
 * line for each collective and size.
 */
#ifndef FERRY_TESTS_SHARES_COLD_H
#define FERRY_TESTS_SHARES_COLD_H

#include "tests/shares/crew.h"

struct cold_plan {
	bool collectives[CREW_COLLECTIVES];
	const double *shares; /* of the host, or of pushes where those take its place */
	int nshares;
	const size_t *sizes;
	int nsizes;
	int calls;            /* from a cold start, */
	/* behind so many of another collective: until routers know the buffers calls are NCCL's */
	int before;
	const char *log;      /* FERRY_SHARES_LOG of those; NULL: none */
};

/** NULL, or what went wrong. *late: sizes that took more than five calls to come within a tenth of the best. */
const char *cold_measure(struct crew *crew, const struct cold_plan *plan, int *late);

#endif
