/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A double of NCCL: libnccl.so.2 in a folder of its own, for what stands between programs and NCCL, where there is no
 * GPU. It has every function of orchestrator/functions.def, its names weak and called through the PLT as NCCL's are;
 * fake_nccl_old has those of 2.18 alone. Collectives are real, between threads and processes of one machine, over
 * shared memory; they are asynchronous in streams of the double of the CUDA driver or of Ferry's host devices,
 * whichever the program links. On the NULL stream, or where it links neither, calls return when they are done.
 *
 * Environment, read at each call:
 * - FAKE_NCCL_VERSION: what ncclGetVersion gives;
 * - FAKE_NCCL_GBPS: how fast calls are at most, in GB/s of what a rank sends or receives;
 * - FAKE_NCCL_FAIL=AllReduce:3:1: that function's third call in this process returns 1 and does nothing else;
 * - FAKE_NCCL_SPLIT_LATE: ncclCommSplit and ncclCommShrink give out handles only when ncclCommGetAsyncError is asked
 *   the second time, as of communicators that do not block;
 * - FAKE_NCCL_CONF=NAME=value: what NCCL's file says; the process's first constructor puts it into the environment;
 * - FAKE_NCCL_TUNER: the newest version of tuner plugins that it knows (7; 0: it loads none), and FAKE_NCCL_CHANNELS:
 *   how many channels a communicator has (16). It ends the process where ranks come to different answers for a call;
 * - FAKE_NCCL_LOG: a file that gets a line per call of a function.
 */
#ifndef FERRY_TESTS_FAKE_NCCL_H
#define FERRY_TESTS_FAKE_NCCL_H

#include "orchestrator/nccl_types.h"

#include <stddef.h>

/** What a function was called with: the bytes of its arguments, one after the other. */
struct fake_nccl_note {
	const char *name;
	size_t bytes;
	unsigned char text[512];
};

/** The calling thread's last call. */
void fake_nccl_last(struct fake_nccl_note *note);

/** How the communicator's last collective runs: algorithm, protocol, channels. */
void fake_nccl_choice(ncclComm_t comm, int choice[3]);

/** How often this process has called the function ("AllReduce"). */
unsigned long fake_nccl_count(const char *name);

/** From now on functions do nothing but be noted, and return `result`; 0 calls: they work again. */
void fake_nccl_mirror(int on, int result);

/**
 * From now on the n-th call of the thread (0: none) calls ncclBcast with the same communicator first, as NCCL itself.
 */
void fake_nccl_call_itself(int on);

#endif
