/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Between lane.c and pair.c: what the lanes do for point-to-point transfers, and what those need of a lane.
 * Called by the lane's own thread only.
 */
#ifndef FERRY_RANK_LIB_LANE_H
#define FERRY_RANK_LIB_LANE_H

#include "ipc/environment.h"
#include "rank-lib/comm.h"

/** Starts the copy of one slice; false if the device refused (the communicator has failed then). */
bool ferry_lane_copy(struct ferry_lane *lane, struct ferry_call *call, struct ferry_transfer *transfer, void *destination,
                     const void *source, uint64_t bytes, bool crosses);

/** Starts the next slice of a send or receive if its slot, or its data, is there. */
bool ferry_pair_issue(struct ferry_lane *lane, struct ferry_call *call, struct ferry_transfer *transfer);

/** A slice of a send or receive has been copied. */
void ferry_pair_publish(struct ferry_lane *lane, struct ferry_transfer *transfer);

/** The whole message has: the next one between these ranks may go. */
void ferry_pair_done(struct ferry_lane *lane, const struct ferry_transfer *transfer);

/** ferry_ticket.on_start and on_forget of every call. Any thread. */
void ferry_call_started(struct ferry_ticket *ticket);
void ferry_call_forgotten(struct ferry_ticket *ticket);

/** call.c: readies the call for its run in this bank. */
void ferry_call_arm(struct ferry_call *call, uint32_t bank);

#endif
