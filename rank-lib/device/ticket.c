/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/device/ticket.h"

#include "ipc/wait.h"

void ferry_ticket_start(struct ferry_ticket *ticket)
{
	atomic_store_explicit(&ticket->started, 1, memory_order_release);
	ticket->on_start(ticket);
}

void ferry_ticket_finish(struct ferry_ticket *ticket, ferryResult_t result, const char *message)
{
	ticket->result = result;
	ticket->message = message;
	/* 2: a thread announced that it sleeps. Of the two read-modify-writes the later one sees the earlier one. */
	_Atomic uint32_t *finished = &ticket->finished; /* from the store on, a stream may let the ticket go */
	if (atomic_exchange_explicit(finished, 1, memory_order_acq_rel) == 2)
		ferry_futex_wake(finished, -1, false);
}

bool ferry_ticket_started(const struct ferry_ticket *ticket)
{
	return atomic_load_explicit(&ticket->started, memory_order_acquire);
}

bool ferry_ticket_is_over(const struct ferry_ticket *ticket)
{
	return atomic_load_explicit(&ticket->finished, memory_order_acquire) == 1;
}

bool ferry_ticket_finished(struct ferry_ticket *ticket)
{
	if (!ferry_ticket_is_over(ticket) && ticket->help)
		ticket->help(ticket, false);
	return ferry_ticket_is_over(ticket);
}

void ferry_ticket_wait(struct ferry_ticket *ticket)
{
	uint32_t state = atomic_load_explicit(&ticket->finished, memory_order_acquire);
	if (state != 1 && ticket->help) {
		ticket->help(ticket, true);
		state = atomic_load_explicit(&ticket->finished, memory_order_acquire);
	}
	while (state != 1) {
		if (state == 2 || atomic_compare_exchange_strong_explicit(&ticket->finished, &state, 2,
		                                                          memory_order_acq_rel, memory_order_acquire))
			ferry_futex_wait(&ticket->finished, 2, -1, false);
		state = atomic_load_explicit(&ticket->finished, memory_order_acquire);
	}
}

void ferry_ticket_drop(struct ferry_ticket *ticket)
{
	/* the last holder needs no decrement: no other thread can drop the ticket or add a holder */
	if (atomic_load_explicit(&ticket->holders, memory_order_acquire) == 1 ||
	    atomic_fetch_sub_explicit(&ticket->holders, 1, memory_order_acq_rel) == 1)
		ticket->release(ticket);
}
