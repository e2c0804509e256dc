/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/spin.h"

#include <sys/resource.h>

void ferry_spin_rest(struct ferry_spin *spin, uint64_t now)
{
	uint64_t until = atomic_load_explicit(&spin->rest_until, memory_order_relaxed);
	uint64_t rest = atomic_load_explicit(&spin->rest_ns, memory_order_relaxed);
	if (now < until)
		return;
	/* A trial that lasted as long as the rest before it has shown that there are CPUs: what is short now is something else. */
	rest = !rest || now - until > rest ? FERRY_SPIN_REST_LEAST_NS : rest < FERRY_SPIN_REST_MOST_NS / 2 ? 2 * rest : FERRY_SPIN_REST_MOST_NS;
	if (atomic_compare_exchange_strong_explicit(&spin->rest_until, &until, now + rest, memory_order_relaxed, memory_order_relaxed))
		atomic_store_explicit(&spin->rest_ns, rest, memory_order_relaxed);
}

static long times_preempted(void)
{
	struct rusage usage;
	return getrusage(RUSAGE_THREAD, &usage) ? 0 : usage.ru_nivcsw;
}

void ferry_looker_begin(struct ferry_looker *looker)
{
	*looker = (struct ferry_looker){.preempted = times_preempted()};
}

void ferry_spin_ask(struct ferry_spin *spin, struct ferry_looker *looker, uint64_t now)
{
	long preempted = times_preempted();
	if (preempted != looker->preempted)
		ferry_spin_rest(spin, now);
	looker->preempted = preempted;
}
