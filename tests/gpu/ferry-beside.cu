/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ferry-beside: what kernels and calls take from each other. One process per GPU, under ferryrun: kernels of 0.1, 1 and
 * 5 ms that fill every multiprocessor, back to back, and AllReduce or AllGather of 256 MiB, Ferry's or NCCL's, made one
 * by one or replayed as a graph; the kernels' time alone and while calls are under way, the calls' rate alone and while
 * kernels run. In rounds, each against the mean of the two rounds alone around it; of the GPU that loses most, the
 * median over rounds. A kernel is as long as its arithmetic: it loads nothing, and little power.
 */
#define CREW_PROGRAM "ferry-beside"
#include "tests/gpu/crew.cuh"
extern "C" {
#include "ipc/process.h"
}

#include <atomic>
#include <cmath>
#include <thread>

#define BYTES       ((size_t)256 << 20)
#define WINDOW_US   150000.0 /* of kernels, or of calls, that are timed */
#define BATCH_US    5000.0   /* of kernels that are launched ahead, twice */
#define ROUNDS      5
#define THREADS     1024 /* of a block; two fill a multiprocessor */
#define BLOCKS_EACH 2
#define TRIAL       200000L

static cudaStream_t kernels;
static float *sink;
static int blocks;
static double alone_call_us;
static bool gathers, nccl, graph, in_place; /* what the calls are */
static double only_ms;                      /* of kernels; 0: 0.1, 1 and 5 */

static __global__ void compute(long iterations, float *out)
{
	float x = (float)threadIdx.x;
	for (long i = 0; i < iterations; i++)
		x = x * 0.999f + 0.5f;
	if (x == -1)
		*out = x;
}

static void launch(long iterations)
{
	compute<<<blocks, THREADS, 0, kernels>>>(iterations, sink);
	CUDA(cudaGetLastError());
}

/* Between two events in a stream around what `put` puts there. */
template <typename Put> static double time_in(cudaStream_t stream, Put put)
{
	cudaEvent_t start, end;
	float ms;
	CUDA(cudaEventCreate(&start));
	CUDA(cudaEventCreate(&end));
	CUDA(cudaEventRecord(start, stream));
	put();
	CUDA(cudaEventRecord(end, stream));
	CUDA(cudaEventSynchronize(end));
	CUDA(cudaEventElapsedTime(&ms, start, end));
	CUDA(cudaEventDestroy(start));
	CUDA(cudaEventDestroy(end));
	return 1e3 * ms;
}

/* Microseconds per kernel; beside: while calls are under way, from before the first to after the last. */
static double time_kernels(long iterations, int count, bool beside)
{
	crew_agree(0, ferryMax);
	for (int i = 0; beside && i < (int)(2 * WINDOW_US / alone_call_us) + 3; i++)
		crew_call(gathers, BYTES);
	for (int i = 0; i < 1 + (int)(10000.0 * count / WINDOW_US); i++)
		launch(iterations);
	double us = time_in(kernels, [=] {
		for (int i = 0; i < count; i++)
			launch(iterations);
	});
	if (beside && cudaStreamQuery(crew.stream) == cudaSuccess)
		fprintf(stderr, "ferry-beside: rank %d: the calls ended before the kernels\n", crew.rank);
	CUDA(cudaStreamSynchronize(crew.stream));
	return us / count;
}

static void keep_busy(int device, long iterations, int batch, const std::atomic<bool> *over)
{
	cudaEvent_t ended[2];
	CUDA(cudaSetDevice(device));
	for (cudaEvent_t &event : ended)
		CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync));
	for (size_t n = 0; !over->load(std::memory_order_acquire); n++) {
		CUDA(cudaEventSynchronize(ended[n % 2]));
		for (int i = 0; i < batch; i++)
			launch(iterations);
		CUDA(cudaEventRecord(ended[n % 2], kernels));
	}
	CUDA(cudaStreamSynchronize(kernels));
	for (cudaEvent_t &event : ended)
		CUDA(cudaEventDestroy(event));
}

/* Microseconds per call of the slowest rank. */
static double time_calls(long iterations, int batch, bool beside)
{
	int device, calls = std::max(4, (int)(WINDOW_US / alone_call_us));
	std::atomic<bool> over{false};
	std::thread company;
	CUDA(cudaGetDevice(&device));
	if (beside) {
		company = std::thread(keep_busy, device, iterations, batch, &over);
		usleep(20000); /* the kernels run by now */
	}
	crew_agree(0, ferryMax);
	double us = time_in(crew.stream, [=] {
		for (int i = 0; i < calls; i++)
			crew_call(gathers, BYTES);
	});
	over.store(true, std::memory_order_release);
	if (beside)
		company.join();
	return crew_agree(us / calls, ferryMax);
}

