/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What kernels.cu is written in, for both compilers. As CUDA it is a kernel of blocks of threads. As C (tests, the
 * double of the driver) the blocks run one after another in the calling thread, and each stretch between two barriers
 * is a loop over the lanes; so no lane may wait for another lane of its block within a stretch. Also bits of floats,
 * conversions, and accesses to memory that other GPUs and processes share.
 */
#ifndef FERRY_RANK_LIB_KERNELS_LANES_H
#define FERRY_RANK_LIB_KERNELS_LANES_H

#include "rank-lib/kernels/kernel_call.h"

/* 16 bytes: two words, low addresses first */
struct ferry_vector {
	uint64_t low, high;
};

#ifdef __CUDACC__

#define DEVICE        static __device__ __forceinline__
#define APART         static __device__ __noinline__ /* rare, and long: once in the text of a kernel */
#define UNROLL        _Pragma("unroll")
#define ROLL          _Pragma("unroll 1")
#define SHARED        __shared__
#define BARRIER()     __syncthreads()
#define EACH_LANE(l)  for (uint32_t l = threadIdx.x, once_##l = 1; once_##l; once_##l = 0)
#define BLOCK         blockIdx.x
#define BLOCKS        gridDim.x
#define THREADS       blockDim.x
#define KERNEL(name, most)                                                                                             \
	extern "C" __global__ void __launch_bounds__(most)                                                             \
	        name(const __grid_constant__ struct ferry_kernel_call call)

/* Eight lanes side by side have a line of 128 bytes: each 16 of them. */
#define PART_OF_LINE     (threadIdx.x % 8)
#define EACH_PART(j)     for (uint32_t j = PART_OF_LINE, once_##j = 1; once_##j; once_##j = 0)
#define LINE_LANES       8u
#define PARTS            1

DEVICE float ferry_as_float(uint32_t bits) { return __uint_as_float(bits); }
DEVICE uint32_t ferry_float_bits(float value) { return __float_as_uint(value); }
DEVICE double ferry_as_double(uint64_t bits) { return __longlong_as_double((long long)bits); }
DEVICE uint64_t ferry_double_bits(double value) { return (uint64_t)__double_as_longlong(value); }
DEVICE float ferry_fused_float(float a, float b, float c) { return __fmaf_rn(a, b, c); }
DEVICE double ferry_fused_double(double a, double b, double c) { return __fma_rn(a, b, c); }

DEVICE float ferry_half_to_float(uint32_t half)
{
	float value;
	asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((unsigned short)half));
	return value;
}

DEVICE uint32_t ferry_float_to_half(float value)
{
	unsigned short half;
	asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
	return half;
}

/* Both elements are one access each, so a flag is beside its data whatever becomes of the other one. */
DEVICE void ferry_store_packet(char *to, uint64_t a, uint64_t b)
{
	asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(to), "l"(a), "l"(b) : "memory");
}

DEVICE struct ferry_vector ferry_load_packet(const char *from)
{
	struct ferry_vector v;
	asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];" : "=l"(v.low), "=l"(v.high) : "l"(from) : "memory");
	return v;
}

DEVICE struct ferry_vector ferry_load_vector(const char *from)
{
	const ulonglong2 v = *(const ulonglong2 *)from;
	struct ferry_vector loaded = {v.x, v.y};
	return loaded;
}

DEVICE void ferry_store_vector(char *to, struct ferry_vector v)
{
	*(ulonglong2 *)to = make_ulonglong2(v.low, v.high);
}

/* Data of a chunk: its flag orders it. */
DEVICE void ferry_store_data(char *to, struct ferry_vector v)
{
	asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(to), "l"(v.low), "l"(v.high) : "memory");
}

#define ferry_load_data ferry_load_packet

DEVICE void ferry_store_flag(char *to, uint32_t flag)
{
	asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(flag) : "memory");
}

DEVICE uint32_t ferry_load_flag(const char *from)
{
	uint32_t flag;
	asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(flag) : "l"(from) : "memory");
	return flag;
}

