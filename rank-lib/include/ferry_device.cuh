/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * For kernels of one's own that communicate: what a kernel does with a ferryChannels_t, which ferryCommChannels() fills
 * in and the kernel gets by value (docs/kernels.md). Memory channels and the switch channel are MSCCL++'s (ASPLOS 2026,
 * section 4), over memory of the GPUs or of the host. Compiled as CUDA, and as C, where a test runs the threads of a
 * block one after another; so functions take their thread as an argument.
 *
 * - `rank` is the other end: it may be one's own. `offset`: bytes in that rank's memory, a multiple of 16.
 * - `thread` of `threads` share a function's work: of a block or of several, and each of them calls it.
 * - `channel`: below FERRY_CHANNELS. A block has one for itself, by rule the number of the block. All ranks use the
 *   same channels equally often.
 * - What waits returns false if the communicator has failed or was ended: then nothing more will come, and the kernel
 *   ends. Kernels that wait for each other must all be on their GPUs: launch no more blocks than fit at once.
 */
#ifndef FERRY_DEVICE_CUH
#define FERRY_DEVICE_CUH

#include "ferry_types.h"

/** 16 bytes: two words, low addresses first. */
struct ferry_vector {
	uint64_t low, high;
};

#ifdef __CUDACC__

/** What functions of kernels are declared as. */
#define FERRY_DEVICE static __device__ __forceinline__
/** Behind this a loop is unrolled. */
#define FERRY_UNROLL _Pragma("unroll")

FERRY_DEVICE float ferry_as_float(uint32_t bits) { return __uint_as_float(bits); }
FERRY_DEVICE uint32_t ferry_float_bits(float value) { return __float_as_uint(value); }

FERRY_DEVICE float ferry_half_to_float(uint32_t half)
{
	float value;
	asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((unsigned short)half));
	return value;
}

FERRY_DEVICE uint32_t ferry_float_to_half(float value)
{
	unsigned short half;
	asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
	return half;
}

/* Both elements are one access each, so a flag is beside its data whatever becomes of the other one. */
FERRY_DEVICE void ferry_store_packet(char *to, uint64_t a, uint64_t b)
{
	asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(to), "l"(a), "l"(b) : "memory");
}

FERRY_DEVICE struct ferry_vector ferry_load_packet(const char *from)
{
	struct ferry_vector v;
	asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];" : "=l"(v.low), "=l"(v.high) : "l"(from) : "memory");
	return v;
}

FERRY_DEVICE struct ferry_vector ferry_load_vector(const char *from)
{
	const ulonglong2 v = *(const ulonglong2 *)from;
	struct ferry_vector loaded = {v.x, v.y};
	return loaded;
}

FERRY_DEVICE void ferry_store_vector(char *to, struct ferry_vector v)
{
	*(ulonglong2 *)to = make_ulonglong2(v.low, v.high);
}

FERRY_DEVICE void ferry_store_flag(char *to, uint32_t flag)
{
	asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(flag) : "memory");
}

FERRY_DEVICE uint32_t ferry_load_flag(const char *from)
{
	uint32_t flag;
	asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(flag) : "l"(from) : "memory");
	return flag;
}

/* A word that another thread writes and that orders nothing. */
FERRY_DEVICE uint32_t ferry_load32(const uint32_t *from)
{
	return *(const volatile uint32_t *)from;
}

FERRY_DEVICE void ferry_store32(uint32_t *to, uint32_t value)
{
	*(volatile uint32_t *)to = value;
}

FERRY_DEVICE void ferry_pause(void)
{
}

#define FERRY_CHANNEL_POLLS 64u /* failed polls between two looks whether the communicator has failed */
#define FERRY_WARP  (blockIdx.x * ((blockDim.x + 31) / 32) + threadIdx.x / 32) /* of a grid of one dimension */
#define FERRY_WARPS (gridDim.x * ((blockDim.x + 31) / 32))
#define FERRY_TURNS (FERRY_WARPS < 4096 ? FERRY_WARPS : 4096) /* so that a lone warp looks within a second */

#else

#include <sched.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

#define FERRY_DEVICE static inline __attribute__((unused))
#define FERRY_UNROLL

