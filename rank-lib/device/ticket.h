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
	_Atomic uint32_t started;  /* 1: the stream is at the call; the stream */
	_Atomic uint32_t finished; /* 1: the call is over; written by its lane. Futex word; 2: a thread sleeps */
	_Atomic uint32_t holders;
	ferryResult_t result;
	const char *message;       /* why, if result is a failure; lives as long as the ticket */
	/*
	 * Called under the stream's lock as the ticket comes; idle: the stream is at it. True: the call is over, with
	 * its result, and the stream does not take it. Else one holder is the stream. NULL: the stream takes every one.
	 */
	bool (*enter)(struct ferry_ticket *ticket, bool idle);
	void (*on_start)(struct ferry_ticket *ticket); /* called by the stream after started = 1: wakes the lanes */
	/*
	 * Called by a thread that waits for the ticket, or looks whether it is finished: does what it can for the call.
	 * waits: returns once the call is over, or others go on with it. NULL: others do everything.
	 */
	void (*help)(struct ferry_ticket *ticket, bool waits);
	void (*release)(struct ferry_ticket *ticket);  /* frees the ticket; called by the last holder */
};

void ferry_ticket_start(struct ferry_ticket *ticket);
/** Stores the result and wakes the threads that wait for the ticket. The caller still holds it. */
void ferry_ticket_finish(struct ferry_ticket *ticket, ferryResult_t result, const char *message);
void ferry_ticket_drop(struct ferry_ticket *ticket);
bool ferry_ticket_started(const struct ferry_ticket *ticket);
/** Whether the call is over. */
bool ferry_ticket_is_over(const struct ferry_ticket *ticket);
/** The same, where a started call may be brought to its end, as in ferry_ticket_wait. */
bool ferry_ticket_finished(struct ferry_ticket *ticket);
void ferry_ticket_wait(struct ferry_ticket *ticket);

#endif
