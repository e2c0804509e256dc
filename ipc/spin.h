/* SPDX-License-Identifier: Apache-2.0 */
/**
 * How long a thread looks for what is about to come before it sleeps. To look is quicker than to be woken, but it takes
 * a CPU; where threads outnumber CPUs, perhaps from the one that is waited for, and for a time slice of some
 * milliseconds. The kernel counts how long each thread ran, and how long it could have and waited for a CPU. When one
 * has waited for more than a third of that, none of them looks any more for a while; each time that this proves too
 * short, twice as long.
 */
#ifndef FERRY_IPC_SPIN_H
#define FERRY_IPC_SPIN_H

#include <stdatomic.h>
#include <stdint.h>

#define FERRY_SPIN_ASK_NS 5000000u     /* at most so often: it is a read from /proc */
/* run and waited, to judge by; CPUs are short where more than a third of it is waited */
#define FERRY_SPIN_ENOUGH_NS 10000000u
#define FERRY_SPIN_REST_LEAST_NS 50000000u
#define FERRY_SPIN_REST_MOST_NS 3200000000u
/* and once more the last rest: who finds CPUs short later than that has found another shortage */
#define FERRY_SPIN_TRIAL_NS 500000000u

/** Of the lanes of a communicator, or the workers of a router. Zeroed, but for limit_ns. */
struct ferry_spin {
	uint64_t limit_ns;           /* to look at most; constant; 0: not at all */
	/* nobody looks before; whoever finds CPUs short, by compare and exchange from a time that has passed */
	_Atomic uint64_t rest_until;
	/* the last rest's length; who has set rest_until. Another who reads it too early rests a little less */
	_Atomic uint64_t rest_ns;
};

/** One thread's, and its alone. */
struct ferry_looker {
	int file; /* what the kernel tells of the thread; -1: nothing */
	uint64_t asked_at;
	uint64_t since, ran_ns, waited_ns; /* when it was last judged, and of its life until then; since 0: not yet */
};

/**
 * By its thread, first of all. Where the kernel does not tell, as on Linux without CONFIG_SCHED_INFO or /proc, nobody
 * ever rests.
 */
void ferry_looker_open(struct ferry_looker *looker, const struct ferry_spin *spin);
void ferry_looker_close(struct ferry_looker *looker);

/** How long to look now, in nanoseconds: limit_ns, or 0 while CPUs are short. `now`: ferry_now_ns. */
static inline uint64_t ferry_spin_ns(const struct ferry_spin *spin, uint64_t now)
{
	return now < atomic_load_explicit(&spin->rest_until, memory_order_relaxed) ? 0 : spin->limit_ns;
}

/** CPUs are short at `now`. The first to say so after a rest counts. */
void ferry_spin_rest(struct ferry_spin *spin, uint64_t now);

/**
 * The calling thread has run and waited so long in its life: rests if it has waited too much since it was last judged.
 * What lies before the end of a rest does not count: who sleeps often, and is woken, waits for the CPU to wake up, too.
 */
void ferry_spin_judge(struct ferry_spin *spin, struct ferry_looker *looker, uint64_t ran_ns, uint64_t waited_ns,
                      uint64_t now);

/** Asks the kernel, and judges. */
void ferry_spin_ask(struct ferry_spin *spin, struct ferry_looker *looker, uint64_t now);

/** After each look, in vain or not. */
static inline void ferry_spin_looked(struct ferry_spin *spin, struct ferry_looker *looker, uint64_t now)
{
	if (now - looker->asked_at > FERRY_SPIN_ASK_NS && looker->file >= 0)
		ferry_spin_ask(spin, looker, now);
}

#endif
