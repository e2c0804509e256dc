/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A rank with lanes of its own: the member that they see, and calls with tickets (host streams) or words (streams of
 * GPUs). Everything but the opening and closing happens under the communicator's lock.
 */
#ifndef FERRY_RANK_LIB_DIRECT_H
#define FERRY_RANK_LIB_DIRECT_H

#include "rank-lib/request.h"

/**
 * The arenas are mapped: registers them with the device and starts the lanes. Errors: the device's; ferry_direct_close
 * is to be called all the same.
 */
ferryResult_t ferry_direct_open(struct ferryComm *comm);

/** The lanes end. Calls that are left (the communicator has failed) are let go of. */
void ferry_direct_close(struct ferryComm *comm);

ferryResult_t ferry_direct_collective(const struct ferry_collective_call *collective);
ferryResult_t ferry_direct_pairs(const struct ferry_request *requests, uint32_t nrequests,
                                 const struct ferry_stream_state *stream);

#endif
