/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What kernels.cu is written in, for both compilers. As CUDA it is a kernel of blocks of threads. As C (tests, the
 * double of the driver) the blocks run one after another in the calling thread, or each in a thread of its own where
 * they may wait for each other (messages). Each stretch between two barriers is a loop over the lanes; so no lane may
 * wait for another lane of its block within a stretch. Beside what users' kernels have too (ferry_device.cuh): accesses
 * to memory that other GPUs and processes share, and bits of floats.
 */
#ifndef FERRY_RANK_LIB_KERNELS_LANES_H
#define FERRY_RANK_LIB_KERNELS_LANES_H

#include "rank-lib/include/ferry_device.cuh"
#include "rank-lib/kernels/kernel_call.h"

#define DEVICE FERRY_DEVICE
#define UNROLL FERRY_UNROLL

#ifdef __CUDACC__

#define APART         static __device__ __noinline__ /* rare, and long: once in the text of a kernel */
#define ROLL          _Pragma("unroll 1")
#define SHARED        __shared__
#define BARRIER()     __syncthreads()
#define EACH_LANE(l)  for (uint32_t l = threadIdx.x, once_##l = 1; once_##l; once_##l = 0)
#define BLOCK         blockIdx.x
#define BLOCKS        gridDim.x
#define THREADS       blockDim.x
#define KERNEL(name, most, argument)                                                                                   \
	extern "C" __global__ void __launch_bounds__(most) name(const __grid_constant__ struct argument call)

#define ferry_lowest(bits) ((uint32_t)__ffs((int)(bits)) - 1) /* which is the lowest bit */

/* Eight neighbouring lanes have a line of 128 bytes, 16 bytes each. */
#define PART_OF_LINE     (threadIdx.x % 8)
#define EACH_PART(j)     for (uint32_t j = PART_OF_LINE, once_##j = 1; once_##j; once_##j = 0)
#define LINE_LANES       8u
#define PARTS            1

DEVICE double ferry_as_double(uint64_t bits) { return __longlong_as_double((long long)bits); }
DEVICE uint64_t ferry_double_bits(double value) { return (uint64_t)__double_as_longlong(value); }
DEVICE float ferry_fused_float(float a, float b, float c) { return __fmaf_rn(a, b, c); }
DEVICE double ferry_fused_double(double a, double b, double c) { return __fma_rn(a, b, c); }

/* Data of a chunk: its flag orders it. */
DEVICE void ferry_store_data(char *to, struct ferry_vector v)
{
	asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(to), "l"(v.low), "l"(v.high) : "memory");
}

#define ferry_load_data ferry_load_packet

/* Whether it is true in any of the block's lanes. A barrier. */
DEVICE bool ferry_any_of_block(bool mine)
{
	return __syncthreads_or(mine);
}

/* Orders what this lane has seen and stored before what it, and each lane that it meets at a barrier, does later. */
DEVICE void ferry_fence(void)
{
	__threadfence();
}

/* The lanes of a line, together. */
DEVICE void ferry_join_line(void)
{
	__syncwarp(0xffu << (threadIdx.x & 24u));
}

/*
 * A part of a line. NVLink delivers the 128 bytes that eight lanes store at once as one, and a load of eight lanes
 * finds them so: the flag in the last part is there when all is (NCCL's LL128 stands on the same). The lanes may have
 * parted at the end of the user's buffer.
 */
DEVICE void ferry_store_part(char *line, uint32_t j, struct ferry_vector v)
{
	ferry_join_line();
	ferry_store_packet(line + 16 * j, v.low, v.high);
}

DEVICE struct ferry_vector ferry_look_at_part(const char *line, uint32_t j)
{
	ferry_join_line();
	return ferry_load_packet(line + 16 * j);
}

/* Whether the line had its flag when the lanes looked; if so, *v is this lane's part. */
DEVICE bool ferry_part_is_there(const char *line, uint32_t j, uint64_t flag, struct ferry_vector *v)
{
	return __shfl_sync(0xffu << (threadIdx.x & 24u), v->high, 7, 8) == flag;
}

/* Whether it is true in any of the line's lanes, which must go on together. */
DEVICE bool ferry_any_of_line(bool mine)
{
	return __any_sync(0xffu << (threadIdx.x & 24u), mine);
}

DEVICE uint64_t ferry_load64(const uint64_t *from)
{
	return *(const volatile uint64_t *)from;
}

/* A word that orders what another processor has stored before it, or this block's lanes before a barrier. */
DEVICE uint64_t ferry_load_word(const char *from)
{
	uint64_t word;
	asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
	return word;
}

DEVICE void ferry_store_word(char *to, uint64_t word)
{
	asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}

