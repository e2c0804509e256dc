/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Send and receive: a stream of slices per ordered pair of ranks, through a small window in the sender's domain. The
 * two lanes concerned are the only parties; no worker is. A message takes at least one slice, so that an empty one is
 * seen too, and the head of the slot says what the sender sent, so that ends that disagree find out. By the lane's
 * thread that has the lane rank.
 *
 * Where devices reach each other's memory, the sender pushes instead: the receiver posts where its buffer is when it is
 * the message's turn, which is once its stream has come to it, and the sender copies straight into it. The slots then
 * have heads alone. Both ends know beforehand which of the two ways it is (rank-lib/call/fabrics.h). The head says it
 * too: where their settings differ, the job fails.
 */
#ifndef FERRY_ROUTER_ENGINE_PAIR_H
#define FERRY_ROUTER_ENGINE_PAIR_H

#include "router/engine/member.h"
#include "router/engine/copies.h"

/** Fills in the slices of a message of transfer->length bytes, pushed or through slots of so many bytes. */
void ferry_pair_cut(struct ferry_transfer *transfer, bool puts, uint32_t slot_bytes);

/** Starts the next slice of a send or receive if its slot, or its data, is there. */
bool ferry_pair_issue(struct ferry_copies *copies, struct ferry_pushes *pushes, struct ferry_lane_rank *lane_rank,
                      struct ferry_call *call, struct ferry_transfer *transfer);

/**
 * Moves all that can be moved now of a send or receive that is not pushed: for a rank's caller, while its lanes have no
 * messages. Returns whether it has moved anything.
 */
bool ferry_pair_move(struct ferry_lane_rank *lane_rank, struct ferry_call *call, struct ferry_transfer *transfer);

/**
 * Before a sleep that has been announced: of the ranks that messages wait for, wakes the lanes of those whose callers
 * have left messages, so that no rank waits for a thread that does something else.
 */
void ferry_pair_wake_left(const struct ferry_lane_rank *lane_rank);

/**
 * Whether a send that has begun, or is to begin, waits for its receiver, or a receive whose turn it is for slices that
 * the sender has not published.
 */
bool ferry_pair_waits(const struct ferry_lane_rank *lane_rank, const struct ferry_transfer *transfer);

/**
 * Describes what such a message waits for, as far as its other end has come: "message 1, which rank 0 has not sent".
 */
void ferry_pair_format_wait(const struct ferry_lane_rank *lane_rank, const struct ferry_transfer *transfer, char *text,
                            size_t bytes);

/** A slice of a send or receive has been copied. */
void ferry_pair_publish(struct ferry_lane_rank *lane_rank, struct ferry_transfer *transfer);

/** The whole message has: the next one between these ranks may go. */
void ferry_pair_done(struct ferry_lane_rank *lane_rank, const struct ferry_call *call, struct ferry_transfer *transfer);

#endif
