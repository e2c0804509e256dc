/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Waiting in shared memory: an eventcount that costs its ringer a fence and a load while nobody sleeps.
 *
 * The waiter announces itself, checks its condition once more, then sleeps; the ringer publishes, then looks for
 * sleepers. Each side's store comes before its load with a full fence between, so at least one of them sees the other:
 * no wake-up is lost (docs/models/eventcount.pml). Writers: anybody who shares the memory. A process that dies asleep
 * leaves `sleepers` too high, which costs later ringers a system call each and nothing else.
 */
#ifndef FERRY_IPC_WAIT_H
#define FERRY_IPC_WAIT_H

#include "ipc/ferry_types.h"

#include <stdatomic.h>
#include <stdbool.h>

struct ferry_doorbell {
	_Atomic uint32_t rings;    /* futex word; anybody who rings adds one */
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

/** Before the last check of the condition. Follow it with ferry_doorbell_cancel or ferry_doorbell_wait. */
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
	uint32_t rings; /* that it had when it was seen */
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
 * Sleeps until one of the bells has rung since it was seen; as ferry_doorbell_wait. Where the kernel cannot wait for so
 * many (before Linux 5.16: for two, later for 129) it wakes up to look every millisecond.
 */
void ferry_bells_wait(const struct ferry_seen_bell *bells, uint32_t count, int64_t timeout_us);

/** Wakes up to `threads` sleepers, all where negative. For ferry_doorbell_ring. */
void ferry_doorbell_wake(struct ferry_doorbell *bell, int threads);

/** After publishing what somebody may wait for. */
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

#endif
