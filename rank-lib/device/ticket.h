/* SPDX-License-Identifier: Apache-2.0 */
/**
 * How a host stream and the lanes speak of a call: the stream says "reached", the lanes say "done". (Streams of GPUs
 * have words, ipc/stream_flag.h.)
 */
#ifndef FERRY_DEVICE_TICKET_H
#define FERRY_DEVICE_TICKET_H

#include "ipc/ferry_types.h"

#include <stdatomic.h>
#include <stdbool.h>

/**
 * A call's place in a host stream. Shared by the stream and whoever runs the call; freed by whoever lets go last.
 */
struct ferry_ticket {
	_Atomic uint32_t started;  /* 1: the stream is at the call; the stream */
	_Atomic uint32_t finished; /* 1: it is over; who runs it. Futex word; 2: somebody sleeps */
	_Atomic uint32_t holders;
	ferryResult_t result;
	const char *message;       /* why, if result is a failure; lives as long as the ticket */
	void (*on_start)(struct ferry_ticket *ticket); /* called by the stream after started = 1: wakes the lanes */
	void (*release)(struct ferry_ticket *ticket);  /* frees; called when the last holder lets go */
};

void ferry_ticket_start(struct ferry_ticket *ticket);
/** Stores the result and wakes whoever waits for the ticket. The caller still holds it. */
void ferry_ticket_finish(struct ferry_ticket *ticket, ferryResult_t result, const char *message);
void ferry_ticket_drop(struct ferry_ticket *ticket);
bool ferry_ticket_started(const struct ferry_ticket *ticket);
bool ferry_ticket_finished(struct ferry_ticket *ticket);
void ferry_ticket_wait(struct ferry_ticket *ticket);

#endif
