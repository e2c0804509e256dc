/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a copy of one GPU costs besides its bytes. Copies are timed behind a gate: the stream waits for a flag while the
 * host enqueues, so the GPU's clock sees the copy engine alone and not how fast the host can ask.
 */
#include "bench/command/sample.h"
#include "bench/limits/measure.h"
#include "bench/limits/port.h"
#include "bench/limits/progress.h"
#include "ipc/error.h"

#include <stdatomic.h>

#define ROUNDS     7
#define LEAST_COPY (64ull << 10)
#define MOST_COPY  (8ull << 20)
#define MOST_QUEUE 64 /* copies behind a gate: far fewer than a stream can queue before it makes the caller wait */

struct bench {
	struct port *port;
	_Atomic uint32_t *gate; /* pinned; the GPU reads it */
	uint32_t turn;          /* the gate's value that opens it next */
	CUevent start, end;
};

static CUresult wait_at_gate(struct bench *bench, CUstream stream)
{
	CUstreamBatchMemOpParams wait = {.waitValue = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32,
	                                               .address = (CUdeviceptr)(uintptr_t)bench->gate,
	                                               .value = bench->turn,
	                                               .flags = CU_STREAM_WAIT_VALUE_GEQ}};
	return gpu_driver->StreamBatchMemOp(stream, 1, &wait, 0);
}

/* To be called whatever failed before: a stream left behind the gate could never be destroyed. */
static void open_gate(struct bench *bench)
{
	atomic_store_explicit(bench->gate, bench->turn++, memory_order_release);
}

/* ---- sizes ---- */

static CUresult enqueue_copies(struct bench *bench, bool d2h, uint64_t bytes, int copies)
{
	CUstream stream = d2h ? bench->port->d2h.streams[0] : bench->port->h2d.streams[0];
	uint64_t window = 32ull << 20;
	CUresult refused = wait_at_gate(bench, stream);
	if (!refused)
		refused = gpu_driver->EventRecord(bench->start, stream);
	for (int k = 0; k < copies && !refused; k++)
		refused = port_copy(bench->port, d2h, stream, bench->port->host + (uint64_t)k * bytes % window,
		                    (uint64_t)k * bytes, bytes);
	return refused ? refused : gpu_driver->EventRecord(bench->end, stream);
}

/* Microseconds per copy. */
static ferryResult_t time_copies(struct bench *bench, bool d2h, uint64_t bytes, double *us)
{
	CUstream stream = d2h ? bench->port->d2h.streams[0] : bench->port->h2d.streams[0];
	int copies = (64ull << 20) / bytes < MOST_QUEUE ? (int)((64ull << 20) / bytes) : MOST_QUEUE;
	double rounds[ROUNDS];
	for (int round = 0; round < ROUNDS; round++) {
		float ms = 0;
		CUresult refused = enqueue_copies(bench, d2h, bytes, copies);
		open_gate(bench);
		CUresult ended = gpu_driver->StreamSynchronize(stream);
		refused = refused ? refused : ended;
		if (!refused)
			refused = gpu_driver->EventElapsedTime(&ms, bench->start, bench->end);
		if (refused)
			return gpu_good(refused, "timing copies behind a gate");
		rounds[round] = ms * 1e3 / copies;
	}
	*us = sample_summarize(rounds, ROUNDS).median;
	return ferrySuccess;
}

/* One direction: us = overhead + slope * bytes, by least squares of relative errors: each weighs 1 / us^2. */
static ferryResult_t fit_copies(struct bench *bench, bool d2h, bool quick, double *overhead_us, double *gbps)
{
	double w = 0, x = 0, y = 0, xx = 0, xy = 0;
	for (uint64_t size = LEAST_COPY; size <= MOST_COPY; size *= quick ? 4 : 2) {
		double us = 0, bytes = (double)size;
		limits_progress("copies of %llu KiB", (unsigned long long)size >> 10);
		ferryResult_t result = time_copies(bench, d2h, size, &us);
		if (result)
			return result;
		double weight = 1 / (us * us);
		w += weight;
		x += weight * bytes;
		y += weight * us;
		xx += weight * bytes * bytes;
		xy += weight * bytes * us;
	}
	double slope = (w * xy - x * y) / (w * xx - x * x);
	double overhead = (y - slope * x) / w;
	*overhead_us = overhead > 0 ? overhead : 0;
	*gbps = 1 / slope / 1e3;
	return ferrySuccess;
}

static ferryResult_t measure_copies(struct bench *bench, struct ferry_limits *limits)
{
	struct ferry_limits_copy *copy = &limits->copy;
	ferryResult_t result = fit_copies(bench, true, limits->quick, &copy->d2h_overhead_us, &copy->d2h);
	return result ? result : fit_copies(bench, false, limits->quick, &copy->h2d_overhead_us, &copy->h2d);
}

/* ---- enqueueing ---- */

/* How long the call takes that enqueues a copy; the stream is held at a gate, so none runs meanwhile. */
static ferryResult_t time_enqueues(struct bench *bench, double *copy_us)
{
	CUstream stream = bench->port->d2h.streams[0];
	CUresult refused = wait_at_gate(bench, stream);
	double start = sample_now_us();
	for (int i = 0; i < MOST_QUEUE && !refused; i++)
		refused = port_copy(bench->port, true, stream, bench->port->host, 0, LEAST_COPY);
	*copy_us = (sample_now_us() - start) / MOST_QUEUE;
	open_gate(bench);
	CUresult ended = gpu_driver->StreamSynchronize(stream);
	return gpu_good(refused ? refused : ended, "enqueueing copies behind a gate");
}

static ferryResult_t measure_enqueues(struct bench *bench, struct ferry_limits *limits)
{
	double copies[ROUNDS];
	for (int i = 0; i < ROUNDS; i++) {
		ferryResult_t result = time_enqueues(bench, &copies[i]);
		if (result)
			return result;
	}
	limits->copy.enqueue_us = sample_summarize(copies, ROUNDS).median;
	return ferrySuccess;
}

/* ---- all ---- */

static ferryResult_t open_bench(struct bench *bench)
{
	void *memory = NULL;
	unsigned mapped = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
	CUresult refused = gpu_driver->MemHostAlloc(&memory, sizeof *bench->gate, mapped);
	if (refused)
		return gpu_good(refused, "allocating pinned memory for a flag");
	bench->gate = memory;
	atomic_init(bench->gate, 0);
	refused = gpu_driver->EventCreate(&bench->start, CU_EVENT_DEFAULT);
	if (!refused)
		refused = gpu_driver->EventCreate(&bench->end, CU_EVENT_DEFAULT);
	return gpu_good(refused, "creating timed events");
}

ferryResult_t limits_measure_copies(struct port *port, struct ferry_limits *limits)
{
	struct bench bench = {.port = port, .turn = 1};
	ferryResult_t result = port_enter(port);
	if (!result)
		result = open_bench(&bench);
	if (!result)
		result = measure_enqueues(&bench, limits);
	if (!result)
		result = measure_copies(&bench, limits);
	if (bench.start)
		gpu_driver->EventDestroy(bench.start);
	if (bench.end)
		gpu_driver->EventDestroy(bench.end);
	if (bench.gate)
		gpu_driver->MemFreeHost(bench.gate);
	return result;
}
