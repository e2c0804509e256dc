/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Waiting: how a thread with nothing to do polls for a while, then sleeps in shared memory.
 *
 * A doorbell is an eventcount that costs its ringer a fence and a load while no thread sleeps. The waiter announces
 * itself, checks its condition once more, then sleeps; the ringer publishes, then checks for sleepers. Each side's
 * store comes before its load with a full fence between, so at least one of them sees the other: no wake-up is lost
 * (docs/models/eventcount.pml). Writers: any process that shares the memory. A process that dies asleep leaves
 * `sleepers` too high, which costs later ringers a system call each and nothing else.
 *
 * Spinning is quicker than being woken, but it takes a CPU. Where threads outnumber CPUs, it may take the CPU from the
 * very thread that it waits for, for a time slice of some milliseconds. The kernel counts how long each thread ran, and
 * how long it was ready and waited for a CPU. When one thread of a group has waited for more than a third of that
 * time, no thread of the group spins for a while; each time that this proves too short, for twice as long.
 */
#ifndef FERRY_IPC_WAIT_H
#define FERRY_IPC_WAIT_H

#include "ipc/ferry_types.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct ferry_doorbell {
	_Atomic uint32_t rings;    /* futex word; every ringer adds one */
	_Atomic uint32_t sleepers; /* threads between prepare and the end of their wait */
	char pad[120];             /* a pair of cache lines: prefetchers fetch pairs */
};

/**
 * Orders all earlier stores before all later loads. ThreadSanitizer knows no fences, so it gets the instruction alone.
 */
static inline void ferry_full_fence(void)
{
#if defined(__SANITIZE_THREAD__) && defined(__x86_64__)
	__asm__ volatile("mfence" ::: "memory");
#elif defined(__SANITIZE_THREAD__) && defined(__aarch64__)
	__asm__ volatile("dmb ish" ::: "memory");
#else
	atomic_thread_fence(memory_order_seq_cst);
#endif
}

/** Orders all earlier stores before all later stores. */
static inline void ferry_store_fence(void)
{
#ifdef __SANITIZE_THREAD__
	ferry_full_fence();
#else
	atomic_thread_fence(memory_order_release);
#endif
}

/** To be called before the last check of the condition; ferry_doorbell_cancel or ferry_doorbell_wait must follow. */
static inline uint32_t ferry_doorbell_prepare(struct ferry_doorbell *bell)
{
	uint32_t seen = atomic_load_explicit(&bell->rings, memory_order_acquire);
	atomic_fetch_add_explicit(&bell->sleepers, 1, memory_order_seq_cst);
	ferry_full_fence();
	return seen;
}

static inline void ferry_doorbell_cancel(struct ferry_doorbell *bell)
{
	atomic_fetch_sub_explicit(&bell->sleepers, 1, memory_order_relaxed);
}

/** Sleeps until the bell has rung since `seen`, or timeout_us have passed (negative: no limit), or spuriously. */
void ferry_doorbell_wait(struct ferry_doorbell *bell, uint32_t seen, int64_t timeout_us);

/* A bell among several that a thread is about to sleep at. */
struct ferry_seen_bell {
	struct ferry_doorbell *bell;
	uint32_t rings; /* its value when the bell was prepared */
};

static inline struct ferry_seen_bell ferry_bell_prepare(struct ferry_doorbell *bell)
{
	return (struct ferry_seen_bell){bell, ferry_doorbell_prepare(bell)};
}

static inline void ferry_bells_cancel(const struct ferry_seen_bell *bells, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		ferry_doorbell_cancel(bells[i].bell);
}

/**
 * Sleeps until one of the bells has rung since it was prepared, as ferry_doorbell_wait does. If the kernel cannot wait
 * for that many (two before Linux 5.16, 129 since), it returns after a millisecond, and the caller looks again.
 */
void ferry_bells_wait(const struct ferry_seen_bell *bells, uint32_t count, int64_t timeout_us);

/** Wakes up to `threads` sleepers, all if negative, without a look whether there are any. */
void ferry_doorbell_wake(struct ferry_doorbell *bell, int threads);

/** To be called after publishing, for threads that may wait for it. */
static inline void ferry_doorbell_ring(struct ferry_doorbell *bell)
{
	ferry_full_fence();
	if (atomic_load_explicit(&bell->sleepers, memory_order_relaxed) != 0)
		ferry_doorbell_wake(bell, -1);
}

