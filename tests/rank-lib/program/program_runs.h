/* SPDX-License-Identifier: Apache-2.0 */
/** Random programs with PUTs as calls of ferryRunProgram: what is drawn for a communicator, and what must come out. */
#ifndef FERRY_TESTS_PROGRAM_RUNS_H
#define FERRY_TESTS_PROGRAM_RUNS_H

#include "bench/trial/trial.h"
#include "rank-lib/program/program.h"

struct program_run {
	struct ferry_trial trial;
	char *text;
	unsigned offset;         /* of its buffers, bytes off a cache line */
	uint32_t puts, forwards, sums; /* statements; sums: ADDs in ranks' memory */
};

/**
 * A program of any collective that ferryRunProgram runs, which pushes, for ranks and domains as they are, and a call of
 * up to `most` elements, in place or not; with `memory` some sum up trees, in ranks' memory. The same seed draws the
 * same. Fails the running test if memory is missing.
 */
void program_run_open(struct program_run *run, const struct ferry_topology *topology, size_t most, bool memory,
                      uint64_t *seed);
void program_run_close(struct program_run *run);

/** Where the rank is; ferry_trial_start's counterpart. */
ferryResult_t program_run_start(const struct program_run *run, const char *send, char *receive, ferryComm_t comm,
                                ferryStream_t stream);

#endif
