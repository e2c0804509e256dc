/* SPDX-License-Identifier: Apache-2.0 */
#include "router/resumed.h"

#include "ipc/error.h"

#include <stdlib.h>
#include <string.h>

ferryResult_t ferry_resumed_add(struct ferry_resumed **resumed, const void *records, uint64_t bytes)
{
	if (!*resumed && !(*resumed = calloc(1, sizeof **resumed)))
		return ferry_fail(ferrySystemError, "no memory for submissions");
	if (bytes > FERRY_RESUMED_MOST - (*resumed)->bytes)
		return ferry_fail(ferryRefused, "%llu bytes of submissions: at most %llu",
		                  (unsigned long long)((*resumed)->bytes + bytes),
		                  (unsigned long long)FERRY_RESUMED_MOST);
	if (!bytes)
		return ferrySuccess;
	char *grown = realloc((*resumed)->records, (*resumed)->bytes + bytes);
	if (!grown)
		return ferry_fail(ferrySystemError, "no memory for %llu bytes of submissions",
		                  (unsigned long long)((*resumed)->bytes + bytes));
	memcpy(grown + (*resumed)->bytes, records, bytes);
	(*resumed)->records = grown;
	(*resumed)->bytes += bytes;
	return ferrySuccess;
}

void ferry_resumed_free(struct ferry_resumed *resumed)
{
	if (resumed)
		free(resumed->records);
	free(resumed);
}

static bool read_head(const struct ferry_resumed *resumed, uint64_t at, struct ferry_submission *head)
{
	uint64_t left = resumed->bytes - at;
	if (left < sizeof *head)
		return false;
	memcpy(head, resumed->records + at, sizeof *head);
	return head->bytes >= sizeof *head && head->bytes <= left && head->bytes <= FERRY_SUBMISSION_MOST;
}

bool ferry_resumed_take(struct ferry_resumed *resumed, void *record)
{
	struct ferry_submission head;
	if (!read_head(resumed, resumed->at, &head))
		return false;
	memcpy(record, resumed->records + resumed->at, head.bytes);
	resumed->at += head.bytes;
	return true;
}

uint64_t ferry_resumed_calls(const struct ferry_resumed *resumed)
{
	struct ferry_submission head;
	uint64_t calls = 0;
	for (uint64_t at = resumed->at; read_head(resumed, at, &head); at += head.bytes)
		calls += !(head.flags & (FERRY_SUBMIT_MORE | FERRY_SUBMIT_CAPTURED));
	return calls;
}

enum ferry_resumed_state ferry_resumed_judge(const struct ferry_word *word, uint32_t turn)
{
	uint32_t done = atomic_load_explicit(&word->done, memory_order_acquire);
	uint32_t value = atomic_load_explicit(&word->word, memory_order_acquire);
	if (value == ferry_word_mark(turn) && (done == turn || done == turn + 1))
		return FERRY_RESUMED_COMPLETE;
	if ((int32_t)(done - turn) > 0)
		return FERRY_RESUMED_OVER;
	return done == turn && value == 1 ? FERRY_RESUMED_REACHED : FERRY_RESUMED_ANEW;
}

uint32_t ferry_resumed_turn(const struct ferry_word *words, const struct ferry_submission *head)
{
	const struct ferry_word *word = &words[head->word];
	if (!(head->flags & FERRY_SUBMIT_CAPTURED))
		return head->turn;
	uint32_t done = atomic_load_explicit(&word->done, memory_order_acquire);
	/* over but for the 0: its stream has not come to the next run */
	return atomic_load_explicit(&word->word, memory_order_acquire) == ferry_word_mark(done - 1) ? done - 1 : done;
}
