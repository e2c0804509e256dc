/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/wait.h"

#include "ipc/process.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdbool.h>
#include <stdio.h>
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
	/* The release pairs with the acquire in prepare: a waiter that reads this number sees all published before. */
	atomic_fetch_add_explicit(&bell->rings, 1, memory_order_release);
	ferry_futex_wake(&bell->rings, threads, true);
}

uint64_t ferry_now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void ferry_spin_rest(struct ferry_spin *spin, uint64_t now)
{
	uint64_t until = atomic_load_explicit(&spin->rest_until, memory_order_relaxed);
	uint64_t rest = atomic_load_explicit(&spin->rest_ns, memory_order_relaxed);
	if (now < until)
		return;
	rest = !rest || now - until > rest + FERRY_SPIN_TRIAL_NS ? FERRY_SPIN_REST_LEAST_NS
	       : rest < FERRY_SPIN_REST_MOST_NS / 2              ? 2 * rest
	                                                         : FERRY_SPIN_REST_MOST_NS;
	if (atomic_compare_exchange_strong_explicit(&spin->rest_until, &until, now + rest, memory_order_relaxed,
	                                            memory_order_relaxed))
		atomic_store_explicit(&spin->rest_ns, rest, memory_order_relaxed);
}

void ferry_idle_judge(struct ferry_idle *idle, uint64_t ran_ns, uint64_t waited_ns, uint64_t now)
{
	uint64_t ran = ran_ns - idle->ran_ns, waited = waited_ns - idle->waited_ns;
	bool counts = idle->judged_at &&
	              idle->judged_at >= atomic_load_explicit(&idle->spin->rest_until, memory_order_relaxed);
	if (counts && ran + waited < FERRY_SPIN_ENOUGH_NS)
		return;
	if (counts && waited > ran / 2)
		ferry_spin_rest(idle->spin, now);
	idle->judged_at = now;
	idle->ran_ns = ran_ns;
	idle->waited_ns = waited_ns;
}

void ferry_idle_open(struct ferry_idle *idle, struct ferry_spin *spin)
{
	*idle = (struct ferry_idle){.spin = spin, .file = -1};
	if (spin->limit_ns)
		idle->file = ferry_descriptor_above(open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC));
}

void ferry_idle_close(struct ferry_idle *idle)
{
	if (idle->file >= 0)
		close(idle->file);
	idle->file = -1;
}

void ferry_idle_ask(struct ferry_idle *idle, uint64_t now)
{
	char text[96];
	unsigned long long ran, waited;
	ssize_t bytes = pread(idle->file, text, sizeof text - 1, 0);
	text[bytes > 0 ? bytes : 0] = '\0';
	idle->asked_at = now;
	if (sscanf(text, "%llu %llu", &ran, &waited) != 2)
		ferry_idle_close(idle);
	else if (ran) /* 0 until the first tick, and where the kernel has the file and does not count */
		ferry_idle_judge(idle, ran, waited, now);
}
