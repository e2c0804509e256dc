/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A call that is put into its stream in two steps: it begins at the first, and work put in after the second follows it.
 * Work that the caller puts into the stream in between runs beside the call. For callers that divide calls between
 * Ferry and other libraries.
 *
 * A call that a kernel adds up for (adds.h) has that kernel in the stream at the first step: what the caller puts in
 * comes behind the kernel.
 *
 * On streams with stream flags (ipc/stream_flag.h). On host devices the first step is the whole call, and nothing runs
 * beside it.
 */
#ifndef FERRY_RANK_LIB_CALL_OPEN_CALL_H
#define FERRY_RANK_LIB_CALL_OPEN_CALL_H

#include "rank-lib/call/stream_flags.h"
#include "rank-lib/failover/rank.h"

struct ferry_gpu_sum;
struct ferry_request;

/* Of the thread that makes the call. */
struct ferry_open_call {
	/*
	 * Calls of a communicator that are open in a stream at the same time have different slots, from 0 on. Each slot
	 * has its own stream flag, so that the stream can wait for each call apart. Set by the caller.
	 */
	uint32_t slot;
	ferryStream_t asked; /* the stream, as the caller named it */
	/* set by the caller: the communicator has a sum open (gpu_sums.h); this call is numbered behind its steps */
	bool follows;
	/* from the first step for the second; stays as it is until then */
	struct ferry_device *device; /* NULL: nothing is left to be put into the stream */
	struct ferry_rank *rank;
	struct ferry_stream_flag_table *flags; /* has the call's flag, held; NULL: captured */
	ferryComm_t comm; /* held */
	struct ferry_request *later; /* a call that follows, whole, for the second step; NULL: none */
	struct ferry_gpu_sum *sum; /* its steps (gpu_sums.h), of which some are open; NULL: it has none */
	ferryStream_t stream;
	struct ferry_stream_call rest;
};

#define FERRY_OPEN_CALLS 4096u /* slots; step i of a call that is open at slot s is at s + FERRY_OPEN_CALLS * (1 + i) */

/* The id of a stream for the call that is open at that slot. */
static inline uint64_t ferry_open_call_stream(uint64_t stream, uint32_t slot)
{
	return stream + ((uint64_t)slot << 48);
}

/* The id, which no call has, under which the sums of the stream use the same memory, one after another. */
static inline uint64_t ferry_open_call_sums(uint64_t stream)
{
	return stream | UINT64_C(0xffff) << 48;
}

/** Takes what the second step needs out of in_stream, a call that is in the stream but for its end. */
void ferry_open_call_keep(struct ferry_open_call *open, struct ferry_device *device, struct ferry_rank *rank,
                          struct ferry_stream_flag_table *flags, ferryStream_t stream,
                          struct ferry_stream_call *in_stream);

/**
 * The second step, whatever has become of the call meanwhile. An error fails the rank: the stream then does not wait.
 */
ferryResult_t ferry_open_call_finish(struct ferry_open_call *open);

#endif