DEVICE void ferry_store64(uint64_t *to, uint64_t value)
{
	*(volatile uint64_t *)to = value;
}

/* Returns true in the last block of the call. By its first lane, behind a barrier. */
DEVICE bool ferry_arrive(uint32_t *arrived)
{
	return gridDim.x == 1 || atomicInc(arrived, gridDim.x - 1) == gridDim.x - 1;
}

#else

#include <math.h>
#include <stdatomic.h>
#include <string.h>

/* The block that the calling thread runs. */
struct ferry_block {
	uint32_t block, blocks, threads;
};
extern _Thread_local struct ferry_block ferry_block;

#define APART         static __attribute__((unused))
#define ROLL
#define SHARED        static _Thread_local
#define BARRIER()     ((void)0)
#define EACH_LANE(l)  for (uint32_t l = 0; l < ferry_block.threads; l++)
#define BLOCK         ferry_block.block
#define BLOCKS        ferry_block.blocks
#define THREADS       ferry_block.threads
#define KERNEL(name, most, argument) KERNEL_AS(name, argument) /* its name is a macro, too */
#define KERNEL_AS(name, argument)                                                                                      \
	static void name##_by_value(const struct argument call);                                                       \
	static void name(const void *call)                                                                             \
	{                                                                                                              \
		name##_by_value(*(const struct argument *)call);                                                       \
	}                                                                                                              \
	static void name##_by_value(const struct argument call)

#define ferry_lowest(bits) ((uint32_t)__builtin_ctz(bits))

/* A lane has a whole line. */
#define EACH_PART(j)     for (uint32_t j = 0; j < 8; j++)
#define LINE_LANES       1u
#define PARTS            8

DEVICE double ferry_as_double(uint64_t bits)
{
	double value;
	memcpy(&value, &bits, sizeof value);
	return value;
}

DEVICE uint64_t ferry_double_bits(double value)
{
	uint64_t bits;
	memcpy(&bits, &value, sizeof bits);
	return bits;
}

DEVICE float ferry_fused_float(float a, float b, float c)
{
	return fmaf(a, b, c);
}

DEVICE double ferry_fused_double(double a, double b, double c)
{
	return fma(a, b, c);
}

DEVICE void ferry_store_data(char *to, struct ferry_vector v)
{
	ferry_store_packet(to, v.low, v.high);
}

#define ferry_load_data ferry_load_packet

DEVICE void ferry_store_part(char *line, uint32_t j, struct ferry_vector v)
{
	__atomic_store_n((uint64_t *)(void *)(line + 16 * j), v.low, __ATOMIC_RELAXED);
	__atomic_store_n((uint64_t *)(void *)(line + 16 * j + 8), v.high, __ATOMIC_RELEASE);
}

/* The flag is read before the part, so both are read at the check. */
DEVICE struct ferry_vector ferry_look_at_part(const char *line, uint32_t j)
{
	(void)line;
	(void)j;
	return (struct ferry_vector){0, 0};
}

DEVICE bool ferry_part_is_there(const char *line, uint32_t j, uint64_t flag, struct ferry_vector *v)
{
	bool whole = __atomic_load_n((const uint64_t *)(const void *)(line + 120), __ATOMIC_ACQUIRE) == flag;
	*v = ferry_load_packet(line + 16 * j);
	return whole;
}

DEVICE bool ferry_any_of_line(bool mine)
{
	return mine;
}

DEVICE bool ferry_any_of_block(bool mine)
{
	return mine;
}

DEVICE void ferry_fence(void)
{
}

DEVICE uint64_t ferry_load64(const uint64_t *from)
{
	return __atomic_load_n(from, __ATOMIC_ACQUIRE);
}

DEVICE void ferry_store64(uint64_t *to, uint64_t value)
{
	__atomic_store_n(to, value, __ATOMIC_RELEASE);
}

DEVICE uint64_t ferry_load_word(const char *from)
{
	return __atomic_load_n((const uint64_t *)(const void *)from, __ATOMIC_ACQUIRE);
}

DEVICE void ferry_store_word(char *to, uint64_t word)
{
	__atomic_store_n((uint64_t *)(void *)to, word, __ATOMIC_RELEASE);
}

DEVICE bool ferry_arrive(uint32_t *arrived)
{
	bool last = __atomic_add_fetch(arrived, 1, __ATOMIC_ACQ_REL) == ferry_block.blocks;
	if (last)
		__atomic_store_n(arrived, 0, __ATOMIC_RELAXED);
	return last;
}

#endif

/* As ferry_counter_slices of ipc/arena.h: of another call, none. */
DEVICE uint32_t ferry_slices_of(uint64_t word, uint32_t number)
{
	return (uint32_t)(word >> 32) == number ? (uint32_t)word : 0;
}

#endif
