/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/spin.h"

#include "ipc/process.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

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

void ferry_spin_judge(struct ferry_spin *spin, struct ferry_looker *looker, uint64_t ran_ns, uint64_t waited_ns,
                      uint64_t now)
{
	uint64_t ran = ran_ns - looker->ran_ns, waited = waited_ns - looker->waited_ns;
	bool counts = looker->since && looker->since >= atomic_load_explicit(&spin->rest_until, memory_order_relaxed);
	if (counts && ran + waited < FERRY_SPIN_ENOUGH_NS)
		return;
	if (counts && waited > ran / 2)
		ferry_spin_rest(spin, now);
	looker->since = now;
	looker->ran_ns = ran_ns;
	looker->waited_ns = waited_ns;
}

void ferry_looker_open(struct ferry_looker *looker, const struct ferry_spin *spin)
{
	*looker = (struct ferry_looker){.file = -1};
	if (spin->limit_ns)
		looker->file = ferry_descriptor_above(open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC));
}

void ferry_looker_close(struct ferry_looker *looker)
{
	if (looker->file >= 0)
		close(looker->file);
	looker->file = -1;
}

void ferry_spin_ask(struct ferry_spin *spin, struct ferry_looker *looker, uint64_t now)
{
	char text[96];
	unsigned long long ran, waited;
	ssize_t bytes = pread(looker->file, text, sizeof text - 1, 0);
	text[bytes > 0 ? bytes : 0] = '\0';
	looker->asked_at = now;
	if (sscanf(text, "%llu %llu", &ran, &waited) != 2)
		ferry_looker_close(looker);
	else if (ran) /* 0 until the first tick, and where the kernel has the file and does not count */
		ferry_spin_judge(spin, looker, ran, waited, now);
}