/*
 * A part of a line. NVLink delivers the 128 bytes that eight lanes store at once as one, and a load of eight lanes
 * finds them so: the flag in the last part is there when all is (NCCL's LL128 stands on the same).
 */
DEVICE void ferry_store_part(char *line, uint32_t j, struct ferry_vector v)
{
	ferry_store_packet(line + 16 * j, v.low, v.high);
}

/* Whether the line has the flag; if so, *v is this lane's part. */
DEVICE bool ferry_load_part(const char *line, uint32_t j, uint64_t flag, struct ferry_vector *v)
{
	*v = ferry_load_packet(line + 16 * j);
	return __shfl_sync(0xffu << (threadIdx.x & 24u), v->high, 7, 8) == flag;
}

/* Whether it is true in any of the line's lanes, which must go on together. */
DEVICE bool ferry_any_of_line(bool mine)
{
	return __any_sync(0xffu << (threadIdx.x & 24u), mine);
}

/* A word that another thread writes and that orders nothing. */
DEVICE uint32_t ferry_look32(const uint32_t *from)
{
	return *(const volatile uint32_t *)from;
}

DEVICE uint64_t ferry_look64(const uint64_t *from)
{
	return *(const volatile uint64_t *)from;
}

DEVICE void ferry_tell32(uint32_t *to, uint32_t value)
{
	*(volatile uint32_t *)to = value;
}

DEVICE void ferry_tell64(uint64_t *to, uint64_t value)
{
	*(volatile uint64_t *)to = value;
}

/* Returns true in the last block of the call. By its first lane, behind a barrier. */
DEVICE bool ferry_arrive(uint32_t *arrived)
{
	return gridDim.x == 1 || atomicInc(arrived, gridDim.x - 1) == gridDim.x - 1;
}

DEVICE void ferry_pause(void)
{
}

#else

#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

/* The block that the calling thread is at. */
struct ferry_block {
	uint32_t block, blocks, threads;
};
extern _Thread_local struct ferry_block ferry_block;

#define DEVICE        static inline __attribute__((unused))
#define APART         static __attribute__((unused))
#define UNROLL
#define ROLL
#define SHARED        static _Thread_local
#define BARRIER()     ((void)0)
#define EACH_LANE(l)  for (uint32_t l = 0; l < ferry_block.threads; l++)
#define BLOCK         ferry_block.block
#define BLOCKS        ferry_block.blocks
#define THREADS       ferry_block.threads
#define KERNEL(name, most) static void name(const struct ferry_kernel_call call)

/* A lane has a whole line. */
#define EACH_PART(j)     for (uint32_t j = 0; j < 8; j++)
#define LINE_LANES       1u
#define PARTS            8

DEVICE float ferry_as_float(uint32_t bits)
{
	float value;
	memcpy(&value, &bits, sizeof value);
	return value;
}

DEVICE uint32_t ferry_float_bits(float value)
{
	uint32_t bits;
	memcpy(&bits, &value, sizeof bits);
	return bits;
}

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

DEVICE float ferry_half_to_float(uint32_t half)
{
	uint32_t magnitude = (half & 0x7fffu) << 13, finite = ferry_float_bits(ferry_as_float(magnitude) * 0x1p112f);
	return ferry_as_float((magnitude < 0x0f800000u ? finite : magnitude | 0x7f800000u) | (half & 0x8000u) << 16);
}

DEVICE void ferry_store_packet(char *to, uint64_t a, uint64_t b)
{
	__atomic_store_n((uint64_t *)(void *)to, a, __ATOMIC_RELAXED);
	__atomic_store_n((uint64_t *)(void *)(to + 8), b, __ATOMIC_RELAXED);
}

DEVICE struct ferry_vector ferry_load_packet(const char *from)
{
	return (struct ferry_vector){__atomic_load_n((const uint64_t *)(const void *)from, __ATOMIC_RELAXED),
	                             __atomic_load_n((const uint64_t *)(const void *)(from + 8), __ATOMIC_RELAXED)};
}

DEVICE void ferry_store_data(char *to, struct ferry_vector v)
{
	ferry_store_packet(to, v.low, v.high);
}

