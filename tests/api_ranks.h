/* SPDX-License-Identifier: Apache-2.0 */
/** Several ranks in one process, for suites over the public API. A failed call fails the test with Ferry's message. */
#ifndef FERRY_TESTS_API_RANKS_H
#define FERRY_TESTS_API_RANKS_H

#include "tests/hosted.h"
#include "tests/succeeds.h"

#include <stdio.h>
#include <stdlib.h>

struct ranks {
	int count;
	ferryComm_t comms[FERRY_MAX_RANKS];
};

/** count ranks over so many domains, whose routers are in this process. */
static inline void open_ranks(struct ranks *ranks, int count, int domains)
{
	hosted_routers(domains);
	ranks->count = count;
	OK(ferryCommInitAll(ranks->comms, count, NULL));
}

static inline void close_ranks(struct ranks *ranks)
{
	for (int rank = 0; rank < ranks->count; rank++)
		OK(ferryCommDestroy(ranks->comms[rank]));
}

#endif
