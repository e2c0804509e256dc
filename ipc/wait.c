/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/wait.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void ferry_futex_wait(_Atomic uint32_t *word, uint32_t expected, int64_t timeout_us, bool shared)
{
	struct timespec limit = {timeout_us / 1000000, timeout_us % 1000000 * 1000};
	syscall(SYS_futex, word, FUTEX_WAIT | (shared ? 0 : FUTEX_PRIVATE_FLAG), expected, timeout_us < 0 ? NULL : &limit, NULL,
	        0);
}

void ferry_futex_wake(_Atomic uint32_t *word, int threads, bool shared)
{
	syscall(SYS_futex, word, FUTEX_WAKE | (shared ? 0 : FUTEX_PRIVATE_FLAG), threads < 0 ? INT_MAX : threads, NULL, NULL, 0);
}

void ferry_doorbell_wait(struct ferry_doorbell *bell, uint32_t ticket, int64_t timeout_us)
{
	ferry_futex_wait(&bell->rings, ticket, timeout_us, true);
	ferry_doorbell_cancel(bell);
}

void ferry_doorbell_wake(struct ferry_doorbell *bell, int threads)
{
	/* The release pairs with the acquire in prepare: a waiter that reads this ticket sees what was published before it. */
	atomic_fetch_add_explicit(&bell->rings, 1, memory_order_release);
	ferry_futex_wake(&bell->rings, threads, true);
}

uint64_t ferry_now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
