/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A thread with nothing to do: it looks, for as long as its kind may (ipc/spin.h), then sleeps at its doorbells
 * (ipc/wait.h). Its own alone, but for the spin, which all of its kind share. In the loop of a lane, or of a worker:
 *     look; ferry_idle_looked; found something: ferry_idle_found; else, while ferry_idle_looks_on, look again; sleep.
 */
#ifndef FERRY_IPC_IDLE_H
#define FERRY_IPC_IDLE_H

#include "ipc/spin.h"

#include <stdbool.h>

struct ferry_idle {
	struct ferry_spin *spin;
	struct ferry_looker looker;
	uint64_t since; /* nanoseconds: when it first found nothing; 0: it found something the last time */
};

/** By its thread, first of all. */
static inline void ferry_idle_open(struct ferry_idle *idle, struct ferry_spin *spin)
{
	*idle = (struct ferry_idle){.spin = spin};
	ferry_looker_open(&idle->looker, spin);
}

static inline void ferry_idle_close(struct ferry_idle *idle)
{
	ferry_looker_close(&idle->looker);
}

/** After each look, in vain or not. `now`: ferry_now_ns, here and below. */
static inline void ferry_idle_looked(struct ferry_idle *idle, uint64_t now)
{
	ferry_spin_looked(idle->spin, &idle->looker, now);
}

static inline void ferry_idle_found(struct ferry_idle *idle)
{
	idle->since = 0;
}

/** It has found nothing: whether it is to look again, rather than to sleep. */
static inline bool ferry_idle_looks_on(struct ferry_idle *idle, uint64_t now)
{
	if (!idle->since)
		idle->since = now;
	return now - idle->since < ferry_spin_ns(idle->spin, now);
}

/** How long ago it stopped looking, in nanoseconds. */
static inline uint64_t ferry_idle_ns(const struct ferry_idle *idle, uint64_t now)
{
	uint64_t nothing = idle->since ? now - idle->since : 0, looked = ferry_spin_ns(idle->spin, now);
	return nothing > looked ? nothing - looked : 0;
}

#endif
