/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fixed costs on one GPU. Copies are timed behind a gate: the stream waits for a flag while the host enqueues, so the
 * GPU's clock sees the copy engine alone and not how fast the host can ask.
 */
#include "bench/command/sample.h"
#include "bench/limits/measure.h"
#include "bench/limits/port.h"
#include "bench/limits/table.h"
#include "ipc/error.h"

#include <stdatomic.h>

#define ROUNDS     7
#define LEAST_COPY (64ull << 10)
#define MOST_COPY  (8ull << 20)
#define MOST_QUEUE  64 /* copies behind a gate: far fewer than a stream can queue before it makes the caller wait */
#define PATIENCE_US 2e6

/* Pinned flags, a pair of cache lines each. The GPU reads the gate and writes the answer. */
struct gate {
	_Alignas(128) _Atomic uint32_t open;
	_Alignas(128) _Atomic uint32_t answer;
};

struct bench {
	struct port *port;
	struct gate *gate;
	uint32_t turn; /* the gate's value that opens it next */
	CUevent starts[PORT_STREAMS], ends[PORT_STREAMS];
};

static CUresult wait_at_gate(struct bench *bench, CUstream stream)
{
	CUstreamBatchMemOpParams wait = {.waitValue = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32,
	                                               .address = (CUdeviceptr)(uintptr_t)&bench->gate->open,
	                                               .value = bench->turn,
	                                               .flags = CU_STREAM_WAIT_VALUE_GEQ}};
	return gpu_driver->StreamBatchMemOp(stream, 1, &wait, 0);
}

/* Whatever happened before: a stream left behind the gate could never be destroyed. */
static void open_gate(struct bench *bench)
{
	atomic_store_explicit(&bench->gate->open, bench->turn++, memory_order_release);
}

/* ---- sizes ---- */

/* From the first start to the last end over the streams. */
static CUresult elapsed_us(struct bench *bench, int streams, double *us)
{
	*us = 0;
	for (int i = 0; i < streams; i++)
		for (int k = 0; k < streams; k++) {
			float ms = 0;
			CUresult refused = gpu_driver->EventElapsedTime(&ms, bench->starts[i], bench->ends[k]);
			if (refused)
				return refused;
			*us = ms * 1e3 > *us ? ms * 1e3 : *us;
		}
	return CUDA_SUCCESS;
}

static CUresult enqueue_copies(struct bench *bench, bool d2h, uint64_t bytes, int streams, int copies)
{
	struct port_way *way = d2h ? &bench->port->d2h : &bench->port->h2d;
	uint64_t window = 32ull << 20;
	CUresult refused = CUDA_SUCCESS;
	for (int i = 0; i < streams && !refused; i++) {
		refused = wait_at_gate(bench, way->streams[i]);
		if (!refused)
			refused = gpu_driver->EventRecord(bench->starts[i], way->streams[i]);
	}
	for (int k = 0; k < copies && !refused; k++)
		refused = port_copy(bench->port, d2h, way->streams[k % streams],
		                    bench->port->host + (uint64_t)k * bytes % window, (uint64_t)k * bytes, bytes);
	for (int i = 0; i < streams && !refused; i++)
		refused = gpu_driver->EventRecord(bench->ends[i], way->streams[i]);
	return refused;
}

/* Microseconds per copy. */
static ferryResult_t time_copies(struct bench *bench, bool d2h, uint64_t bytes, int streams, double *us)
{
	struct port_way *way = d2h ? &bench->port->d2h : &bench->port->h2d;
	int copies = (64ull << 20) / bytes < MOST_QUEUE ? (int)((64ull << 20) / bytes) : MOST_QUEUE;
	double rounds[ROUNDS];
	for (int round = 0; round < ROUNDS; round++) {
		CUresult refused = enqueue_copies(bench, d2h, bytes, streams, copies);
		open_gate(bench);
		for (int i = 0; i < streams; i++) {
			CUresult ended = gpu_driver->StreamSynchronize(way->streams[i]);
			refused = refused ? refused : ended;
		}
		if (!refused)
			refused = elapsed_us(bench, streams, &rounds[round]);
		if (refused)
			return gpu_good(refused, "timing copies behind a gate");
		rounds[round] /= copies;
	}
	*us = sample_summarize(rounds, ROUNDS).median;
	return ferrySuccess;
}