FERRY_DEVICE float ferry_as_float(uint32_t bits)
{
	float value;
	memcpy(&value, &bits, sizeof value);
	return value;
}

FERRY_DEVICE uint32_t ferry_float_bits(float value)
{
	uint32_t bits;
	memcpy(&bits, &value, sizeof bits);
	return bits;
}

FERRY_DEVICE float ferry_half_to_float(uint32_t half)
{
	uint32_t magnitude = (half & 0x7fffu) << 13, finite = ferry_float_bits(ferry_as_float(magnitude) * 0x1p112f);
	return ferry_as_float((magnitude < 0x0f800000u ? finite : magnitude | 0x7f800000u) | (half & 0x8000u) << 16);
}

FERRY_DEVICE void ferry_store_packet(char *to, uint64_t a, uint64_t b)
{
	__atomic_store_n((uint64_t *)(void *)to, a, __ATOMIC_RELAXED);
	__atomic_store_n((uint64_t *)(void *)(to + 8), b, __ATOMIC_RELAXED);
}

FERRY_DEVICE struct ferry_vector ferry_load_packet(const char *from)
{
	return (struct ferry_vector){__atomic_load_n((const uint64_t *)(const void *)from, __ATOMIC_RELAXED),
	                             __atomic_load_n((const uint64_t *)(const void *)(from + 8), __ATOMIC_RELAXED)};
}

FERRY_DEVICE struct ferry_vector ferry_load_vector(const char *from)
{
	struct ferry_vector v;
	memcpy(&v, from, sizeof v);
	return v;
}

FERRY_DEVICE void ferry_store_vector(char *to, struct ferry_vector v)
{
	memcpy(to, &v, sizeof v);
}

FERRY_DEVICE void ferry_store_flag(char *to, uint32_t flag)
{
	__atomic_store_n((uint32_t *)(void *)to, flag, __ATOMIC_RELEASE);
}

FERRY_DEVICE uint32_t ferry_load_flag(const char *from)
{
	return __atomic_load_n((const uint32_t *)(const void *)from, __ATOMIC_ACQUIRE);
}

FERRY_DEVICE uint32_t ferry_load32(const uint32_t *from)
{
	return __atomic_load_n(from, __ATOMIC_ACQUIRE);
}

FERRY_DEVICE void ferry_store32(uint32_t *to, uint32_t value)
{
	__atomic_store_n(to, value, __ATOMIC_RELEASE);
}

#define FERRY_CHANNEL_POLLS 4u /* each may take a turn of the scheduler's */
#define FERRY_WARP  0u
#define FERRY_TURNS 1u

/* A waiting rank leaves the core to those that it waits for: mostly other threads of a small machine. */
FERRY_DEVICE void ferry_pause(void)
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
 * `largest` become `beyond`.
 */
FERRY_DEVICE uint32_t ferry_narrow_float(float value, uint32_t mantissa, uint32_t bias, uint32_t largest,
                                         uint32_t beyond, uint32_t nan, uint32_t sign_bit)
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
FERRY_DEVICE uint32_t ferry_float_to_half(float value)
{
	return ferry_narrow_float(value, 10, 15, 0x7bffu, 0x7c00u, 0x7e00u, 0x8000u);
}
#endif

/* ---- numbers in words of 8 bytes: ferryFloat32, ferryFloat16, ferryBfloat16 ---- */

/** Numbers of that type in a word; 0: no type that is summed here. */
FERRY_DEVICE uint32_t ferryNumbers(ferryDataType_t type)
{
	return type == ferryFloat32 ? 2 : type == ferryFloat16 || type == ferryBfloat16 ? 4 : 0;
}

/** Number i of a word. */
FERRY_DEVICE float ferryNumber(ferryDataType_t type, uint64_t word, uint32_t i)
{
	if (type == ferryFloat32)
		return ferry_as_float((uint32_t)(word >> 32 * i));
	const uint32_t half = (uint32_t)(word >> 16 * i) & 0xffffu;
	return type == ferryFloat16 ? ferry_half_to_float(half) : ferry_as_float(half << 16);
}

