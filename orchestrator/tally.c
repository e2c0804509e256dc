/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/tally.h"

#include <stdio.h>

void ferry_tally_add(struct ferry_tally *tally, uint64_t bytes, uint64_t ferrys, uint64_t nccls)
{
	atomic_fetch_add_explicit(&tally->calls, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&tally->bytes, bytes, memory_order_relaxed);
	if (!ferrys)
		return;
	double part = (double)ferrys / (double)(ferrys + nccls);
	atomic_fetch_add_explicit(&tally->ferrys_calls, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&tally->ferrys_bytes, (uint64_t)(part * (double)bytes), memory_order_relaxed);
}

static double gigabytes(_Atomic uint64_t *bytes)
{
	return (double)atomic_load_explicit(bytes, memory_order_relaxed) / 1e9;
}

const char *ferry_tally_print(struct ferry_tally *tally, char *text, size_t size)
{
	snprintf(text, size, "Ferry has had %.1f of %.1f GB, %llu of %llu calls", gigabytes(&tally->ferrys_bytes),
	         gigabytes(&tally->bytes),
	         (unsigned long long)atomic_load_explicit(&tally->ferrys_calls, memory_order_relaxed),
	         (unsigned long long)atomic_load_explicit(&tally->calls, memory_order_relaxed));
	return text;
}
