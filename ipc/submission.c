/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/submission.h"

#include "ipc/error.h"

#include <string.h>

#define UNIT 64u /* records begin at whole lines, so that the head of one is never split by the end of the ring */

_Static_assert(sizeof(struct ferry_submission) <= 3 * UNIT, "a head is a few lines");
_Static_assert(sizeof(struct ferry_submission) + FERRY_SUBMISSION_MESSAGES * sizeof(struct ferry_submitted_message) <=
                       FERRY_SUBMISSION_MOST,
               "a record has room for its messages");
_Static_assert(sizeof(struct ferry_submission) + FERRY_MAX_RANKS * sizeof(struct ferry_submitted_part) <=
                       FERRY_SUBMISSION_MOST,
               "a record has room for an alltoallv");
_Static_assert(FERRY_RING_BYTES % FERRY_SUBMISSION_MOST == 0, "positions are taken modulo the ring");

static uint32_t up_to_unit(size_t bytes)
{
	return (uint32_t)((bytes + UNIT - 1) / UNIT * UNIT);
}

/* What a record takes that does not fit before the end of the ring: the rest, too. */
static uint32_t rest_of(uint64_t position, uint32_t bytes)
{
	uint32_t rest = FERRY_RING_BYTES - (uint32_t)(position % FERRY_RING_BYTES);
	return rest < bytes ? rest : 0;
}

bool ferry_ring_write(struct ferry_ring *ring, struct ferry_submission *head, const void *behind, size_t more)
{
	uint64_t written = atomic_load_explicit(&ring->written, memory_order_relaxed);
	uint64_t taken = atomic_load_explicit(&ring->taken, memory_order_acquire); /* what was there has been copied */
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
	memcpy(at, head, sizeof *head);
	if (more)
		memcpy(at + sizeof *head, behind, more);
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
	*taken += head.bytes;
	*any = true;
	atomic_store_explicit(&ring->taken, *taken, memory_order_release);
	return ferrySuccess;
}
