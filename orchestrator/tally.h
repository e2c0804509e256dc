/* SPDX-License-Identifier: Apache-2.0 */
/**
 * How much of a communicator's calls Ferry has had, for the log line at its end. Threads that make calls add to it;
 * nothing depends on it.
 */
#ifndef FERRY_ORCHESTRATOR_TALLY_H
#define FERRY_ORCHESTRATOR_TALLY_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

struct ferry_tally {
	_Atomic uint64_t calls, ferrys_calls; /* all calls; those that Ferry had some of */
	_Atomic uint64_t bytes, ferrys_bytes; /* the same, of the calls' own bytes */
	_Atomic uint64_t kernels_calls, kernels_bytes; /* besides: whole by kernels of Ferry's */
};

/** A call of so many bytes that a kernel carries. */
void ferry_tally_add_kernel(struct ferry_tally *tally, uint64_t bytes);

/** How many those were. */
uint64_t ferry_tally_kernels(struct ferry_tally *tally);

/** A call of so many bytes, of whose elements Ferry has `ferrys` and NCCL `nccls`. ferrys 0: NCCL has all of it. */
void ferry_tally_add(struct ferry_tally *tally, uint64_t bytes, uint64_t ferrys, uint64_t nccls);

/** "Ferry has had 1.2 of 3.4 GB, 5 of 12 calls, 3 by kernels". Returns `text`. */
const char *ferry_tally_print(struct ferry_tally *tally, char *text, size_t size);

#endif