#define ferry_load_data ferry_load_packet

DEVICE struct ferry_vector ferry_load_vector(const char *from)
{
	struct ferry_vector v;
	memcpy(&v, from, sizeof v);
	return v;
}

DEVICE void ferry_store_vector(char *to, struct ferry_vector v)
{
	memcpy(to, &v, sizeof v);
}

DEVICE void ferry_store_flag(char *to, uint32_t flag)
{
	__atomic_store_n((uint32_t *)(void *)to, flag, __ATOMIC_RELEASE);
}

DEVICE uint32_t ferry_load_flag(const char *from)
{
	return __atomic_load_n((const uint32_t *)(const void *)from, __ATOMIC_ACQUIRE);
}

DEVICE void ferry_store_part(char *line, uint32_t j, struct ferry_vector v)
{
	__atomic_store_n((uint64_t *)(void *)(line + 16 * j), v.low, __ATOMIC_RELAXED);
	__atomic_store_n((uint64_t *)(void *)(line + 16 * j + 8), v.high, __ATOMIC_RELEASE);
}

DEVICE bool ferry_load_part(const char *line, uint32_t j, uint64_t flag, struct ferry_vector *v)
{
	bool whole = __atomic_load_n((const uint64_t *)(const void *)(line + 120), __ATOMIC_ACQUIRE) == flag;
	*v = ferry_load_packet(line + 16 * j);
	return whole;
}

DEVICE bool ferry_any_of_line(bool mine)
{
	return mine;
}

DEVICE uint32_t ferry_look32(const uint32_t *from)
{
	return __atomic_load_n(from, __ATOMIC_ACQUIRE);
}

DEVICE uint64_t ferry_look64(const uint64_t *from)
{
	return __atomic_load_n(from, __ATOMIC_ACQUIRE);
}

DEVICE void ferry_tell32(uint32_t *to, uint32_t value)
{
	__atomic_store_n(to, value, __ATOMIC_RELEASE);
}

DEVICE void ferry_tell64(uint64_t *to, uint64_t value)
{
	__atomic_store_n(to, value, __ATOMIC_RELEASE);
}

DEVICE bool ferry_arrive(uint32_t *arrived)
{
	uint32_t others = __atomic_load_n(arrived, __ATOMIC_RELAXED) + 1;
	__atomic_store_n(arrived, others % ferry_block.blocks, __ATOMIC_RELAXED);
	return others == ferry_block.blocks;
}

/* A waiting rank leaves the core to those that it waits for: mostly other threads of a small machine. */
DEVICE void ferry_pause(void)
{
	static _Thread_local uint32_t pauses;
	if (++pauses % 32)
		sched_yield();
	else
		nanosleep(&(struct timespec){0, 50000}, NULL);
}

#endif

/*
 * A float as a number with `mantissa` bits of fraction and that bias of the exponent, to nearest even; values above
 * `largest` become `beyond` (router/reduce/kernels.h).
 */
DEVICE uint32_t ferry_narrow_float(float value, uint32_t mantissa, uint32_t bias, uint32_t largest, uint32_t beyond,
                                   uint32_t nan, uint32_t sign_bit)
{
	const uint32_t drop = 23 - mantissa, normal = (128 - bias) << 23, whole = (151 - mantissa - bias) << 23;
	uint32_t bits = ferry_float_bits(value), magnitude = bits & 0x7fffffffu, sign = (bits >> 31) * sign_bit;
	uint32_t code = ((magnitude + ((1u << (drop - 1)) - 1) + (magnitude >> drop & 1u)) >> drop) -
	                ((127 - bias) << mantissa);
	if (magnitude < normal)
		code = ferry_float_bits(ferry_as_float(magnitude) + ferry_as_float(whole)) - whole;
	if (code > largest)
		code = beyond;
	return sign | (magnitude > 0x7f800000u ? nan : code);
}

#ifndef __CUDACC__
DEVICE uint32_t ferry_float_to_half(float value)
{
	return ferry_narrow_float(value, 10, 15, 0x7bffu, 0x7c00u, 0x7e00u, 0x8000u);
}
#endif

#endif
