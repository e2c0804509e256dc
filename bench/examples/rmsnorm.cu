/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AllReduce + residual + RMSNorm in one kernel of one's own, against its two steps (ferryAllReduce, then a kernel): the
 * bits are the same, and how long each takes in CUDA graphs of 20. A rank per process: ferryrun -n 2 -- ./ferry-rmsnorm
 * With --check it times nothing. Ends with 77 where there are too few GPUs.
 */
#include "rmsnorm.cuh"

#include <ferry.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <cuda_runtime.h>

#define THREADS  512
#define CALLS    20 /* of a graph */
#define REPLAYS  101
#define EPSILON  1e-5f

#define OK(call) check((call) == ferrySuccess, #call, ferryGetLastError(NULL))
#define CU(call) check((call) == cudaSuccess, #call, cudaGetErrorString(cudaGetLastError()))

static void check(bool right, const char *call, const char *message)
{
	if (!right) {
		fprintf(stderr, "%s: %s\n", call, message);
		exit(1);
	}
}

/* ---- the kernel: of one block per row, or of 64 for more rows ---- */

/* The sum over the block, always in the same order. */
static __device__ float sum_over_block(float value)
{
	__shared__ float of_warp[THREADS / 32];
	for (int step = 16; step; step /= 2)
		value += __shfl_xor_sync(~0u, value, step);
	__syncthreads(); /* of_warp has been read for the row before */
	if (threadIdx.x % 32 == 0)
		of_warp[threadIdx.x / 32] = value;
	__syncthreads();
	value = 0;
	for (int i = 0; i < THREADS / 32; i++)
		value += of_warp[i];
	return value;
}

__global__ void __launch_bounds__(THREADS) norm_rows(const __grid_constant__ struct rmsnorm n)
{
	const uint32_t flag = n.summed ? 0 : ferryFlag(&n.channels, blockIdx.x);
	for (uint32_t row = blockIdx.x; !n.summed && row < n.rows; row += gridDim.x)
		rmsnorm_send(&n, row, flag, threadIdx.x, THREADS);
	for (uint32_t row = blockIdx.x; row < n.rows; row += gridDim.x) {
		const float squares = sum_over_block(rmsnorm_add(&n, row, flag, threadIdx.x, THREADS));
		rmsnorm_scale(&n, row, rsqrtf(squares / (4 * n.words) + n.epsilon), threadIdx.x, THREADS);
	}
	__syncthreads();
	if (!n.summed && threadIdx.x == 0)
		ferryEndRound(&n.channels, blockIdx.x);
}

/* ---- both ways ---- */

struct work {
	ferryComm_t comm;
	cudaStream_t stream;
	struct rmsnorm fused, second; /* second: the step behind ferryAllReduce */
	void *summed;
};

static void launch(const struct rmsnorm &n, cudaStream_t stream)
{
	norm_rows<<<std::min(n.rows, (uint32_t)FERRY_CHANNELS), THREADS, 0, stream>>>(n);
	CU(cudaGetLastError());
}

static void in_one(const struct work &work)
{
	launch(work.fused, work.stream);
}

static void in_two(const struct work &work)
{
	const struct rmsnorm &n = work.fused;
	OK(ferryAllReduce(n.input, work.summed, 4ull * n.rows * n.words, ferryBfloat16, ferrySum, work.comm,
	                  (ferryStream_t)work.stream));
	launch(work.second, work.stream);
}

static uint64_t *device_words(size_t count, uint32_t seed)
{
	std::vector<uint16_t> values(4 * count);
	uint64_t *memory;
	for (auto &value : values) { /* between -2 and 2 */
		seed = seed * 1664525 + 1013904223;
		float number = (float)(int32_t)seed / 0x40000000;
		uint32_t bits;
		memcpy(&bits, &number, sizeof bits);
		value = (uint16_t)(bits >> 16);
	}
	CU(cudaMalloc(&memory, 8 * count));
	CU(cudaMemcpy(memory, values.data(), 8 * count, cudaMemcpyHostToDevice));
	return memory;
}

static void open_work(struct work *work, const ferryChannels_t &channels, uint32_t rows, uint32_t words)
{
	struct rmsnorm n = {};
	const size_t all = (size_t)rows * words;
	n.channels = channels;
	n.input = device_words(all, 1 + channels.rank);
	n.residual = device_words(all, 100); /* the same on all ranks, as the rest */
	n.weight = device_words(words, 200);
	n.output = device_words(all, 300);
	n.rows = rows;
	n.words = words;
	n.epsilon = EPSILON;
	work->fused = work->second = n;
	work->summed = device_words(all, 0);
	work->second.summed = 1;
	work->second.input = (const uint64_t *)work->summed;
	work->second.residual = device_words(all, 100);
	work->second.output = device_words(all, 300);
}

static void close_work(struct work *work)
{
	for (const void *memory : {(const void *)work->fused.input, (const void *)work->fused.residual,
	                           (const void *)work->fused.weight, (const void *)work->fused.output,
	                           (const void *)work->summed, (const void *)work->second.residual,
	                           (const void *)work->second.output})
		CU(cudaFree((void *)memory));
}

static bool same(const uint64_t *a, const uint64_t *b, size_t words)
{
	std::vector<uint64_t> x(words), y(words);
	CU(cudaMemcpy(x.data(), a, 8 * words, cudaMemcpyDeviceToHost));
	CU(cudaMemcpy(y.data(), b, 8 * words, cudaMemcpyDeviceToHost));
	return x == y;
}

