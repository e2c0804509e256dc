/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Losses: how often in a row routers have ended because their context on a rank's GPU was gone, before a call of that
 * rank was over. Lies in the rank's line of the arena, so that it outlives them. Written by the router that moves the
 * rank's data, as it dies: one at a time, as the next one begins when that one's process has ended. Read by ranks that
 * give up, behind that end, for what they say of it; the next router believes the number, which harms no other job.
 */
#ifndef FERRY_IPC_LOSS_H
#define FERRY_IPC_LOSS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FERRY_LOSS_BYTES 360

struct ferry_loss {
	_Atomic uint32_t count;    /* since the rank last got on; 0: none yet; last, release */
	uint32_t reserved;
	_Atomic uint64_t progress; /* how far the rank had come at the last one */
	_Atomic uint64_t at_ns;    /* when that was (ferry_now_ns) */
	char message[FERRY_LOSS_BYTES]; /* which GPU, and what CUDA said of it */
};

/** One more, at that progress: how many it makes in a row. */
uint32_t ferry_loss_add(struct ferry_loss *loss, uint64_t progress, uint64_t now, const char *message);

/**
 * When the last one was, and what was said of it, each byte read once; what would end a line, or speak to a terminal,
 * is a '?' in it. 0: there was none.
 */
uint64_t ferry_loss_read(const struct ferry_loss *loss, char message[FERRY_LOSS_BYTES]);

#endif
