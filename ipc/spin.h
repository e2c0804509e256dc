/* SPDX-License-Identifier: Apache-2.0 */
/**
 * How long a thread looks for what is about to come before it sleeps. To look is quicker than to be woken, but it takes a CPU; where
 * threads outnumber CPUs, perhaps from the one that is waited for, and for a time slice of some milliseconds. The kernel tells:
 * it takes the CPU from a thread that does nothing but look. Then CPUs are short, no thread of the process looks for a while, and each
 * time that this was tried again too soon it is twice as long.
 */
#ifndef FERRY_IPC_SPIN_H
#define FERRY_IPC_SPIN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define FERRY_SPIN_GAP_NS 500000u /* between two looks: shorter than a time slice, longer than an interrupt */
#define FERRY_SPIN_REST_LEAST_NS 50000000u
#define FERRY_SPIN_REST_MOST_NS 3200000000u

/** Of the threads of a process that look in the same manner. Zeroed, but for limit_ns. */
struct ferry_spin {
	uint64_t limit_ns;           /* to look at most; constant */
	_Atomic uint64_t rest_until; /* nobody looks before; whoever finds CPUs short, by compare and exchange from a time that has passed */
	_Atomic uint64_t rest_ns;    /* the last rest's length; who has set rest_until. Another who reads it too early rests a little less */
};

/** One thread's, and its alone. */
struct ferry_looker {
	uint64_t looked_at; /* when it last looked in vain; 0: it has worked or slept since */
	long preempted;     /* how often, when it was last asked */
};

/** By its thread, before anything else. */
void ferry_looker_begin(struct ferry_looker *looker);

/** How long to look now, in nanoseconds: limit_ns, or 0 while CPUs are short. `now`: ferry_now_ns. */
static inline uint64_t ferry_spin_ns(const struct ferry_spin *spin, uint64_t now)
{
	return now < atomic_load_explicit(&spin->rest_until, memory_order_relaxed) ? 0 : spin->limit_ns;
}

/** CPUs are short at `now`. The first to say so of all who have looked since the last rest counts. */
void ferry_spin_rest(struct ferry_spin *spin, uint64_t now);

/** After a gap: rests if the kernel has taken the CPU from this thread since it last asked. */
void ferry_spin_ask(struct ferry_spin *spin, struct ferry_looker *looker, uint64_t now);

/** After each look in vain that follows another at once. Costs nothing while the CPU is the thread's own. */
static inline void ferry_spin_looked(struct ferry_spin *spin, struct ferry_looker *looker, uint64_t now)
{
	if (looker->looked_at && now - looker->looked_at > FERRY_SPIN_GAP_NS)
		ferry_spin_ask(spin, looker, now);
	looker->looked_at = now;
}

/** After work, or sleep: it is no wonder if the next look comes late. */
static inline void ferry_spin_found(struct ferry_looker *looker)
{
	looker->looked_at = 0;
}

#endif
