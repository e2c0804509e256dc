/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What a function of the API asks for: checked here, then launched or, inside a group, kept until its end. By the
 * application's threads.
 */
#ifndef FERRY_RANK_LIB_REQUEST_H
#define FERRY_RANK_LIB_REQUEST_H

#include "rank-lib/comm.h"

struct ferry_request {
	enum ferry_collective collective;
	const void *send;
	void *receive;
	uint64_t count;
	ferryDataType_t type;
	ferryRedOp_t op;
	int root;                                             /* or the peer of FERRY_SENDRECV */
	const size_t *sendcounts, *senddispls, *recvcounts, *recvdispls; /* alltoallv; copied before the call returns */
	const char *program;                                  /* RunProgram */
	struct ferryComm *comm;
	ferryStream_t stream;
	enum ferry_direction direction;                       /* SENDRECV: FERRY_UP sends */
	bool kept;                                            /* in a group: `factor` is from when the call was made */
	/* premulsum: the operation may be destroyed before the group ends */
	struct ferry_redop factor;
};

/* A collective with its plan and its place in the order of calls. */
struct ferry_collective_call {
	const struct ferry_request *request;
	/* with a reference, which whoever makes the call takes over, and gives back if that fails */
	struct ferry_plan_entry *entry;
	uint32_t shape;                 /* as in the descriptor */
	uint64_t seq, name, after;      /* as in struct ferry_call */
	struct ferry_redop factor;      /* premulsum */
	struct ferry_stream_state stream;
	/* mapped: of the send and the receive buffer; generation 0: none is needed */
	struct ferry_buffer_name names[2];
	/* mapped: what is named in place of a buffer that cannot be; NULL: the buffer itself */
	char *windows[2];
};

/** Where an alltoallv's parts are, in bytes. */
struct ferry_request_parts {
	uint64_t send_lengths[FERRY_MAX_RANKS], send_offsets[FERRY_MAX_RANKS], receive_lengths[FERRY_MAX_RANKS],
	        receive_offsets[FERRY_MAX_RANKS];
};

/**
 * The request's buffers as lanes take them. `parts`: memory for those of an alltoallv, for as long as the result is
 * used.
 */
void ferry_request_buffers(const struct ferry_request *request, struct ferry_request_parts *parts,
                           struct ferry_call_buffers *buffers);

/**
 * Of the next message made: its number, or, once such are numbered as streams come to them, how many were numbered
 * before.
 */
static inline uint64_t ferry_message_number(struct ferryComm *comm, enum ferry_direction direction, uint32_t peer)
{
	return comm->messages[direction][peer] += !comm->messages_named;
}

/**
 * What is wrong with it: ferryInvalidArgument or ferryInvalidUsage with the values, or why the communicator has failed.
 */
ferryResult_t ferry_request_check(const struct ferry_request *request);

/** The created reduction that the request names; unused for the built-in ones. Takes comm->lock unless `locked`. */
struct ferry_redop ferry_request_factor(const struct ferry_request *request, bool locked);

#endif