/** A word with `value`, rounded to nearest even, as its number i; its other bits are 0. */
FERRY_DEVICE uint64_t ferryPlaced(ferryDataType_t type, float value, uint32_t i)
{
	const uint32_t bits = value != value ? 0x7fc00000u : ferry_float_bits(value);
	if (type == ferryFloat32)
		return (uint64_t)bits << 32 * i;
	if (type == ferryFloat16)
		return (uint64_t)(value != value ? 0x7e00u : ferry_float_to_half(value)) << 16 * i;
	return (uint64_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16) << 16 * i;
}

/** The sum of words in the order of ranks, in float32 with one rounding: the bits of ferryAllReduce(). */
FERRY_DEVICE uint64_t ferrySumWords(ferryDataType_t type, const uint64_t words[FERRY_CHANNEL_RANKS], int nranks)
{
	uint64_t sum = 0;
	FERRY_UNROLL
	for (uint32_t i = 0; i < 4; i++) {
		if (i >= ferryNumbers(type))
			break;
		float total = ferryNumber(type, words[0], i);
		FERRY_UNROLL
		for (int r = 1; r < FERRY_CHANNEL_RANKS; r++)
			if (r < nranks)
				total += ferryNumber(type, words[r], i);
		sum |= ferryPlaced(type, total, i);
	}
	return sum;
}

/* ---- waiting ---- */

#define FERRY_CHANNEL_WORDS 32u     /* of `counters`, of a channel: */
#define FERRY_CHANNEL_SIGNALLED 0u  /* signals to each rank, */
#define FERRY_CHANNEL_AWAITED 8u    /* and waits for each, */
#define FERRY_CHANNEL_ROUND 16u     /* and the last round; */
#define FERRY_CHANNEL_GIVEN_UP 17u  /* of channel 0: 1 if the communicator has failed */

FERRY_DEVICE uint32_t *ferry_channel_counter(const ferryChannels_t *c, uint32_t channel, uint32_t word)
{
	return c->counters + channel * FERRY_CHANNEL_WORDS + word;
}

/* Whether it is this warp's turn to look at the abort word, after so many polls that failed. */
FERRY_DEVICE bool ferry_has_turn(uint32_t misses)
{
	return misses % FERRY_CHANNEL_POLLS == 0 &&
	       misses / FERRY_CHANNEL_POLLS % FERRY_TURNS == FERRY_WARP % FERRY_TURNS;
}

/*
 * A poll failed: returns whether nobody should wait any more. The abort word is in host memory. A GPU reads such a word
 * for one warp after the other, half a microsecond for each, so warps take turns at it. `given_up`, in device memory,
 * tells all of them.
 */
FERRY_DEVICE bool ferry_gives_up(const uint32_t *abort, uint32_t *given_up, uint32_t *misses)
{
	ferry_pause();
	if (++*misses % FERRY_CHANNEL_POLLS)
		return false;
	if (ferry_has_turn(*misses) && ferry_load32(abort))
		ferry_store32(given_up, 1);
	return ferry_load32(given_up);
}

FERRY_DEVICE bool ferry_channel_fails(const ferryChannels_t *c, uint32_t *misses)
{
	return ferry_gives_up(c->abort, ferry_channel_counter(c, 0, FERRY_CHANNEL_GIVEN_UP), misses);
}

/* ---- the memory channel: put, signal, wait ---- */

/** Copies to a rank's memory. from: a multiple of 16. The other rank may read it after a signal. */
FERRY_DEVICE void ferryPut(const ferryChannels_t *c, int rank, uint64_t offset, const void *from, uint64_t bytes,
                           uint32_t thread, uint32_t threads)
{
	char *to = c->memory[rank] + offset;
	const char *source = (const char *)from;
	for (uint64_t at = 16ull * thread; at + 16 <= bytes; at += 16ull * threads)
		ferry_store_vector(to + at, ferry_load_vector(source + at));
	for (uint64_t at = bytes / 16 * 16 + thread; at < bytes; at += threads)
		to[at] = source[at];
}

/**
 * Tells a rank that all that this block has put is there. By one thread, behind a barrier of the block (__syncthreads).
 */
