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
	uint32_t word;     /* of a captured call */
};

struct ferry_kept_capture {
	struct ferry_kept_capture *next;
	bool gone;        /* no graph has it: it goes when it has been taken */
	struct kept kept; /* the record behind it */
};

void ferry_kept_submissions_init(struct ferry_kept_submissions *kept, bool (*forgotten)(uint32_t word))
{
	*kept = (struct ferry_kept_submissions){.forgotten = forgotten, .captures_end = &kept->captures};
	pthread_mutex_init(&kept->lock, NULL);
}

void ferry_kept_submissions_end(struct ferry_kept_submissions *kept)
{
	for (struct ferry_kept_capture *next; kept->captures; kept->captures = next) {
		next = kept->captures->next;
		free(kept->captures);
	}
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

/* Of those in the ring that nobody has taken the number is needed. */
static void drop_gone(struct ferry_kept_submissions *kept, uint64_t taken)
{
	for (struct ferry_kept_capture **link = &kept->captures; *link;) {
		struct ferry_kept_capture *capture = *link;
		if (!capture->gone || capture->kept.position > taken) {
			link = &capture->next;
			continue;
		}
		*link = capture->next;
		if (!*link)
			kept->captures_end = link;
		free(capture);
	}
}

void ferry_kept_submissions_forget(struct ferry_kept_submissions *kept, uint32_t word)
{
	pthread_mutex_lock(&kept->lock);
	for (struct ferry_kept_capture *capture = kept->captures; capture; capture = capture->next)
		capture->gone |= capture->kept.word == word;
	pthread_mutex_unlock(&kept->lock);
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

/* Where the next record's copy goes: room for any. NULL: no memory. */
static struct kept *place(struct ferry_kept_submissions *kept, bool captured, struct ferry_kept_capture **capture)
{
	*capture = captured ? malloc(sizeof **capture + FERRY_SUBMISSION_MOST) : NULL;
	if (captured)
		return *capture ? &(*capture)->kept : NULL;
	return make_room(kept, sizeof(struct kept) + FERRY_SUBMISSION_MOST) ? at(kept, kept->end) : NULL;
}

/* It has been written. */
static void keep(struct ferry_kept_submissions *kept, const struct ferry_ring *ring,
                 const struct ferry_submission *head, const void *behind, size_t more, struct kept *record)
{
	kept->position = atomic_load_explicit(&ring->written, memory_order_relaxed);
	kept->number = head->number;
	*record = (struct kept){.position = kept->position,
	                        .number = head->number,
	                        .calls = kept->calls,
	                        .bytes = head->bytes,
	                        .word = head->word};
	memset(record + 1, 0, head->bytes);
	memcpy(record + 1, head, sizeof *head);
	if (more)
		memcpy((char *)(record + 1) + sizeof *head, behind, more);
	kept->calls += !(head->flags & (FERRY_SUBMIT_MORE | FERRY_SUBMIT_CAPTURED));
}

/* Which has no more room than it needs from here on. */
static void append(struct ferry_kept_submissions *kept, struct ferry_kept_capture *capture)
{
	struct ferry_kept_capture *smaller = realloc(capture, sizeof *capture + capture->kept.bytes);
	capture = smaller ? smaller : capture;
	capture->next = NULL;
	capture->gone = false;
	*kept->captures_end = capture;
	kept->captures_end = &capture->next;
}

ferryResult_t ferry_kept_submissions_write(struct ferry_kept_submissions *kept, struct ferry_ring *ring,
                                           struct ferry_submission *head, const void *behind, size_t more,
                                           bool *written)
{
	struct ferry_kept_capture *capture;
	*written = false;
	pthread_mutex_lock(&kept->lock);
	forget_over(kept, atomic_load_explicit(&ring->over, memory_order_acquire));
	drop_gone(kept, atomic_load_explicit(&ring->taken, memory_order_acquire));
	struct kept *record = place(kept, head->flags & FERRY_SUBMIT_CAPTURED, &capture);
	ferryResult_t result = record ? check(kept, ring)
	                              : ferry_fail(ferrySystemError, "no memory for a submission's copy");
	*written = !result && ferry_ring_write(ring, head, behind, more);
	if (*written) {
		keep(kept, ring, head, behind, more, record);
		if (capture)
			append(kept, capture);
		else
			kept->end += size_of(record);
	} else {
		free(capture);
	}
	pthread_mutex_unlock(&kept->lock);
	return result;
}

/* Where one is who goes through all records in the order of their numbers. */
struct cursor {
	size_t offset;
	struct ferry_kept_capture *capture;
};

/* *capture: NULL: it is none. */
static const struct kept *next_record(struct ferry_kept_submissions *kept, struct cursor *cursor,
                                      struct ferry_kept_capture **capture)
{
	const struct kept *plain = cursor->offset < kept->end ? at(kept, cursor->offset) : NULL;
	*capture = cursor->capture;
	if (plain && (!*capture || plain->number < (*capture)->kept.number))
		*capture = NULL;
	if (*capture)
		cursor->capture = (*capture)->next;
	else if (plain)
		cursor->offset += size_of(plain);
	return *capture ? &(*capture)->kept : plain;
}

static uint16_t flags_of(const struct kept *record)
{
	return ((const struct ferry_submission *)(record + 1))->flags;
}

/* Whether a router is to have it. before: what it was given last: of a call's records it gets all. */
static bool is_wanted(const struct ferry_kept_submissions *kept, struct ferry_kept_capture *capture,
                      const struct kept *before)
{
	if (!capture || (before && flags_of(before) & FERRY_SUBMIT_MORE))
		return true;
	capture->gone |= kept->forgotten(capture->kept.word);
	return !capture->gone;
}

/* Under the lock; `some`: memory for FERRY_RESUBMIT_MOST bytes. */
static ferryResult_t give_taken(struct ferry_kept_submissions *kept, uint64_t ended, char *some,
                                ferryResult_t (*give)(void *context, const void *records, size_t bytes), void *context,
                                struct ferry_kept_taken *taken)
{
	struct cursor cursor = {kept->first, kept->captures};
	struct ferry_kept_capture *capture;
	const struct kept *record, *given = NULL;
	ferryResult_t result = ferrySuccess;
	size_t bytes = 0;
	*taken = (struct ferry_kept_taken){.number = kept->number, .calls = kept->calls};
	while (!result && (record = next_record(kept, &cursor, &capture))) {
		if (record->position > ended) {
			*taken = (struct ferry_kept_taken){.number = record->number - 1, .calls = record->calls};
			break;
		}
		if (!is_wanted(kept, capture, given))
			continue;
		given = record;
		if (bytes + record->bytes > FERRY_RESUBMIT_MOST) {
			result = give(context, some, bytes);
			bytes = 0;
		}
		memcpy(some + bytes, record + 1, record->bytes);
		bytes += record->bytes;
	}
	return result || !bytes ? result : give(context, some, bytes);
}

ferryResult_t ferry_kept_submissions_give(struct ferry_kept_submissions *kept, const struct ferry_ring *ring,
                                          ferryResult_t (*give)(void *context, const void *records, size_t bytes),
                                          void *context, struct ferry_kept_taken *taken)
{
	uint64_t ended = atomic_load_explicit(&ring->taken, memory_order_acquire);
	char *some = malloc(FERRY_RESUBMIT_MOST);
	if (!some)
		return ferry_fail(ferrySystemError, "no memory to hand submissions over");
	pthread_mutex_lock(&kept->lock);
	forget_over(kept, atomic_load_explicit(&ring->over, memory_order_acquire));
	ferryResult_t result = give_taken(kept, ended, some, give, context, taken);
	pthread_mutex_unlock(&kept->lock);
	free(some);
	return result;
}
