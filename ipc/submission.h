/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Submissions: how a rank submits calls to the router that moves its data. A ring of records in shared memory, written
 * by the rank's application threads, one at a time, and taken by its D2H lane in the router. A record holds all that a
 * call needs but the plan, which the router has by its hash, and the buffers' memory, which it has mapped
 * (ipc/export.h). The router copies a record before it reads it, and checks every field.
 */
#ifndef FERRY_IPC_SUBMISSION_H
#define FERRY_IPC_SUBMISSION_H

#include "ipc/export.h"

#include <stdbool.h>

#define FERRY_RING_BYTES (64u << 10)
#define FERRY_SUBMISSION_MOST (8u << 10) /* bytes of a record: an alltoallv of 64 ranks has a quarter of that */
#define FERRY_SUBMISSION_MESSAGES 100u   /* in a record; a group of more takes several */

enum ferry_submission_kind {
	FERRY_SUBMIT_NOTHING = 1, /* fills the ring to its end: the next record is at its start */
	FERRY_SUBMIT_COLLECTIVE,
	FERRY_SUBMIT_MESSAGES,    /* sends and receives that progress together */
};

/* ferry_submission.flags */
#define FERRY_SUBMIT_CAPTURED 1u /* in a graph: it has a stream flag of its own */
/* premulsum: the factor is in the stream flag's `scalar` when the stream reaches the call */
#define FERRY_SUBMIT_SCALAR 2u
#define FERRY_SUBMIT_MORE 4u     /* messages: the next record goes on with the same call */

/* What follows the head of an alltoallv: for each peer, in bytes. */
struct ferry_call_decoder_part {
	uint64_t send_length, send_offset, receive_length, receive_offset;
};

/* What follows the head of sends and receives. */
struct ferry_call_decoder_message {
	struct ferry_buffer_name buffer;
	uint64_t bytes;
	uint64_t message;  /* its number between these two ranks in this direction, from 1 */
	uint32_t peer;
	uint8_t type, direction; /* ferryDataType_t, enum ferry_direction */
	uint8_t puts, reserved;  /* 1: the source pushes it into the destination's buffer */
};

struct ferry_submission {
	uint32_t bytes;  /* of the record; a multiple of 64 */
	uint16_t kind, flags;
	uint64_t number; /* of the rank's submissions, from 1 */
	uint32_t flag, turn;
	uint64_t seq, name;        /* as in struct ferry_call */
	uint64_t fixed;            /* ferry_numbering.fixed when it was made */
	uint64_t plan_hash, count, scalar;
	uint32_t shape, root;
	struct ferry_buffer_name send, receive, memory; /* generation 0: none */
	uint32_t nparts;
	uint32_t reserved;
	/*
	 * A checksum of all else in the record, by ferry_ring_write. Other ranks of the job can write into the ring,
	 * and a turn, number or flag that is not this rank's would make its stream wait for ever.
	 */
	uint64_t sum;
};

/* One rank's, in the arena of its domain. */
struct ferry_ring {
	_Alignas(128) _Atomic uint64_t written; /* bytes of all time; rank, release after the record */
	_Alignas(128) _Atomic uint64_t taken;   /* bytes of all time; router, release after it has copied them */
	/* calls, captured ones apart, that are over; the router's lanes, by fetch-add */
	_Atomic uint64_t ended;
	/* all submissions up to this number are over, captured ones apart; router, release (router/gpu/imports.h) */
	_Atomic uint64_t over;
	_Alignas(128) char records[FERRY_RING_BYTES];
};

/** For ranks: copies a record in, its head (whose `bytes` and `sum` it sets) and `more` bytes. False: no room now. */
bool ferry_ring_write(struct ferry_ring *ring, struct ferry_submission *head, const void *behind, size_t more);

/** For routers: whether there seems to be a record after the first `taken` bytes; ferry_ring_take checks it. */
static inline bool ferry_ring_any(const struct ferry_ring *ring, uint64_t taken)
{
	return atomic_load_explicit(&ring->written, memory_order_acquire) != taken;
}

/** Returns the sum for head->sum. behind: the `more` bytes after the head; the rest of head->bytes counts as zeros. */
uint64_t ferry_submission_sum(const struct ferry_submission *head, const void *behind, size_t more);

/**
 * For routers: copies the next record, of FERRY_SUBMISSION_MOST bytes at most, into memory of the caller's. *any: there
 * was one. *taken: the router's own position. Error: ferryInvalidUsage, with the values, if the ring's words cannot be
 * true or the record's sum is wrong.
 */
ferryResult_t ferry_ring_take(struct ferry_ring *ring, uint64_t *taken, void *record, bool *any);

#endif
