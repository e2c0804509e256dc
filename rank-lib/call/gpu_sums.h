/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Sums that GPUs make themselves: ReduceScatter, and AllReduce and Reduce of two ranks or where GPUs reach each other.
 * An AllToAll brings each rank the blocks of which it makes the sum, into memory of Ferry's, and a kernel behind it in
 * the stream adds them up with the rank's own, in rank order: the bits are those of every other path. An AllReduce goes
 * on with an AllGather in place, a Reduce with a Gather of the sums, which other ranks than the root have in that
 * memory. Of two ranks a Gather brings the root the other's block whole, and the root alone adds up: its link carries
 * as many bytes, in one step. Copies take no SM, and the kernel waits for nothing.
 *
 * Blocks are cut into pieces. Each step of a piece is a call of its own for the routers. Over links two pieces are
 * under way while a kernel adds up: their calls are open in the stream (open_call.h). A piece takes over the memory of
 * an earlier piece: the kernel of the earlier one comes first in the stream.
 */
#ifndef FERRY_RANK_LIB_CALL_GPU_SUMS_H
#define FERRY_RANK_LIB_CALL_GPU_SUMS_H

#include "rank-lib/call/request.h"
#include "rank-lib/device/device.h"

/**
 * Whether GPUs make the sums of this request, if it is not captured: the same on all ranks for requests that are alike
 * but for their buffers and streams. The request is valid, and no short kernel carries it, which the caller has
 * checked. False for factors of each rank's own (premulsum), calls in parts and users' programs. Pure; any thread.
 */
bool ferry_gpu_sums_carry(const struct ferryComm *comm, const struct ferry_request *request);

/** Whether such sums of this collective go over links between GPUs, not by the host. Constant. */
bool ferry_gpu_sums_push(const struct ferryComm *comm, enum ferry_collective collective);

/** The steps of a piece. */
enum ferry_sum_step { FERRY_SUM_SCATTERS, FERRY_SUM_GATHERS };

/** A call under way, of a thread. */
struct ferry_gpu_sum {
	struct ferry_request request;
	uint32_t begun;                  /* pieces: their first steps are in the stream */
	ferryResult_t result;            /* of the first ones: after an error no other step is begun */
	struct ferry_open_call calls[4]; /* two of each step */
};

/** How many pieces are under way at a time. */
uint32_t ferry_gpu_sums_under_way(const struct ferry_request *request);

/** How many pieces the call has. */
uint32_t ferry_gpu_sums_pieces(const struct ferry_request *request);

/**
 * Gives a step of a piece; false: the call has no such step. A step that gathers sums and has no send buffer has the
 * rank's at sums_at in the stream's memory (ferry_mapped_room).
 */
bool ferry_gpu_sums_step(const struct ferry_request *request, uint32_t piece, enum ferry_sum_step which,
                         struct ferry_request *step);

/** Gives what is left of the call behind its last piece, a few elements; false: nothing is. */
bool ferry_gpu_sums_rest(const struct ferry_request *request, struct ferry_request *rest);

/** Whether blocks come to this rank in the step, and it adds them up. */
bool ferry_gpu_sums_add(const struct ferry_request *step);

/**
 * Bytes of the memory that the blocks of all pieces under way come into: powers of 2, so that few sizes are kept. step:
 * either.
 */
uint64_t ferry_gpu_sums_room(const struct ferry_request *step);

/**
 * Fills in the kernel that adds up behind the step. memory: where the step's first block comes to. The sum lies
 * behind all blocks of the piece if the step has no receive buffer.
 */
void ferry_gpu_sums_kernel(const struct ferry_request *step, char *memory, struct ferry_local_kernel *kernel);

#endif
