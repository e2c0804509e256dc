/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Runs trials (bench/trial/trial.h) with buffers that show every stray byte: guards on both sides, an offset that
 * leaves only the element's own alignment, and a copy of the input. Used by the suites over the public API;
 * single-threaded.
 */
#ifndef FERRY_TESTS_TRIAL_RUN_H
#define FERRY_TESTS_TRIAL_RUN_H

#include "bench/trial/trial.h"

struct trial_buffers {
	char *memory[2]; /* send, receive */
	char *area[2];   /* inside the guards */
	size_t bytes[2];
	char *send, *receive; /* to call with */
	char *kept;           /* copy of the send area, out of place */
};

/** Allocates, guards and fills; false if there is no memory. offset: bytes that the areas are off a cache line. */
bool trial_buffers_open(struct ferry_trial *trial, int rank, unsigned offset, struct trial_buffers *buffers);
/** Elements wrong and bytes damaged at this rank after the call. */
size_t trial_buffers_wrong(struct ferry_trial *trial, int rank, const struct trial_buffers *buffers);
void trial_buffers_close(struct trial_buffers *buffers);

/**
 * All ranks in this process: makes the call on comms[0 .. nranks-1], waits, judges. streams may be NULL (default
 * streams). Prints what went wrong, and returns whether nothing did.
 */
bool trial_run(struct ferry_trial *trial, ferryComm_t *comms, ferryStream_t *streams, unsigned offset);

/** Makes premulsum's reduction for a rank; others are themselves. */
ferryResult_t trial_op(const struct ferry_trial *trial, int rank, ferryComm_t comm, ferryRedOp_t *op);

/** One line with every value of the trial, for failures. */
const char *trial_text(const struct ferry_trial *trial);

/** The next value of a xorshift sequence; *state must not be 0. */
uint64_t trial_random(uint64_t *state);

#endif
