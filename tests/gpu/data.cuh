/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What GPU tests send and expect: 32-bit integers that depend on rank, round and index, so a sum over ranks is exact
 * and every stale, torn or misplaced element shows. Kernels write and judge them on the GPU, in stream order, and count
 * what is wrong. Included after gang.h, by one file each.
 */
#ifndef FERRY_TESTS_GPU_DATA_CUH
#define FERRY_TESTS_GPU_DATA_CUH

#include "tests/gpu/gang.h"

#include <stdint.h>

#define GRID 64, 256

__host__ __device__ static inline uint32_t data_value(int rank, uint32_t round, uint64_t index)
{
	uint32_t mixed = (uint32_t)index * 2654435761u + round * 40503u + (uint32_t)rank * 97u;
	return mixed ^ mixed >> 15;
}

__host__ __device__ static inline uint32_t data_sum(int nranks, uint32_t round, uint64_t index)
{
	uint32_t sum = 0;
	for (int rank = 0; rank < nranks; rank++)
		sum += data_value(rank, round, index);
	return sum;
}

__device__ static inline uint64_t data_now(void)
{
	uint64_t now;
	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
	return now;
}

/** Writes a rank's input of a round, after so many nanoseconds: a reader that is too early sees the round before. */
static __global__ void write_input(uint32_t *input, size_t count, int rank, uint32_t round, uint64_t delay)
{
	for (uint64_t start = data_now(); data_now() - start < delay;)
		__nanosleep(1000);
	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x)
		input[i] = data_value(rank, round, i);
}

static __global__ void count_wrong(const uint32_t *output, size_t count, int nranks, uint32_t round,
                                   unsigned long long *wrong)
{
	unsigned long long mine = 0;
	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x)
		mine += output[i] != data_sum(nranks, round, i);
	if (mine)
		atomicAdd(wrong, mine);
}

/** Of an AllGather: `count` elements of every rank, one rank's behind another's. */
__host__ __device__ static inline uint32_t data_gathered(size_t count, uint32_t round, uint64_t index)
{
	return data_value((int)(index / count), round, index % count);
}

static __global__ void count_wrong_gathered(const uint32_t *output, size_t count, int nranks, uint32_t round,
                                            unsigned long long *wrong)
{
	unsigned long long mine = 0;
	size_t all = count * (size_t)nranks;
	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < all; i += (size_t)gridDim.x * blockDim.x)
		mine += output[i] != data_gathered(count, round, i);
	if (mine)
		atomicAdd(wrong, mine);
}

/** The same with the round in device memory: what a captured kernel needs to do something else in each replay. */
static __global__ void write_input_of(uint32_t *input, size_t count, int rank, const uint32_t *round)
{
	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x)
		input[i] = data_value(rank, *round, i);
}

static __global__ void count_wrong_of(const uint32_t *output, size_t count, int nranks, const uint32_t *round,
                                      unsigned long long *wrong)
{
	unsigned long long mine = 0;
	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x)
		mine += output[i] != data_sum(nranks, *round, i);
	if (mine)
		atomicAdd(wrong, mine);
}

static __global__ void next_round(uint32_t *round)
{
	++*round;
}

/** One rank's buffers on its GPU. */
struct place {
	int device, rank, nranks;
	size_t count;
	cudaStream_t stream; /* non-blocking; a test may put another in its place */
	cudaStream_t own;
	uint32_t *input, *output, *round;
	unsigned long long *wrong;
};

static inline int place_open(struct place *place, const struct gang *gang, int local, size_t count)
{
	memset(place, 0, sizeof *place);
	place->device = gang->device[local];
	place->rank = gang->rank[local];
	place->nranks = gang->nranks;
	place->count = count;
	CUDA(cudaSetDevice(place->device));
	CUDA(cudaStreamCreateWithFlags(&place->own, cudaStreamNonBlocking));
	place->stream = place->own;
	CUDA(cudaMalloc((void **)&place->input, count * sizeof *place->input));
	CUDA(cudaMalloc((void **)&place->output, count * sizeof *place->output));
	CUDA(cudaMalloc((void **)&place->round, sizeof *place->round));
	CUDA(cudaMalloc((void **)&place->wrong, sizeof *place->wrong));
	CUDA(cudaMemset(place->input, 0xee, count * sizeof *place->input));
	CUDA(cudaMemset(place->output, 0xee, count * sizeof *place->output));
	CUDA(cudaMemset(place->round, 0, sizeof *place->round));
	CUDA(cudaMemset(place->wrong, 0, sizeof *place->wrong));
	CUDA(cudaDeviceSynchronize());
	return 0;
}

static inline int places_open(struct place *places, const struct gang *gang, size_t count)
{
	for (int i = 0; i < gang->nlocal; i++)
		TRY(place_open(&places[i], gang, i, count));
	return 0;
}

static inline int places_close(struct place *places, const struct gang *gang)
{
	for (int i = 0; i < gang->nlocal; i++) {
		CUDA(cudaSetDevice(places[i].device));
		CUDA(cudaFree(places[i].input));
		CUDA(cudaFree(places[i].output));
		CUDA(cudaFree(places[i].round));
		CUDA(cudaFree(places[i].wrong));
		CUDA(cudaStreamDestroy(places[i].own));
	}
	return 0;
}

/** Kernel, call, kernel, with nothing but the stream between them. */
static inline int place_write(struct place *place, uint32_t round, uint64_t delay)
{
	CUDA(cudaSetDevice(place->device));
	write_input<<<GRID, 0, place->stream>>>(place->input, place->count, place->rank, round, delay);
	CUDA(cudaGetLastError());
	return 0;
}

static inline int place_call(struct place *place, ferryComm_t comm)
{
	FERRY(ferryAllReduce(place->input, place->output, place->count, ferryUint32, ferrySum, comm,
	                     (ferryStream_t)place->stream));
	return 0;
}

static inline int place_judge(struct place *place, uint32_t round)
{
	CUDA(cudaSetDevice(place->device));
	count_wrong<<<GRID, 0, place->stream>>>(place->output, place->count, place->nranks, round, place->wrong);
	CUDA(cudaGetLastError());
	return 0;
}

/** Waits for the streams and requires that nothing was counted wrong. */
static inline int places_settle(struct place *places, const struct gang *gang, const char *when)
{
	for (int i = 0; i < gang->nlocal; i++) {
		unsigned long long wrong = 0;
		CUDA(cudaSetDevice(places[i].device));
		CUDA(cudaStreamSynchronize(places[i].stream));
		CUDA(cudaMemcpy(&wrong, places[i].wrong, sizeof wrong, cudaMemcpyDeviceToHost));
		REQUIRE(!wrong, "%s: rank %d: %llu elements wrong (%zu per call)", when, places[i].rank, wrong,
		        places[i].count);
	}
	return 0;
}

/** One call on every local rank, judged; for "and everything still works". */
static inline int places_round(struct place *places, const struct gang *gang, uint32_t round, uint64_t delay)
{
	for (int i = 0; i < gang->nlocal; i++) {
		TRY(place_write(&places[i], round, delay));
		TRY(place_call(&places[i], gang->comm[i]));
		TRY(place_judge(&places[i], round));
	}
	return 0;
}

#endif