/** The bare futex: sleeps while *word == expected. shared: the word may be in memory shared between processes. */
void ferry_futex_wait(_Atomic uint32_t *word, uint32_t expected, int64_t timeout_us, bool shared);
void ferry_futex_wake(_Atomic uint32_t *word, int threads, bool shared);

/** CLOCK_MONOTONIC in nanoseconds. */
uint64_t ferry_now_ns(void);

/** Tells the core that this is a spin loop. */
static inline void ferry_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* ---- spinning ---- */

#define FERRY_SPIN_ASK_NS 5000000u /* the kernel is asked at most so often: it is a read from /proc */
/* time run and waited that is enough to judge by; CPUs are short if a thread has waited for more than a third of it */
#define FERRY_SPIN_ENOUGH_NS 10000000u
#define FERRY_SPIN_REST_LEAST_NS 50000000u
#define FERRY_SPIN_REST_MOST_NS 3200000000u
/* A thread that finds CPUs short later than this, plus the last rest, after a rest has found another shortage. */
#define FERRY_SPIN_TRIAL_NS 500000000u

/** Of a group of threads: the lanes of a communicator, or the workers of a router. Zeroed, but for limit_ns. */
struct ferry_spin {
	uint64_t limit_ns;           /* to spin at most; constant; 0: not at all */
	/* no thread spins before this time; a thread that finds CPUs short replaces a past time, by compare and swap */
	_Atomic uint64_t rest_until;
	/* the last rest's length; stored by the thread that has set rest_until. A reader of the old one rests less */
	_Atomic uint64_t rest_ns;
};

/**
 * One thread's, and written by that thread alone. In its loop:
 *     poll; ferry_idle_looked; found something: ferry_idle_found; else, while ferry_idle_looks_on, poll again; sleep.
 */
struct ferry_idle {
	struct ferry_spin *spin;
	uint64_t since; /* when it first found nothing; 0: it found something the last time */
	int file; /* the kernel's statistics of the thread; -1: none */
	uint64_t asked_at; /* when it last read them */
	uint64_t judged_at, ran_ns, waited_ns; /* when last judged (0: never), and the thread's life until then */
};

/**
 * Returns how long to spin now, in nanoseconds: limit_ns, or 0 while CPUs are short. `now`: ferry_now_ns, here and
 * below.
 */
static inline uint64_t ferry_spin_ns(const struct ferry_spin *spin, uint64_t now)
{
	return now < atomic_load_explicit(&spin->rest_until, memory_order_relaxed) ? 0 : spin->limit_ns;
}

/** Starts a rest, as CPUs are short. Does nothing during a rest. */
void ferry_spin_rest(struct ferry_spin *spin, uint64_t now);

/**
 * To be called first. Where the kernel has no such statistics, as on Linux without CONFIG_SCHED_INFO or /proc, spinning
 * never rests.
 */
void ferry_idle_open(struct ferry_idle *idle, struct ferry_spin *spin);
void ferry_idle_close(struct ferry_idle *idle);

/**
 * Starts a rest if the thread has waited too much since it was last judged. ran_ns, waited_ns: of its whole life. Time
 * before the end of a rest does not count: a thread that sleeps often waits for a CPU at each wake-up, too.
 */
void ferry_idle_judge(struct ferry_idle *idle, uint64_t ran_ns, uint64_t waited_ns, uint64_t now);

/** Reads the kernel's statistics, and judges by them. */
void ferry_idle_ask(struct ferry_idle *idle, uint64_t now);

/** To be called after each poll, whether it found something or not. */
static inline void ferry_idle_looked(struct ferry_idle *idle, uint64_t now)
{
	if (now - idle->asked_at > FERRY_SPIN_ASK_NS && idle->file >= 0)
		ferry_idle_ask(idle, now);
}

static inline void ferry_idle_found(struct ferry_idle *idle)
{
	idle->since = 0;
}

/** The thread has found nothing. Returns whether it should poll again rather than sleep. */
static inline bool ferry_idle_looks_on(struct ferry_idle *idle, uint64_t now)
{
	if (!idle->since)
		idle->since = now;
	return now - idle->since < ferry_spin_ns(idle->spin, now);
}

/** How long ago the thread stopped spinning, in nanoseconds. */
static inline uint64_t ferry_idle_ns(const struct ferry_idle *idle, uint64_t now)
{
	uint64_t nothing = idle->since ? now - idle->since : 0, looked = ferry_spin_ns(idle->spin, now);
	return nothing > looked ? nothing - looked : 0;
}

#endif