static void compare(const struct work &work)
{
	const size_t words = (size_t)work.fused.rows * work.fused.words;
	for (int i = 0; i < 3; i++) {
		in_one(work);
		in_two(work);
	}
	CU(cudaStreamSynchronize(work.stream));
	check(same(work.fused.residual, work.second.residual, words), "residual", "other bits than in two steps");
	check(same(work.fused.output, work.second.output, words), "output", "other bits than in two steps");
}

/* ---- time ---- */

static cudaGraphExec_t graph_of(const struct work &work, void (*way)(const struct work &work))
{
	cudaGraph_t graph;
	cudaGraphExec_t executable;
	CU(cudaStreamBeginCapture(work.stream, cudaStreamCaptureModeThreadLocal));
	for (int i = 0; i < CALLS; i++)
		way(work);
	CU(cudaStreamEndCapture(work.stream, &graph));
	CU(cudaGraphInstantiate(&executable, graph, 0));
	CU(cudaGraphDestroy(graph));
	return executable;
}

/* Medians, both ways in turns. */
static void measure(const struct work &work, float microseconds[2])
{
	cudaGraphExec_t graphs[2] = {graph_of(work, in_one), graph_of(work, in_two)};
	std::vector<float> times[2];
	cudaEvent_t begin, end;
	CU(cudaEventCreate(&begin));
	CU(cudaEventCreate(&end));
	for (int i = 0; i < 2 * REPLAYS; i++) {
		float ms;
		CU(cudaGraphLaunch(graphs[i % 2], work.stream)); /* ranks begin together */
		CU(cudaEventRecord(begin, work.stream));
		CU(cudaGraphLaunch(graphs[i % 2], work.stream));
		CU(cudaEventRecord(end, work.stream));
		CU(cudaStreamSynchronize(work.stream));
		CU(cudaEventElapsedTime(&ms, begin, end));
		times[i % 2].push_back(1000 * ms / CALLS);
	}
	for (int way = 0; way < 2; way++) {
		std::sort(times[way].begin(), times[way].end());
		microseconds[way] = times[way][REPLAYS / 2];
		CU(cudaGraphExecDestroy(graphs[way]));
	}
	CU(cudaEventDestroy(begin));
	CU(cudaEventDestroy(end));
}

/* Asks for 16 MiB of channel memory; where there is only host memory, for as much as that has. */
static void open_comm(ferryComm_t *comm, ferryChannels_t *channels)
{
	ferryConfig_t config = FERRY_CONFIG_INITIALIZER;
	config.device = "cuda";
	config.channels = 16 << 20;
	OK(ferryCommInitEnv(comm, &config));
	if (ferryCommChannels(*comm, channels) == ferrySuccess)
		return;
	OK(ferryCommDestroy(*comm));
	config.channels = (4 << 20) - 4096;
	OK(ferryCommInitEnv(comm, &config));
	OK(ferryCommChannels(*comm, channels));
}

int main(int argc, char **argv)
{
	const bool times = argc < 2 || strcmp(argv[1], "--check");
	const char *local = getenv("FERRY_LOCAL_RANK");
	const int device = local ? atoi(local) : 0;
	ferryChannels_t channels = FERRY_CHANNELS_INITIALIZER;
	struct work work = {};
	int devices = 0;
	setvbuf(stdout, NULL, _IOLBF, 0); /* one sees how far it is */
	if (cudaGetDeviceCount(&devices) != cudaSuccess || device >= devices || devices < 2) {
		printf("skipped: %d GPUs\n", devices);
		return 77;
	}
	CU(cudaSetDevice(device));
	open_comm(&work.comm, &channels);
	CU(cudaStreamCreateWithFlags(&work.stream, cudaStreamNonBlocking));
	if (!channels.rank)
		printf("by %s memory, %d ranks%s\n", channels.host ? "host" : "peer", channels.nranks,
		       times ? "; us a call, median, in CUDA graphs of 20" : "");
	if (times && !channels.rank)
		printf(" rows  width     KiB  one kernel  two steps\n");
	for (uint32_t width : {2048u, 4096u, 8192u}) /* by host memory the first alone fits */
		for (uint32_t rows : {1u, 4u, 16u, 64u, 128u}) {
			const uint32_t of_channel = (rows + FERRY_CHANNELS - 1) / FERRY_CHANNELS;
			if (4ull * width * of_channel > channels.bytes / (2 * FERRY_CHANNELS * channels.nranks))
				continue;
			float microseconds[2] = {};
			open_work(&work, channels, rows, width / 4);
			compare(work);
			if (times)
				measure(work, microseconds);
			if (times && !channels.rank)
				printf("%5u  %5u  %6u  %10.2f  %9.2f (%.2f)\n", rows, width, rows * width / 512,
				       microseconds[0], microseconds[1], microseconds[1] / microseconds[0]);
			close_work(&work);
		}
	/* No rank frees its memory before all ranks' kernels are over: a kernel writes to the other ranks' memory. */
	uint64_t *all = device_words(1, 0);
	OK(ferryAllReduce(all, all, 1, ferryFloat, ferrySum, work.comm, (ferryStream_t)work.stream));
	CU(cudaStreamSynchronize(work.stream));
	CU(cudaFree(all));
	CU(cudaStreamDestroy(work.stream));
	OK(ferryCommDestroy(work.comm));
	if (!channels.rank)
		printf("the same bits\n");
	return 0;
}
