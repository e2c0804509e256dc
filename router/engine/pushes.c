/* SPDX-License-Identifier: Apache-2.0 */
#include "router/engine/pushes.h"

#include "ipc/error.h"

struct ferry_copies *ferry_pushes_to(struct ferry_pushes *pushes, uint32_t rank)
{
	struct ferry_copier *copier = pushes->copier;
	uint32_t queue = rank % FERRY_PUSH_QUEUES;
	struct ferry_copies *copies = &pushes->queues[queue];
	if (pushes->open >> queue & 1)
		return copies;
	if (!copier->ops->push) {
		ferry_fail(ferryInvalidUsage, "%s devices push into no other", copier->ops->kind);
		return NULL;
	}
	if (ferry_copies_open(copies, copier, FERRY_DIR_D2H, pushes->driving))
		return NULL;
	pushes->open |= 1u << queue;
	return copies;
}

int64_t ferry_pushes_wait_us(struct ferry_pushes *pushes, int64_t most)
{
	for (uint32_t left = pushes->open; left; left &= left - 1) {
		struct ferry_copies *copies = &pushes->queues[__builtin_ctz(left)];
		if (!ferry_copies_any(copies))
			continue;
		int64_t wait = copies->queue.copier->ops->wait_us(&copies->queue);
		most = most < 0 || wait < most ? wait : most;
	}
	return most;
}

ferryResult_t ferry_pushes_check(struct ferry_pushes *pushes)
{
	ferryResult_t result = ferrySuccess;
	for (uint32_t left = pushes->open; left && !result; left &= left - 1)
		result = ferry_copies_check(&pushes->queues[__builtin_ctz(left)]);
	return result;
}

void ferry_pushes_close(struct ferry_pushes *pushes)
{
	for (uint32_t left = pushes->open; left; left &= left - 1) {
		struct ferry_copy_queue *queue = &pushes->queues[__builtin_ctz(left)].queue;
		queue->copier->ops->queue_close(queue);
	}
	pushes->open = 0;
}
