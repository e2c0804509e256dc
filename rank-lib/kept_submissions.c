/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/kept_submissions.h"

#include "ipc/attach.h"
#include "ipc/error.h"

#include <stdlib.h>
#include <string.h>

/* In front of each record. */
struct kept {
	uint64_t position; /* of the ring, behind the record */
	uint64_t number;
	uint64_t calls;    /* before it */
	uint32_t bytes;
	uint32_t unused;
};

void ferry_kept_submissions_init(struct ferry_kept_submissions *kept)
{
	*kept = (struct ferry_kept_submissions){.memory = NULL};
	pthread_mutex_init(&kept->lock, NULL);
}

void ferry_kept_submissions_end(struct ferry_kept_submissions *kept)
{
	free(kept->memory);
	pthread_mutex_destroy(&kept->lock);
}

static struct kept *at(struct ferry_kept_submissions *kept, size_t offset)
{
	return (struct kept *)(kept->memory + offset);
}

static size_t size_of(const struct kept *record)
{
	return sizeof *record + record->bytes;
}

static void forget_over(struct ferry_kept_submissions *kept, uint64_t over)
{
	while (kept->first < kept->end && at(kept, kept->first)->number <= over)
		kept->first += size_of(at(kept, kept->first));
	if (kept->first == kept->end)
		kept->first = kept->end = 0;
}

static bool make_room(struct ferry_kept_submissions *kept, size_t bytes)
{
	size_t used = kept->end - kept->first;
	if (kept->capacity - kept->end >= bytes)
		return true;
	if (kept->first >= used && kept->capacity - used >= bytes) {
		memcpy(kept->memory, kept->memory + kept->first, used);
		kept->first = 0;
		kept->end = used;
		return true;
	}
	size_t capacity = 2 * kept->capacity > used + bytes ? 2 * kept->capacity : 2 * (used + bytes);
	char *memory = malloc(capacity);
	if (!memory)
		return false;
	if (used)
		memcpy(memory, kept->memory + kept->first, used);
	free(kept->memory);
	kept->memory = memory;
	kept->capacity = capacity;
	kept->first = 0;
	kept->end = used;
	return true;
}

/* Under the lock. */
static ferryResult_t check(const struct ferry_kept_submissions *kept, const struct ferry_ring *ring)
{
	uint64_t written = atomic_load_explicit(&ring->written, memory_order_relaxed);
	if (written == kept->position)
		return ferrySuccess;
	return ferry_fail(ferryInternalError,
	                  "the arena says that the rank has submitted %llu bytes, where it has submitted %llu",
	                  (unsigned long long)written, (unsigned long long)kept->position);
}

ferryResult_t ferry_kept_submissions_check(struct ferry_kept_submissions *kept, const struct ferry_ring *ring)
{
	if (pthread_mutex_trylock(&kept->lock))
		return ferrySuccess;
	ferryResult_t result = check(kept, ring);
	pthread_mutex_unlock(&kept->lock);
	return result;
}

ferryResult_t ferry_kept_submissions_write(struct ferry_kept_submissions *kept, struct ferry_ring *ring,
                                           struct ferry_submission *head, const void *behind, size_t more,
                                           bool *written)
{
	ferryResult_t result = ferrySuccess;
	*written = false;
	pthread_mutex_lock(&kept->lock);
	forget_over(kept, atomic_load_explicit(&ring->over, memory_order_acquire));
	if (!make_room(kept, sizeof(struct kept) + FERRY_SUBMISSION_MOST))
		result = ferry_fail(ferrySystemError, "no memory for a submission's copy");
	if (!result)
		result = check(kept, ring);
	if (!result && (*written = ferry_ring_write(ring, head, behind, more))) {
		struct kept *record = at(kept, kept->end);
		kept->position = atomic_load_explicit(&ring->written, memory_order_relaxed);
		*record = (struct kept){.position = kept->position,
		                        .number = head->number,
		                        .calls = kept->calls,
		                        .bytes = head->bytes};
		memset(record + 1, 0, head->bytes);
		memcpy(record + 1, head, sizeof *head);
		if (more)
			memcpy((char *)(record + 1) + sizeof *head, behind, more);
		kept->end += size_of(record);
		kept->calls += !(head->flags & (FERRY_SUBMIT_MORE | FERRY_SUBMIT_CAPTURED));
	}
	pthread_mutex_unlock(&kept->lock);
	return result;
}

ferryResult_t ferry_kept_submissions_give(struct ferry_kept_submissions *kept, const struct ferry_ring *ring,
                                          ferryResult_t (*give)(void *context, const void *records, size_t bytes),
                                          void *context, struct ferry_kept_taken *taken)
{
	uint64_t ended = atomic_load_explicit(&ring->taken, memory_order_acquire);
	ferryResult_t result = ferrySuccess;
	size_t bytes = 0, offset;
	char *some = malloc(FERRY_RESUBMIT_MOST);
	if (!some)
		return ferry_fail(ferrySystemError, "no memory to hand submissions over");
	pthread_mutex_lock(&kept->lock);
	forget_over(kept, atomic_load_explicit(&ring->over, memory_order_acquire));
	taken->calls = kept->calls;
	for (offset = kept->first; offset < kept->end && !result; offset += size_of(at(kept, offset))) {
		const struct kept *record = at(kept, offset);
		if (record->position > ended) {
			taken->number = record->number - 1;
			taken->calls = record->calls;
			break;
		}
		taken->number = record->number;
		if (bytes + record->bytes > FERRY_RESUBMIT_MOST) {
			result = give(context, some, bytes);
			bytes = 0;
		}
		memcpy(some + bytes, record + 1, record->bytes);
		bytes += record->bytes;
	}
	if (!result && bytes)
		result = give(context, some, bytes);
	pthread_mutex_unlock(&kept->lock);
	free(some);
	return result;
}
