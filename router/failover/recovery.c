/* SPDX-License-Identifier: Apache-2.0 */
#include "router/failover/recovery.h"

#include "ipc/error.h"

#include <stdlib.h>
#include <string.h>

ferryResult_t ferry_recovery_add(struct ferry_recovery **recovery, const void *records, uint64_t bytes)
{
	if (!*recovery && !(*recovery = calloc(1, sizeof **recovery)))
		return ferry_fail(ferrySystemError, "no memory for submissions");
	if (bytes > FERRY_RECOVERY_MOST - (*recovery)->bytes)
		return ferry_fail(ferryRefused, "%llu bytes of submissions: at most %llu",
		                  (unsigned long long)((*recovery)->bytes + bytes),
		                  (unsigned long long)FERRY_RECOVERY_MOST);
	if (!bytes)
		return ferrySuccess;
	char *grown = realloc((*recovery)->records, (*recovery)->bytes + bytes);
	if (!grown)
		return ferry_fail(ferrySystemError, "no memory for %llu bytes of submissions",
		                  (unsigned long long)((*recovery)->bytes + bytes));
	memcpy(grown + (*recovery)->bytes, records, bytes);
	(*recovery)->records = grown;
	(*recovery)->bytes += bytes;
	return ferrySuccess;
}

void ferry_recovery_free(struct ferry_recovery *recovery)
{
	if (recovery)
		free(recovery->records);
	free(recovery);
}

static bool read_head(const struct ferry_recovery *recovery, uint64_t at, struct ferry_submission *head)
{
	uint64_t left = recovery->bytes - at;
	if (left < sizeof *head)
		return false;
	memcpy(head, recovery->records + at, sizeof *head);
	return head->bytes >= sizeof *head && head->bytes <= left && head->bytes <= FERRY_SUBMISSION_MOST;
}

bool ferry_recovery_take(struct ferry_recovery *recovery, void *record)
{
	struct ferry_submission head;
	if (!read_head(recovery, recovery->at, &head))
		return false;
	memcpy(record, recovery->records + recovery->at, head.bytes);
	recovery->at += head.bytes;
	return true;
}

uint64_t ferry_recovery_calls(const struct ferry_recovery *recovery)
{
	struct ferry_submission head;
	uint64_t calls = 0;
	for (uint64_t at = recovery->at; read_head(recovery, at, &head); at += head.bytes)
		calls += !(head.flags & (FERRY_SUBMIT_MORE | FERRY_SUBMIT_CAPTURED));
	return calls;
}

enum ferry_recovery_state ferry_recovery_judge(const struct ferry_stream_flag *flag, uint32_t turn)
{
	uint32_t done = atomic_load_explicit(&flag->done, memory_order_acquire);
	uint32_t value = atomic_load_explicit(&flag->flag, memory_order_acquire);
	if (value == ferry_stream_flag_mark(turn) && (done == turn || done == turn + 1))
		return FERRY_RECOVERY_COMPLETE;
	if ((int32_t)(done - turn) > 0)
		return FERRY_RECOVERY_OVER;
	return done == turn && value == 1 ? FERRY_RECOVERY_REACHED : FERRY_RECOVERY_ANEW;
}

uint32_t ferry_recovery_turn(const struct ferry_stream_flag *flags, const struct ferry_submission *head)
{
	const struct ferry_stream_flag *flag = &flags[head->flag];
	if (!(head->flags & FERRY_SUBMIT_CAPTURED))
		return head->turn;
	uint32_t done = atomic_load_explicit(&flag->done, memory_order_acquire);
	/* the run lacks only the 0: the stream has not come to the next run */
	return atomic_load_explicit(&flag->flag, memory_order_acquire) == ferry_stream_flag_mark(done - 1) ? done - 1
	                                                                                                   : done;
}
