/* SPDX-License-Identifier: Apache-2.0 */
/**
 * How a host stream and the lanes communicate about a call: the stream stores that it has reached the call, the lanes
 * store that the call is done. (Streams of GPUs have stream flags, ipc/stream_flag.h.)
 */
#ifndef FERRY_DEVICE_TICKET_H
#define FERRY_DEVICE_TICKET_H

#include "ipc/ferry_types.h"

#include <stdatomic.h>
#include <stdbool.h>

/** A call's place in a host stream. The stream and the lanes that run the call share it; the last holder frees it. */
struct ferry_ticket {
	_Atomic uint32_t started;  /* 1: the stream is at the call; written by the stream */
	_Atomic uint32_t finished; /* futex word; 1: the call is over; 2: a waiter, which wrote this, sleeps */
	_Atomic uint32_t holders;
	ferryResult_t result;
	const char *message;       /* why, if result is a failure; lives as long as the ticket */
	/*
	 * Called under the stream's lock when the ticket is put in. idle: the stream is at the call already. Returns
	 * true if the call is over: `result` is set, and the stream does not keep the ticket. Otherwise `holders` must
	 * count the stream. NULL: the stream keeps every ticket.
	 */
	bool (*enter)(struct ferry_ticket *ticket, bool idle);
	void (*on_start)(struct ferry_ticket *ticket); /* called by the stream after started = 1; wakes the lanes */
	/*
	 * Called by a thread that waits for the ticket or polls it: runs the call as far as it gets. waits: returns
	 * once the call is over or the lanes have taken it over. NULL: the lanes run all of the call.
	 */
	void (*help)(struct ferry_ticket *ticket, bool waits);
	void (*release)(struct ferry_ticket *ticket);  /* frees the ticket; called by the last holder */
};

void ferry_ticket_start(struct ferry_ticket *ticket);
/** Stores the result and wakes the threads that wait for the ticket. The caller must be a holder. */
void ferry_ticket_finish(struct ferry_ticket *ticket, ferryResult_t result, const char *message);
void ferry_ticket_drop(struct ferry_ticket *ticket);
bool ferry_ticket_started(const struct ferry_ticket *ticket);
/** Whether the call is over. */
bool ferry_ticket_is_over(const struct ferry_ticket *ticket);
/** Likewise, but calls `help` first, which may end the call. */
bool ferry_ticket_finished(struct ferry_ticket *ticket);
void ferry_ticket_wait(struct ferry_ticket *ticket);

#endif
