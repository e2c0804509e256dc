/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/wait.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void ferry_futex_wait(_Atomic uint32_t *word, uint32_t expected, int64_t timeout_us, bool shared)
{
	struct timespec limit = {timeout_us / 1000000, timeout_us % 1000000 * 1000};
	syscall(SYS_futex, word, FUTEX_WAIT | (shared ? 0 : FUTEX_PRIVATE_FLAG), expected,
	        timeout_us < 0 ? NULL : &limit, NULL, 0);
}

void ferry_futex_wake(_Atomic uint32_t *word, int threads, bool shared)
{
	syscall(SYS_futex, word, FUTEX_WAKE | (shared ? 0 : FUTEX_PRIVATE_FLAG), threads < 0 ? INT_MAX : threads, NULL,
	        NULL, 0);
}

void ferry_doorbell_wait(struct ferry_doorbell *bell, uint32_t seen, int64_t timeout_us)
{
	ferry_futex_wait(&bell->rings, seen, timeout_us, true);
	ferry_doorbell_cancel(bell);
}

#define WAIT_MOST 128 /* FUTEX_WAITV_MAX */
#define LOOK_US 1000

/* As in the kernel since 5.16; its headers may be older than it is. */
struct waiter {
	uint64_t expected, address;
	uint32_t flags, reserved;
};

static bool wait_for_any(const struct ferry_seen_bell *bells, uint32_t count, int64_t timeout_us)
{
	struct waiter waiters[WAIT_MOST];
	struct timespec limit;
	if (count > WAIT_MOST)
		return false;
	for (uint32_t i = 0; i < count; i++)
		waiters[i] = (struct waiter){bells[i].rings, (uintptr_t)&bells[i].bell->rings,
		                             2 /* FUTEX_32, shared */, 0};
	clock_gettime(CLOCK_MONOTONIC, &limit);
	limit.tv_nsec += timeout_us % 1000000 * 1000;
	limit.tv_sec += timeout_us / 1000000 + limit.tv_nsec / 1000000000;
	limit.tv_nsec %= 1000000000;
	return syscall(449 /* futex_waitv */, waiters, count, 0, timeout_us < 0 ? NULL : &limit, CLOCK_MONOTONIC) >=
	               0 ||
	       errno == EAGAIN || errno == EINTR || errno == ETIMEDOUT; /* else it cannot: an old kernel, or a filter */
}

void ferry_bells_wait(const struct ferry_seen_bell *bells, uint32_t count, int64_t timeout_us)
{
	static _Atomic bool waits_for_one; /* the kernel has no futex_waitv; set once */
	bool one = count == 1 || atomic_load_explicit(&waits_for_one, memory_order_relaxed);
	if (!one && !wait_for_any(bells, count, timeout_us)) {
		atomic_store_explicit(&waits_for_one, count <= WAIT_MOST, memory_order_relaxed);
		one = true;
	}
	if (one) {
		int64_t look = timeout_us < 0 || timeout_us > LOOK_US ? LOOK_US : timeout_us;
		ferry_futex_wait(&bells[0].bell->rings, bells[0].rings, count == 1 ? timeout_us : look, true);
	}
	ferry_bells_cancel(bells, count);
}

void ferry_doorbell_wake(struct ferry_doorbell *bell, int threads)
{
	/*
	 * The release pairs with the acquire in prepare: a waiter that reads this number sees what was published before
	 * it.
	 */
	atomic_fetch_add_explicit(&bell->rings, 1, memory_order_release);
	ferry_futex_wake(&bell->rings, threads, true);
}

uint64_t ferry_now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
