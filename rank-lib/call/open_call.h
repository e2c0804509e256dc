/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A call that is put into its stream in two steps: it begins at the first, and work behind the second comes after it.
 * What the caller puts into the stream in between runs beside the call. For who divides calls among Ferry and others.
 *
 * On streams with words (ipc/stream_flag.h). On host devices the first step is the whole call, and nothing runs beside
 * it.
 */
#ifndef FERRY_RANK_LIB_CALL_OPEN_CALL_H
#define FERRY_RANK_LIB_CALL_OPEN_CALL_H

#include "rank-lib/device/device.h"
#include "rank-lib/failover/rank.h"

/* The thread's that makes the call. */
struct ferry_open_call {
	/*
	 * Of the calls of a communicator that are open in a stream at the same time each has a number of its own, from
	 * 0 on, and so a word of its own: what two of them wait for are two things. From the caller.
	 */
	uint32_t slot;
	/*
	 * 0, or by what ferry_launch_took is asked how long it took: FERRY_STAMPS * tag + index, tag not 0; of calls
	 * that are under way at the same time no two have the same index. From the caller.
	 */
	uint32_t stamp;
	ferryStream_t asked; /* the stream, as the caller named it */
	/* from the first step for the second; stays as it is until then */
	struct ferry_device *device; /* NULL: nothing is left to be put into the stream */
	struct ferry_rank *rank;
	ferryComm_t comm; /* held */
	ferryStream_t stream;
	struct ferry_stream_call rest;
};

#define FERRY_OPEN_CALLS 4096u /* slots */

/** Takes over from in_stream, a call that is in the stream but for its end, what the second step needs. */
void ferry_open_call_keep(struct ferry_open_call *open, struct ferry_device *device, struct ferry_rank *rank,
                          ferryStream_t stream, struct ferry_stream_call *in_stream);

/** The second step, whatever has become of the call meanwhile. An error is the rank's: the stream waits for nothing. */
ferryResult_t ferry_open_call_finish(struct ferry_open_call *open);

#endif
