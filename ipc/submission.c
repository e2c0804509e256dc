/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/submission.h"

#include "ipc/error.h"

#include <stddef.h>
#include <string.h>

#define UNIT 64u /* records begin at whole lines, so that the head of one is never split by the end of the ring */

_Static_assert(sizeof(struct ferry_submission) <= 3 * UNIT, "a head is a few lines");
_Static_assert(sizeof(struct ferry_submission) +
                               FERRY_SUBMISSION_MESSAGES * sizeof(struct ferry_call_decoder_message) <=
                       FERRY_SUBMISSION_MOST,
               "a record has room for its messages");
_Static_assert(sizeof(struct ferry_submission) + FERRY_MAX_RANKS * sizeof(struct ferry_call_decoder_part) <=
                       FERRY_SUBMISSION_MOST,
               "a record has room for an alltoallv");
_Static_assert(offsetof(struct ferry_submission, sum) + sizeof(uint64_t) == sizeof(struct ferry_submission),
               "nothing follows the sum");
_Static_assert(FERRY_RING_BYTES % FERRY_SUBMISSION_MOST == 0, "positions are taken modulo the ring");

static uint32_t up_to_unit(size_t bytes)
{
	return (uint32_t)((bytes + UNIT - 1) / UNIT * UNIT);
}

/* The bytes of the ring that a record skips because it does not fit before the ring's end. */
static uint32_t rest_of(uint64_t position, uint32_t bytes)
{
	uint32_t rest = FERRY_RING_BYTES - (uint32_t)(position % FERRY_RING_BYTES);
	return rest < bytes ? rest : 0;
}

/* Reversible in each argument: a change of one word always changes the sum. */
static uint64_t add_word(uint64_t sum, uint64_t word)
{
	sum = (sum ^ word) * 0x9e3779b97f4a7c15u;
	return sum << 29 | sum >> 35;
}

/* Adds bytes, padded with zeros to whole words. */
static uint64_t add(uint64_t sum, const void *from, size_t bytes)
{
	uint64_t word;
	size_t at = 0;
	for (; at + sizeof word <= bytes; at += sizeof word) {
		memcpy(&word, (const char *)from + at, sizeof word);
		sum = add_word(sum, word);
	}
	word = 0;
	if (at < bytes) {
		memcpy(&word, (const char *)from + at, bytes - at);
		sum = add_word(sum, word);
	}
	return sum;
}

uint64_t ferry_submission_sum(const struct ferry_submission *head, const void *behind, size_t more)
{
	uint64_t sum = add(add(0, head, offsetof(struct ferry_submission, sum)), behind, more);
	for (size_t at = sizeof *head + (more + 7) / 8 * 8; at < head->bytes; at += sizeof sum)
		sum = add_word(sum, 0);
	return sum;
}

bool ferry_ring_write(struct ferry_ring *ring, struct ferry_submission *head, const void *behind, size_t more)
{
	uint64_t written = atomic_load_explicit(&ring->written, memory_order_relaxed);
	uint64_t taken = atomic_load_explicit(&ring->taken, memory_order_acquire); /* the bytes before are free */
	head->bytes = up_to_unit(sizeof *head + more);
	uint32_t rest = rest_of(written, head->bytes);
	if (written + rest + head->bytes - taken > FERRY_RING_BYTES)
		return false;
	if (rest) {
		struct ferry_submission skip = {.bytes = rest, .kind = FERRY_SUBMIT_NOTHING};
		memcpy(ring->records + written % FERRY_RING_BYTES, &skip, UNIT);
		written += rest;
	}
	char *at = ring->records + written % FERRY_RING_BYTES;
	head->sum = ferry_submission_sum(head, behind, more);
	memcpy(at, head, sizeof *head);
	if (more)
		memcpy(at + sizeof *head, behind, more);
	memset(at + sizeof *head + more, 0, head->bytes - sizeof *head - more);
	atomic_store_explicit(&ring->written, written + head->bytes, memory_order_release);
	return true;
}

static ferryResult_t bad(const struct ferry_submission *head, uint64_t there)
{
	return ferry_fail(ferryInvalidUsage, "a submission of %u bytes and kind %u, where %llu bytes are there",
	                  head->bytes, head->kind, (unsigned long long)there);
}

ferryResult_t ferry_ring_take(struct ferry_ring *ring, uint64_t *taken, void *record, bool *any)
{
	uint64_t written = atomic_load_explicit(&ring->written, memory_order_acquire), there = written - *taken;
	struct ferry_submission head = {.bytes = 0};
	*any = false;
	if (!there)
		return ferrySuccess;
	if (there > FERRY_RING_BYTES || there % UNIT)
		return bad(&head, there);
	memcpy(&head, ring->records + *taken % FERRY_RING_BYTES, UNIT);
	if (head.kind == FERRY_SUBMIT_NOTHING) {
		if (head.bytes != FERRY_RING_BYTES - *taken % FERRY_RING_BYTES || head.bytes >= there)
			return bad(&head, there);
		*taken += head.bytes;
		there -= head.bytes;
		memcpy(&head, ring->records, UNIT);
	}
	if (head.bytes % UNIT || head.bytes < sizeof head || head.bytes > FERRY_SUBMISSION_MOST || head.bytes > there ||
	    rest_of(*taken, head.bytes))
		return bad(&head, there);
	memcpy(record, ring->records + *taken % FERRY_RING_BYTES, head.bytes);
	memcpy(record, &head, UNIT); /* the length that was checked */
	const struct ferry_submission *copy = record;
	if (copy->sum != ferry_submission_sum(copy, copy + 1, head.bytes - sizeof head))
		return ferry_fail(ferryInvalidUsage,
		                  "submission %llu, of %u bytes and kind %u: it is not what was written",
		                  (unsigned long long)copy->number, copy->bytes, copy->kind);
	*taken += head.bytes;
	*any = true;
	atomic_store_explicit(&ring->taken, *taken, memory_order_release);
	return ferrySuccess;
}
