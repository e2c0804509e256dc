/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer target: any bytes in a rank's ring of submissions, its positions included. What is taken is whole, inside
 * the record that it was copied into, and inside the ring; and taking comes to an end.
 *
 * Input: where the ring begins, in lines (2 bytes), how many bytes the rank says that it has written (4 bytes), and
 * what lies there from the beginning on.
 */
#include "ipc/error.h"
#include "ipc/submission.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POSITIONS 6

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void found(const char *what, const struct ferry_submission *head)
{
	fprintf(stderr, "fuzz_submission: %s: %u bytes, kind %u\n", what, head->bytes, head->kind);
	abort();
}

/* As its writer would: else nearly all bytes are refused for their sum. */
static void add_sum(struct ferry_ring *ring, uint64_t at)
{
	char *there = ring->records + at % FERRY_RING_BYTES;
	struct ferry_submission head;
	if (at % FERRY_RING_BYTES + sizeof head > FERRY_RING_BYTES)
		return;
	memcpy(&head, there, sizeof head);
	if (head.bytes < sizeof head || at % FERRY_RING_BYTES + head.bytes > FERRY_RING_BYTES)
		return;
	head.sum = ferry_submission_sum(&head, there + sizeof head, head.bytes - sizeof head);
	memcpy(there, &head, sizeof head);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct ferry_ring *ring = aligned_alloc(_Alignof(struct ferry_ring), sizeof *ring);
	struct ferry_submission *record = aligned_alloc(64, FERRY_SUBMISSION_MOST); /* a write behind its end is seen */
	uint16_t line;
	uint32_t written;
	bool any = true;
	if (!ring || !record || size < POSITIONS) {
		free(ring);
		free(record);
		return 0;
	}
	memset(ring, 0, sizeof *ring);
	memcpy(&line, data, sizeof line);
	memcpy(&written, data + sizeof line, sizeof written);
	uint64_t begin = line * 64ull, taken = begin;
	for (size_t i = 0; i < size - POSITIONS && i < FERRY_RING_BYTES; i++)
		ring->records[(begin + i) % FERRY_RING_BYTES] = (char)data[POSITIONS + i];
	atomic_store(&ring->taken, begin);
	atomic_store(&ring->written, begin + written);
	while (any) {
		uint64_t before = taken;
		add_sum(ring, 0); /* where the next one is if the rest of the ring is nothing */
		add_sum(ring, taken);
		if (ferry_ring_take(ring, &taken, record, &any)) {
			if (any)
				found("refused, and there", record);
			break;
		}
		if (!any)
			break;
		if (record->bytes < sizeof *record || record->bytes > FERRY_SUBMISSION_MOST || record->bytes % 64)
			found("taken with a length out of range", record);
		if (taken <= before || taken - before < record->bytes || taken > begin + written ||
		    written > FERRY_RING_BYTES)
			found("taken from where nothing is", record);
		if (memcmp(record, ring->records + (taken - record->bytes) % FERRY_RING_BYTES, record->bytes))
			found("taken, and another", record);
		if (atomic_load(&ring->taken) != taken)
			found("taken, and not told", record);
	}
	free(ring);
	free(record);
	return 0;
}
