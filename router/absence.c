/* SPDX-License-Identifier: Apache-2.0 */
#include "router/absence.h"

#include "ipc/collective.h"
#include "ipc/publish.h"
#include "ipc/rankset.h"
#include "router/pair.h"

#include <stdio.h>

/* Bit r: rank r, one of `leavers`, has not finished the call, which this rank has submitted. */
static uint64_t missed(const struct ferry_member *member, const struct ferry_call *call, uint64_t leavers)
{
	uint64_t ranks = 0, seq = ferry_call_number(call);
	for (uint64_t left = leavers; left; left &= left - 1) {
		uint32_t rank = ferry_rankset_lowest(left);
		if (atomic_load_explicit(&ferry_rank_line(member->shared, rank)->finished[call->bank],
		                         memory_order_acquire) < seq)
			ranks |= 1ull << rank;
	}
	return ranks;
}

/* A call that may not begin yet waits for calls before it: if those do not end, this lane has one of them, too. */
static bool collective_misses(const struct ferry_seat *seat, const struct ferry_call *call, uint64_t leavers,
                              char *text, size_t bytes)
{
	const struct ferry_member *member = seat->member;
	const char *name = ferry_collective_name(call->shape & 0xff);
	bool up = seat->direction == FERRY_UP;
	/* Rank 0's calls have ended, so all that it has given a number to has begun here. */
	if (up && call->stage == FERRY_CALL_REACHED && call->name && leavers & 1) {
		snprintf(text, bytes, "rank 0 has left the communicator: it gives no number to a call (%s) of rank %u",
		         name, member->rank);
		return true;
	}
	if (up ? call->stage != FERRY_CALL_SUBMITTED : !ferry_call_is_in_run(call, FERRY_DOWN))
		return false;
	uint64_t ranks = missed(member, call, leavers);
	if (!ranks)
		return false;
	snprintf(text, bytes, "rank %u has left the communicator: it takes no part in call %llu (%s) of rank %u",
	         ferry_rankset_lowest(ranks), (unsigned long long)ferry_call_number(call), name, member->rank);
	return true;
}

static bool message_misses(const struct ferry_seat *seat, const struct ferry_call *call, uint64_t leavers, char *text,
                           size_t bytes)
{
	const struct ferry_half *half = &call->halves[seat->direction];
	bool up = seat->direction == FERRY_UP;
	if (up ? call->stage != FERRY_CALL_SUBMITTED : !ferry_call_is_in_run(call, FERRY_DOWN))
		return false;
	for (uint32_t i = 0; i < half->ntransfers; i++) {
		const struct ferry_transfer *transfer = &half->transfers[i];
		if (!(leavers >> transfer->peer & 1) || !ferry_pair_waits(seat, transfer))
			continue;
		snprintf(text, bytes, "rank %u has left the communicator: it %s message %llu %s rank %u",
		         transfer->peer, up ? "takes no" : "sends no", (unsigned long long)transfer->message,
		         up ? "from" : "to", seat->member->rank);
		return true;
	}
	return false;
}

bool ferry_absence_end(struct ferry_seat *seat)
{
	struct ferry_member *member = seat->member;
	char text[160];
	/* First: what is read of these ranks after it is the last that they have published. */
	uint64_t leavers = ferry_departed(member->shared);
	if (!leavers)
		return false;
	for (const struct ferry_call *call = seat->calls; call; call = call->halves[seat->direction].next) {
		if (!(call->steps ? collective_misses : message_misses)(seat, call, leavers, text, sizeof text))
			continue;
		if (!ferry_departed_are_over(member->shared, leavers))
			return false; /* who finishes the last of those calls wakes this lane */
		member->ops->fail(member, ferryRemoteError, text);
		return true;
	}
	return false;
}