/* Least squares of us = overhead + slope * bytes, each point weighted by 1 / us^2: all sizes count alike. */
static void fit(const struct ferry_limits *limits, bool d2h, double *overhead_us, double *gbps)
{
	double w = 0, x = 0, y = 0, xx = 0, xy = 0;
	for (int i = 0; i < limits->nsizes; i++) {
		const struct ferry_limits_size *size = &limits->sizes[i];
		double us = d2h ? size->d2h_us : size->h2d_us, weight = 1 / (us * us), bytes = (double)size->bytes;
		if (size->streams != 1)
			continue;
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
}

static ferryResult_t measure_sizes(struct bench *bench, struct ferry_limits *limits)
{
	for (int streams = 1; streams <= PORT_STREAMS; streams++)
		for (uint64_t bytes = LEAST_COPY; bytes <= MOST_COPY; bytes *= limits->quick ? 4 : 2) {
			struct ferry_limits_size *size = &limits->sizes[limits->nsizes];
			*size = (struct ferry_limits_size){.bytes = bytes, .streams = streams};
			limits_progress("copies of %llu KiB on %d stream%s", (unsigned long long)bytes >> 10, streams,
			                streams > 1 ? "s" : "");
			ferryResult_t result = time_copies(bench, true, bytes, streams, &size->d2h_us);
			if (!result)
				result = time_copies(bench, false, bytes, streams, &size->h2d_us);
			if (result)
				return result;
			limits->nsizes++;
		}
	fit(limits, true, &limits->copy.d2h_overhead_us, &limits->copy.d2h);
	fit(limits, false, &limits->copy.h2d_overhead_us, &limits->copy.h2d);
	return ferrySuccess;
}

/* ---- flags ---- */

/* One round trip: the GPU waits already when the host opens the gate. */
static ferryResult_t go_round(struct bench *bench, double *us)
{
	CUstream stream = bench->port->d2h.streams[0];
	uint32_t turn = bench->turn;
	CUresult refused = wait_at_gate(bench, stream);
	if (!refused)
		refused = gpu_driver->StreamWriteValue32(stream, (CUdeviceptr)(uintptr_t)&bench->gate->answer, turn, 0);
	double start = sample_now_us();
	while (!refused && sample_now_us() - start < 30) /* for the wait to reach the GPU */
		;
	double before = sample_now_us(), now = before;
	open_gate(bench);
	while (!refused && atomic_load_explicit(&bench->gate->answer, memory_order_acquire) != turn) {
		now = sample_now_us();
		if (now - before > PATIENCE_US)
			return ferry_fail(ferryUnhandledDeviceError,
			                  "the GPU did not answer flag %u within %.0f s: stream "
			                  "memory operations do not reach host memory",
			                  turn, PATIENCE_US / 1e6);
	}
	*us = sample_now_us() - before;
	return gpu_good(refused, "a wait and a write in a stream");
}

/* How long the calls take that enqueue; the stream is held at a gate, so none runs meanwhile. */
static ferryResult_t time_enqueues(struct bench *bench, double *copy_us, double *flag_us)
{
	CUstream stream = bench->port->d2h.streams[0];
	CUresult refused = wait_at_gate(bench, stream);
	double start = sample_now_us();
	for (int i = 0; i < MOST_QUEUE && !refused; i++)
		refused = port_copy(bench->port, true, stream, bench->port->host, 0, LEAST_COPY);
	double middle = sample_now_us();
	for (int i = 0; i < MOST_QUEUE && !refused; i++)
		refused = gpu_driver->StreamWriteValue32(stream, (CUdeviceptr)(uintptr_t)&bench->gate->answer, 0, 0);
	double end = sample_now_us();
	open_gate(bench);
	CUresult ended = gpu_driver->StreamSynchronize(stream);
	*copy_us = (middle - start) / MOST_QUEUE;
	*flag_us = (end - middle) / MOST_QUEUE;
	return gpu_good(refused ? refused : ended, "enqueueing copies and flags behind a gate");
}

static ferryResult_t measure_flags(struct bench *bench, struct ferry_limits *limits)
{
	static double trips[200];
	double copies[ROUNDS], flags[ROUNDS];
	int count = limits->quick ? 50 : 200;
	limits_progress("flags between host and GPU");
	for (int i = 0; i < count; i++) {
		ferryResult_t result = go_round(bench, &trips[i]);
		if (result)
			return result;
	}
	CUresult refused = gpu_driver->StreamSynchronize(bench->port->d2h.streams[0]);
	if (refused)
		return gpu_good(refused, "waiting for the last flag");
	limits->flags.round_trip_us = sample_summarize(trips, (size_t)count).median;
	for (int i = 0; i < ROUNDS; i++) {
		ferryResult_t result = time_enqueues(bench, &copies[i], &flags[i]);
		if (result)
			return result;
	}
	limits->copy.enqueue_us = sample_summarize(copies, ROUNDS).median;
	limits->flags.enqueue_us = sample_summarize(flags, ROUNDS).median;
	return ferrySuccess;
}

/* ---- both ---- */

static ferryResult_t open_bench(struct bench *bench)
{
	void *memory = NULL;
	unsigned mapped = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
	CUresult refused = gpu_driver->MemHostAlloc(&memory, sizeof *bench->gate, mapped);
	if (refused)
		return gpu_good(refused, "allocating pinned memory for flags");
	bench->gate = memory;
	atomic_init(&bench->gate->open, 0);
	atomic_init(&bench->gate->answer, 0);
	for (int i = 0; i < PORT_STREAMS && !refused; i++) {
		refused = gpu_driver->EventCreate(&bench->starts[i], CU_EVENT_DEFAULT);
		if (!refused)
			refused = gpu_driver->EventCreate(&bench->ends[i], CU_EVENT_DEFAULT);
	}
	return gpu_good(refused, "creating timed events");
}

ferryResult_t limits_measure_latency(struct port *port, struct ferry_limits *limits)
{
	struct bench bench = {.port = port, .turn = 1};
	ferryResult_t result = port_enter(port);
	if (!result)
		result = open_bench(&bench);
	if (!result)
		result = measure_flags(&bench, limits);
	if (!result)
		result = measure_sizes(&bench, limits);
	for (int i = 0; i < PORT_STREAMS; i++) {
		if (bench.starts[i])
			gpu_driver->EventDestroy(bench.starts[i]);
		if (bench.ends[i])
			gpu_driver->EventDestroy(bench.ends[i]);
	}
	if (bench.gate)
		gpu_driver->MemFreeHost(bench.gate);
	return result;
}
