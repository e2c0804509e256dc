/* SPDX-License-Identifier: Apache-2.0 */
#include "router/pair.h"

#include "ipc/error.h"
#include "ipc/leavers.h"

#include <math.h>

/*
 * The root is slicing.c's: each slice costs its lanes the same, whatever its length, and a message takes the time of
 * one more slice than it has. The factor was found by trying (docs/lab/send-receive.md).
 */
#define COST_BYTES 400000.0
#define SLICE_LEAST (64u << 10)
#define ROUND 4096u

uint32_t ferry_pair_slice(uint32_t slot_bytes, uint64_t length)
{
	uint64_t best = (uint64_t)sqrt(COST_BYTES * (double)length);
	best = best < SLICE_LEAST ? SLICE_LEAST : best;
	best = best > slot_bytes ? slot_bytes : best;
	/* Slices of equal length: the last one is not a stub. */
	uint64_t nslices = length ? (length + best - 1) / best : 1, longest = (length + nslices - 1) / nslices;
	uint64_t slice = length ? (longest + ROUND - 1) / ROUND * ROUND : best;
	return slice < slot_bytes ? (uint32_t)slice : slot_bytes;
}

/* window: NULL, or where to put the address of the slot that the slice goes through. */
static struct ferry_pair_line *line_of(const struct ferry_seat *seat, const struct ferry_transfer *transfer,
                                       uint64_t slice, char **window)
{
	const struct ferry_member *member = seat->member;
	uint32_t self = member->rank;
	uint32_t source = seat->direction == FERRY_UP ? self : transfer->peer;
	uint32_t destination = seat->direction == FERRY_UP ? transfer->peer : self;
	const struct ferry_arena *arena = &member->shared->arenas[member->shared->rank_domain[source]];
	if (window)
		*window = ferry_pair_window(arena, source, destination) +
		          slice % FERRY_PAIR_SLOTS * arena->pair_slot_bytes;
	return &arena->pair_lines[source * arena->nranks + destination];
}

static bool message_agrees(struct ferry_seat *seat, const struct ferry_transfer *transfer,
                           const struct ferry_pair_slot *slot)
{
	uint64_t bytes = atomic_load_explicit(&slot->bytes, memory_order_relaxed);
	uint32_t type = atomic_load_explicit(&slot->type, memory_order_relaxed);
	uint64_t message = atomic_load_explicit(&slot->message, memory_order_relaxed);
	if (bytes == transfer->length && type == transfer->type && message == transfer->message)
		return true;
	char text[FERRY_MESSAGE_BYTES];
	const char *name = ferry_type_name((ferryDataType_t)type);
	snprintf(text, sizeof text,
	         "message %llu from rank %u to rank %u: sent %llu bytes of %s, received as %llu bytes of %s",
	         (unsigned long long)transfer->message, transfer->peer, seat->member->rank, (unsigned long long)bytes,
	         name ? name : "an unknown type", (unsigned long long)transfer->length,
	         ferry_type_name((ferryDataType_t)transfer->type));
	seat->member->ops->fail(seat->member, ferryInvalidUsage, text);
	return false;
}

bool ferry_pair_waits(const struct ferry_seat *seat, const struct ferry_transfer *transfer)
{
	if (transfer->finished == transfer->nslices)
		return false;
	if (seat->direction == FERRY_UP)
		return true;
	const struct ferry_pair_line *line = line_of(seat, transfer, 0, NULL);
	return transfer->current && transfer->base + transfer->nslices >
	                                    atomic_load_explicit(&line->up.value, memory_order_acquire);
}

bool ferry_pair_issue(struct ferry_copies *copies, struct ferry_seat *seat, struct ferry_call *call,
                      struct ferry_transfer *transfer)
{
	char *window;
	if (transfer->issued == transfer->nslices)
		return false;
	if (!transfer->current) {
		if (seat->message[transfer->peer] != transfer->message)
			return false;
		/* What nobody will take is not sent into the window, as if it had arrived (router/absence.h). */
		if (seat->direction == FERRY_UP && ferry_leavers(seat->member->shared) >> transfer->peer & 1)
			return false;
		transfer->current = true;
		transfer->base = seat->slices[transfer->peer];
	}
	uint64_t slice = transfer->base + transfer->issued;
	struct ferry_pair_line *line = line_of(seat, transfer, slice, &window);
	uint64_t start = (uint64_t)transfer->issued * transfer->slice;
	uint64_t bytes = transfer->length - start < transfer->slice ? transfer->length - start : transfer->slice;
	struct ferry_pair_slot *slot = &line->slots[slice % FERRY_PAIR_SLOTS];
	if (seat->direction == FERRY_UP) {
		if (slice >= atomic_load_explicit(&line->down.value, memory_order_acquire) + FERRY_PAIR_SLOTS)
			return false;
		atomic_store_explicit(&slot->message, transfer->message, memory_order_relaxed);
		atomic_store_explicit(&slot->bytes, transfer->length, memory_order_relaxed);
		atomic_store_explicit(&slot->type, transfer->type, memory_order_relaxed);
		return ferry_copies_start(copies, seat, call, transfer, window, transfer->user + start, bytes, true);
	}
	if (slice >= atomic_load_explicit(&line->up.value, memory_order_acquire))
		return false;
	if (!transfer->issued && !message_agrees(seat, transfer, slot))
		return false;
	return ferry_copies_start(copies, seat, call, transfer, transfer->user + start, window, bytes, true);
}

void ferry_pair_publish(struct ferry_seat *seat, struct ferry_transfer *transfer)
{
	struct ferry_pair_line *line = line_of(seat, transfer, 0, NULL);
	bool up = seat->direction == FERRY_UP;
	uint64_t peer = 1ull << transfer->peer;
	atomic_store_explicit(up ? &line->up.value : &line->down.value, transfer->base + transfer->finished,
	                      memory_order_release);
	ferry_wake(seat->member->shared, up ? 0 : peer, up ? peer : 0, 0);
}

void ferry_pair_done(struct ferry_seat *seat, const struct ferry_transfer *transfer)
{
	seat->message[transfer->peer]++;
	seat->slices[transfer->peer] += transfer->nslices;
}
