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

/* No read-modify-write is needed: calls of a communicator are made one after the other. */
static void grow(_Atomic uint64_t *counter, uint64_t by)
{
	atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + by, memory_order_relaxed);
}

void ferry_tally_add_kernel(struct ferry_tally *tally, uint64_t bytes)
{
	grow(&tally->kernels_calls, 1);
	grow(&tally->kernels_bytes, bytes);
}

uint64_t ferry_tally_kernels(struct ferry_tally *tally)
{
	return atomic_load_explicit(&tally->kernels_calls, memory_order_relaxed);
}

static double gigabytes(_Atomic uint64_t *bytes)
{
	return (double)atomic_load_explicit(bytes, memory_order_relaxed) / 1e9;
}

const char *ferry_tally_print(struct ferry_tally *tally, char *text, size_t size)
{
	uint64_t kernels = ferry_tally_kernels(tally);
	int at = snprintf(text, size, "Ferry has had %.1f of %.1f GB, %ju of %ju calls",
	                  gigabytes(&tally->ferrys_bytes) + gigabytes(&tally->kernels_bytes),
	                  gigabytes(&tally->bytes) + gigabytes(&tally->kernels_bytes),
	                  (uintmax_t)(atomic_load_explicit(&tally->ferrys_calls, memory_order_relaxed) + kernels),
	                  (uintmax_t)(atomic_load_explicit(&tally->calls, memory_order_relaxed) + kernels));
	if (kernels && at > 0 && (size_t)at < size)
		snprintf(text + at, size - (size_t)at, ", %ju by kernels", (uintmax_t)kernels);
	return text;
}
