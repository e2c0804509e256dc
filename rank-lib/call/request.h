/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A request to a function of the API: checked here, then launched or, inside a group, kept until its end. By the
 * application's threads.
 */
#ifndef FERRY_RANK_LIB_CALL_REQUEST_H
#define FERRY_RANK_LIB_CALL_REQUEST_H

#include "rank-lib/api/redop.h"
#include "rank-lib/call/exports.h"
#include "rank-lib/call/open_call.h"
#include "rank-lib/failover/rank.h"
#include "rank-lib/program/program.h"
#include "router/engine/call.h"

struct ferry_request {
	enum ferry_collective collective;
	const void *send;
	void *receive;
	uint64_t count;
	ferryDataType_t type;
	ferryRedOp_t op;
	int root; /* or the peer of FERRY_SENDRECV */
	/* alltoallv; copied before the call returns */
	const size_t *sendcounts, *senddispls, *recvcounts, *recvdispls;
	const char *program; /* RunProgram */
	ferryComm_t comm;    /* launch.c's to open */
	ferryStream_t stream;
	enum ferry_direction direction; /* SENDRECV: FERRY_DIR_D2H sends */
	struct ferry_open_call *open;   /* NULL: the call is put into the stream whole */
	struct ferry_left_out left_out; /* of every block; the buffers are those of the whole call all the same */
	/*
	 * 1 + the collective of which this AllToAll or Gather is a step (gpu_sums.h): its blocks come into memory of
	 * Ferry's, sums_at bytes from its start, and `receive` gets their reduction; 0: none
	 */
	uint8_t sums;
	uint64_t sums_at;
	bool shared;                    /* another library may have a part of it: no kernel carries it */
	bool kept;                      /* in a group: `factor` is from when the call was made */
	/* premulsum: the operation may be destroyed before the group ends */
	struct ferry_redop factor;
};

/** Where an alltoallv's parts are, in bytes. */
struct ferry_request_parts {
	uint64_t send_lengths[FERRY_MAX_RANKS], send_offsets[FERRY_MAX_RANKS];
	uint64_t receive_lengths[FERRY_MAX_RANKS], receive_offsets[FERRY_MAX_RANKS];
};

/**
 * The request's buffers as lanes take them. `parts`: memory for those of an alltoallv, for as long as the result is
 * used.
 */
void ferry_request_buffers(const struct ferry_request *request, const struct ferry_rank *rank,
                           const struct ferry_device *device, struct ferry_request_parts *parts,
                           struct ferry_call_buffers *buffers);

/**
 * Checks the request as a call of this rank, except whether its stream may be used, and that its buffers are memory
 * that calls on the device may name. exports: memory that was exported needs no other look; or NULL. Errors:
 * ferryInvalidArgument or ferryInvalidUsage, with the values.
 */
ferryResult_t ferry_request_check(const struct ferry_request *request, const struct ferry_rank *rank,
                                  struct ferry_redops *redops, struct ferry_device *device,
                                  struct ferry_exports *exports);

/** Bytes that the rank reads from its send buffer and writes to its receive buffer. */
void ferry_request_extents(const struct ferry_request *request, const struct ferry_rank *rank, uint64_t *sends,
                           uint64_t *receives);

/** The created reduction that the request names; unused for the built-in ones. */
struct ferry_redop ferry_request_factor(const struct ferry_request *request, struct ferry_redops *redops);

#endif
