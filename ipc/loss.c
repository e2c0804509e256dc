/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/loss.h"

#include <stdio.h>

uint32_t ferry_loss_add(struct ferry_loss *loss, uint64_t progress, uint64_t now, const char *message)
{
	uint32_t count = atomic_load_explicit(&loss->count, memory_order_relaxed);
	if (atomic_load_explicit(&loss->progress, memory_order_relaxed) != progress)
		count = 0;
	snprintf(loss->message, sizeof loss->message, "%s", message);
	atomic_store_explicit(&loss->progress, progress, memory_order_relaxed);
	atomic_store_explicit(&loss->at_ns, now, memory_order_relaxed);
	atomic_store_explicit(&loss->count, count + 1, memory_order_release);
	return count + 1;
}

uint64_t ferry_loss_read(const struct ferry_loss *loss, char message[FERRY_LOSS_BYTES])
{
	const volatile char *there = loss->message;
	uint32_t i = 0;
	if (!atomic_load_explicit(&loss->count, memory_order_acquire))
		return 0;
	for (char letter; i < FERRY_LOSS_BYTES - 1 && (letter = there[i]); i++)
		message[i] = (unsigned char)letter < ' ' || letter == 0x7f ? '?' : letter;
	message[i] = '\0';
	return atomic_load_explicit(&loss->at_ns, memory_order_relaxed);
}