FERRY_DEVICE void ferrySignal(const ferryChannels_t *c, int rank, uint32_t channel)
{
	uint32_t *signalled = ferry_channel_counter(c, channel, FERRY_CHANNEL_SIGNALLED + (uint32_t)rank);
	const uint32_t number = ferry_load32(signalled) + 1;
	ferry_store32(signalled, number);
	ferry_store_flag((char *)(c->signals[rank] + (uint32_t)c->rank * FERRY_CHANNELS + channel), number);
}

/**
 * Waits for the rank's next signal. By one thread, or for each rank by another one, before a barrier of the block,
 * behind which all of its threads may read what was put.
 */
FERRY_DEVICE bool ferryWait(const ferryChannels_t *c, int rank, uint32_t channel)
{
	uint32_t *awaited = ferry_channel_counter(c, channel, FERRY_CHANNEL_AWAITED + (uint32_t)rank), misses = 0;
	const uint32_t number = ferry_load32(awaited) + 1;
	const char *signal = (const char *)(c->signals[c->rank] + (uint32_t)rank * FERRY_CHANNELS + channel);
	while ((int32_t)(ferry_load_flag(signal) - number) < 0)
		if (ferry_channel_fails(c, &misses))
			return false;
	ferry_store32(awaited, number);
	return true;
}

/**
 * to = the sum, in rank order, of what all ranks have at `offset` of their memory: behind a wait for each of them. to,
 * bytes: multiples of 16. Returns false, and does nothing, for other types than ferryFloat32, ferryFloat16 and
 * ferryBfloat16.
 */
FERRY_DEVICE bool ferryReduceFrom(const ferryChannels_t *c, uint64_t offset, void *to, uint64_t bytes,
                                  ferryDataType_t type, uint32_t thread, uint32_t threads)
{
	for (uint64_t at = 16ull * thread; ferryNumbers(type) && at < bytes; at += 16ull * threads) {
		uint64_t low[FERRY_CHANNEL_RANKS] = {0}, high[FERRY_CHANNEL_RANKS] = {0};
		FERRY_UNROLL
		for (int r = 0; r < FERRY_CHANNEL_RANKS; r++) {
			if (r >= c->nranks)
				break;
			const struct ferry_vector v = ferry_load_vector(c->memory[r] + offset + at);
			low[r] = v.low;
			high[r] = v.high;
		}
		struct ferry_vector sum = {ferrySumWords(type, low, c->nranks), ferrySumWords(type, high, c->nranks)};
		ferry_store_vector((char *)to + at, sum);
	}
	return ferryNumbers(type) != 0;
}

/* ---- packets: 8 bytes of data and the round's flag twice, in 16 bytes; no signal ---- */

/**
 * The flag of the channel's round, never 0. Rounds are counted in device memory, so a graph can be replayed. flag & 1
 * says which half of its places a round uses: a place may be written again when something has come from every rank in
 * the round between. A place belongs to one channel: else an old packet could look like a new one. Flags come again
 * after 2^32 - 2 rounds.
 */
FERRY_DEVICE uint32_t ferryFlag(const ferryChannels_t *c, uint32_t channel)
{
	const uint32_t last = ferry_load32(ferry_channel_counter(c, channel, FERRY_CHANNEL_ROUND));
	return last + 1 ? last + 1 : 2; /* halves take turns */
}

/** The round is over. By one thread, behind a barrier that all threads of the block reach after their last read. */
FERRY_DEVICE void ferryEndRound(const ferryChannels_t *c, uint32_t channel)
{
	ferry_store32(ferry_channel_counter(c, channel, FERRY_CHANNEL_ROUND), ferryFlag(c, channel));
}

FERRY_DEVICE void ferryPutPacket(const ferryChannels_t *c, int rank, uint64_t offset, uint64_t word, uint32_t flag)
{
	ferry_store_packet(c->memory[rank] + offset, (word & 0xffffffffu) | (uint64_t)flag << 32,
	                   word >> 32 | (uint64_t)flag << 32);
}