static void compare(double kernel_ms, double us_per_iteration)
{
	long iterations = std::max(1L, (long)(1e3 * kernel_ms / us_per_iteration));
	int count = (int)(WINDOW_US / 1e3 / kernel_ms), batch = std::max(2, (int)(BATCH_US / 1e3 / kernel_ms));
	std::vector<double> alone_us, beside_us, longer, spread, alone_rates, beside_rates, slower;
	double before = time_kernels(iterations, count, false), calls_before = time_calls(iterations, batch, false);
	for (int round = 0; round < ROUNDS; round++) {
		double with = time_kernels(iterations, count, true), after = time_kernels(iterations, count, false);
		double calls_with = time_calls(iterations, batch, true);
		double calls_after = time_calls(iterations, batch, false);
		alone_us.push_back(crew_agree((before + after) / 2, ferryMax));
		beside_us.push_back(crew_agree(with, ferryMax));
		longer.push_back(crew_agree((2 * with / (before + after) - 1) * 100, ferryMax));
		spread.push_back(crew_agree(fabs(after / before - 1) * 100, ferryMax));
		alone_rates.push_back((double)BYTES / (calls_before + calls_after) * 2 / 1e3);
		beside_rates.push_back((double)BYTES / calls_with / 1e3);
		slower.push_back((1 - (calls_before + calls_after) / 2 / calls_with) * 100);
		before = after;
		calls_before = calls_after;
	}
	if (!crew.rank)
		printf("%7.1f ms %10.1f us %10.1f us %8.2f %% (+- %.2f) %9.2f GB/s %9.2f GB/s %8.2f %%\n", kernel_ms,
		       crew_median(alone_us), crew_median(beside_us), crew_median(longer), crew_median(spread),
		       crew_median(alone_rates), crew_median(beside_rates), crew_median(slower));
}

static void prepare(double *us_per_iteration)
{
	int device, processors;
	CUDA(cudaGetDevice(&device));
	CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
	CUDA(cudaStreamCreateWithFlags(&kernels, cudaStreamNonBlocking));
	CUDA(cudaMalloc((void **)&sink, sizeof *sink));
	blocks = BLOCKS_EACH * processors;
	for (int i = 0; i < 3; i++)
		*us_per_iteration = time_in(kernels, [] { launch(TRIAL); }) / (double)TRIAL;
	*us_per_iteration = crew_agree(*us_per_iteration, ferryMax);
	for (int i = 0; i < 4; i++)
		crew_call(gathers, BYTES);
	alone_call_us = 1e4;
	alone_call_us = time_calls(0, 0, false);
}

static void usage(FILE *to)
{
	fprintf(to,
	        "Usage: ferryrun --fork -n GPUS -- ferry-beside [allreduce|allgather] [nccl] [graph] [inplace] [MS]\n"
	        "What kernels that fill the GPU and AllReduce (or AllGather) of 256 MiB take from each other.\n"
	        "nccl: calls of NCCL (FERRY_NCCL_LIBRARY) instead of Ferry's; graph: replays of a captured call;\n"
	        "inplace: sent from where it arrives;\n"
	        "MS: kernels of so many milliseconds (default: of 0.1, then 1, then 5).\n");
}

static bool read_words(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		gathers |= !strcmp(argv[i], "allgather");
		nccl |= !strcmp(argv[i], "nccl");
		graph |= !strcmp(argv[i], "graph");
		in_place |= !strcmp(argv[i], "inplace");
		only_ms = atof(argv[i]) > 0 ? atof(argv[i]) : only_ms;
		if (strcmp(argv[i], "allreduce") && strcmp(argv[i], "allgather") && strcmp(argv[i], "nccl") &&
		    strcmp(argv[i], "graph") && strcmp(argv[i], "inplace") && !(atof(argv[i]) > 0))
			return false;
	}
	return true;
}

int main(int argc, char **argv)
{
	double us_per_iteration;
	if (!read_words(argc, argv)) {
		bool help = !strcmp(argv[1], "--help");
		usage(help ? stdout : stderr);
		return help ? 0 : 64;
	}
	if (ferry_descriptors_fill())
		DIE("no file for each of the standard descriptors");
	if (!crew_open(cudaDeviceScheduleAuto, BYTES))
		return 77;
	if (nccl)
		crew_take_nccl();
	if (in_place)
		crew_send_in_place(gathers, BYTES);
	if (graph)
		crew_capture(gathers, BYTES);
	prepare(&us_per_iteration);
	if (!crew.rank)
		printf("%d ranks; kernels of %d blocks of %d threads back to back, %s's %s of 256 MiB%s%s; medians of "
		       "%d "
		       "rounds\n%10s %13s %13s %10s %8s %14s %14s %10s\n",
		       crew.nranks, blocks, THREADS, nccl ? "NCCL" : "Ferry", gathers ? "AllGather" : "AllReduce",
		       in_place ? ", in place" : "", graph ? ", replayed" : "", ROUNDS, "kernels", "alone", "beside",
		       "longer", "", "calls alone", "beside", "slower");
	for (double kernel_ms : {0.1, 1.0, 5.0})
		if (!only_ms)
			compare(kernel_ms, us_per_iteration);
	if (only_ms)
		compare(only_ms, us_per_iteration);
	crew_close();
	return 0;
}
