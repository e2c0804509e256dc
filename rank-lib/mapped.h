/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A rank whose router moves its data: it names its buffers, submits its calls through shared memory, and has no lanes.
 * All but opening and closing happens under the communicator's lock.
 */
#ifndef FERRY_RANK_LIB_MAPPED_H
#define FERRY_RANK_LIB_MAPPED_H

#include "ipc/attach.h"
#include "rank-lib/request.h"

/**
 * Before the rank attaches: whether it would have its router move its data. If so *words is what it hands over, and
 * uuid which GPU it is on. False: it has lanes of its own, because the device, FERRY_ROUTER=embedded or
 * FERRY_LANES=rank wants it so.
 */
bool ferry_mapped_wants(struct ferryComm *comm, uint8_t uuid[FERRY_GPU_BYTES], int *words);

/**
 * All have attached, and its router has said that it will: tries it with a buffer. ferryInvalidUsage, with the reason:
 * it does not work here, the rank is to have lanes of its own. Other errors: ferry_mapped_close is to be called all the
 * same.
 */
ferryResult_t ferry_mapped_open(struct ferryComm *comm);

/** No more calls. The connections are still open. */
void ferry_mapped_close(struct ferryComm *comm);

/** Names the buffers of a collective; before it gets its place among the calls, as this may fail. */
ferryResult_t ferry_mapped_name(struct ferry_collective_call *collective);
ferryResult_t ferry_mapped_collective(const struct ferry_collective_call *collective);
ferryResult_t ferry_mapped_pairs(const struct ferry_request *requests, uint32_t nrequests,
                                 const struct ferry_stream_state *stream);

/** Whether all that was submitted is over; captured calls do not count. */
bool ferry_mapped_is_idle(const struct ferryComm *comm);

/** Whether the router has taken all that was submitted. */
bool ferry_mapped_is_taken(const struct ferryComm *comm);

#endif