/** Waits for a packet in this rank's memory. */
FERRY_DEVICE bool ferryReadPacket(const ferryChannels_t *c, uint64_t offset, uint64_t *word, uint32_t flag)
{
	uint32_t misses = 0;
	for (;;) {
		const struct ferry_vector v = ferry_load_packet(c->memory[c->rank] + offset);
		*word = (v.low & 0xffffffffu) | v.high << 32;
		if ((uint32_t)(v.low >> 32) == flag && (uint32_t)(v.high >> 32) == flag)
			return true;
		if (ferry_channel_fails(c, &misses))
			return false;
	}
}

/** from, bytes: multiples of 8. Takes twice as many bytes of the other rank's memory. */
FERRY_DEVICE void ferryPutPackets(const ferryChannels_t *c, int rank, uint64_t offset, const void *from, uint64_t bytes,
                                  uint32_t flag, uint32_t thread, uint32_t threads)
{
	for (uint64_t i = thread; i < bytes / 8; i += threads)
		ferryPutPacket(c, rank, offset + 16 * i, ((const uint64_t *)from)[i], flag);
}

FERRY_DEVICE bool ferryReadPackets(const ferryChannels_t *c, uint64_t offset, void *to, uint64_t bytes, uint32_t flag,
                                   uint32_t thread, uint32_t threads)
{
	for (uint64_t i = thread; i < bytes / 8; i += threads) {
		uint64_t word;
		if (!ferryReadPacket(c, offset + 16 * i, &word, flag))
			return false;
		((uint64_t *)to)[i] = word;
	}
	return true;
}

/* ---- the switch channel: NVLink SHARP, where `multicast` is there (compute capability 9.0) ---- */

/** *sum = the sum of 16 bytes that all ranks have at `offset`. Returns false if there is no multicast. */
FERRY_DEVICE bool ferrySwitchReduce(const ferryChannels_t *c, uint64_t offset, ferryDataType_t type,
                                    struct ferry_vector *sum)
{
	if (!c->multicast || !ferryNumbers(type))
		return false;
#ifndef __CUDACC__
	uint64_t low[FERRY_CHANNEL_RANKS] = {0}, high[FERRY_CHANNEL_RANKS] = {0};
	for (int r = 0; r < c->nranks; r++) {
		const struct ferry_vector v = ferry_load_vector(c->memory[r] + offset);
		low[r] = v.low;
		high[r] = v.high;
	}
	*sum = (struct ferry_vector){ferrySumWords(type, low, c->nranks), ferrySumWords(type, high, c->nranks)};
	return true;
#elif __CUDA_ARCH__ >= 900
	uint32_t v[4];
#define FERRY_MULTIMEM_LOAD(kind)                                                                                      \
	asm volatile("multimem.ld_reduce.relaxed.sys.global.add" kind " {%0, %1, %2, %3}, [%4];"                       \
	             : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])                                                  \
	             : "l"(c->multicast + offset)                                                                      \
	             : "memory")
	if (type == ferryFloat32)
		FERRY_MULTIMEM_LOAD(".v4.f32");
	else if (type == ferryFloat16)
		FERRY_MULTIMEM_LOAD(".acc::f32.v4.f16x2");
	else
		FERRY_MULTIMEM_LOAD(".acc::f32.v4.bf16x2");
#undef FERRY_MULTIMEM_LOAD
	sum->low = v[0] | (uint64_t)v[1] << 32;
	sum->high = v[2] | (uint64_t)v[3] << 32;
	return true;
#else
	return false;
#endif
}

/** Stores 16 bytes at `offset` of all ranks' memory. Returns false if there is no multicast. */
FERRY_DEVICE bool ferrySwitchBroadcast(const ferryChannels_t *c, uint64_t offset, struct ferry_vector v)
{
	if (!c->multicast)
		return false;
#ifndef __CUDACC__
	for (int r = 0; r < c->nranks; r++)
		ferry_store_packet(c->memory[r] + offset, v.low, v.high);
	return true;
#elif __CUDA_ARCH__ >= 900
	asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(c->multicast + offset),
	             "r"((uint32_t)v.low), "r"((uint32_t)(v.low >> 32)), "r"((uint32_t)v.high),
	             "r"((uint32_t)(v.high >> 32))
	             : "memory");
	return true;
#else
	return false;
#endif
}

#endif
