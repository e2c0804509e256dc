/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Picks the target once, then runs whole vectors through its kernels. The rest at the end, and the elements before the
 * first aligned line for streaming stores, go through the same kernels by way of a small buffer, so their bits are the
 * same too.
 */
#include "router/reduce/reduce.h"

#include "ipc/environment.h"
#include "ipc/error.h"
#include "router/reduce/targets.h"

#include <math.h>
#include <pthread.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <xmmintrin.h>
#endif

#define MOST_SOURCES (FERRY_MAX_RANKS + FERRY_MAX_DOMAINS)
#define STREAM_LEAST 4096 /* below this, fencing costs more than the cache lines */
/* From 2 KiB on glibc takes `rep movsb`, which is half as fast where another core has written what it reads. */
#define LOOP_LEAST 1024

/* ---- small floats, one at a time: factors ---- */

static float half_to_float(uint16_t half)
{
	uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, mantissa = half & 1023, bits;
	float value;
	if (exponent == 31) {
		bits = sign | 0x7f800000u | mantissa << 13;
	} else if (exponent) {
		bits = sign | (exponent + 112) << 23 | mantissa << 13;
	} else if (mantissa) {
		uint32_t shift = (uint32_t)__builtin_clz(mantissa) - 21;
		bits = sign | (113 - shift) << 23 | (mantissa << (shift + 13) & 0x7fffffu);
	} else {
		bits = sign;
	}
	memcpy(&value, &bits, sizeof value);
	return value;
}

/* As kernels.h widens them. */
static float f8e4m3_to_float(uint8_t byte)
{
	return (byte & 0x7f) == 0x7f ? NAN : half_to_float((uint16_t)((byte & 0x80) << 8 | (byte & 0x7f) << 7)) * 256;
}

static float f8e5m2_to_float(uint8_t byte)
{
	return half_to_float((uint16_t)(byte << 8));
}

/* ---- targets ---- */

static const char *const target_names[FERRY_NUM_TARGETS] = {"portable", "avx2", "avx512", "neon"};

const char *ferry_reduce_target_name(enum ferry_target target)
{
	return (unsigned)target < FERRY_NUM_TARGETS ? target_names[target] : NULL;
}

#if defined(__x86_64__)
static bool cpu_has_f16c(void)
{
	unsigned eax, ebx, ecx, edx; /* clang 14's __builtin_cpu_supports does not know the name */
	return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && ecx & bit_F16C;
}
#endif

bool ferry_cpu_demotes(void)
{
#if defined(__x86_64__)
	unsigned eax, ebx, ecx, edx;
	return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && ecx >> 25 & 1;
#else
	return false;
#endif
}

static const struct ferry_reduce_kernels *kernels_of(enum ferry_target target)
{
	switch (target) {
	case FERRY_TARGET_PORTABLE:
		return &ferry_kernels_portable;
#if defined(__x86_64__)
	case FERRY_TARGET_AVX2:
		return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && cpu_has_f16c()
		               ? &ferry_kernels_avx2
		               : NULL;
	case FERRY_TARGET_AVX512:
		return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
		                       __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")
		               ? &ferry_kernels_avx512
		               : NULL;
#elif defined(__aarch64__)
	case FERRY_TARGET_NEON:
		return &ferry_kernels_neon;
#endif
	default:
		return NULL;
	}
}

static enum ferry_target chosen_target;
/* kernels_of asks the CPU, which in a virtual machine takes microseconds */
static const struct ferry_reduce_kernels *chosen_kernels;
static pthread_once_t chosen = PTHREAD_ONCE_INIT;

ferryResult_t ferry_reduce_check(void)
{
	const char *wanted = ferry_env("FERRY_REDUCE");
	char names[64] = "";
	size_t length = 0;
	for (int i = 0; i < FERRY_NUM_TARGETS; i++) {
		if (!kernels_of((enum ferry_target)i))
			continue;
		if (!wanted || !strcmp(wanted, target_names[i]))
			return ferrySuccess;
		length += (size_t)snprintf(names + length, sizeof names - length, "%s%s", length ? ", " : "",
		                           target_names[i]);
	}
	return ferry_fail(ferryInvalidArgument, "FERRY_REDUCE=%s: this CPU has %s", wanted, names);
}

static void choose(void)
{
	static const enum ferry_target best_first[] = {FERRY_TARGET_AVX512, FERRY_TARGET_AVX2, FERRY_TARGET_NEON,
	                                               FERRY_TARGET_PORTABLE};
	const char *wanted = ferry_env("FERRY_REDUCE");
	chosen_target = FERRY_TARGET_PORTABLE;
	chosen_kernels = &ferry_kernels_portable;
	for (int i = 0; i < 4; i++) {
		const struct ferry_reduce_kernels *kernels = kernels_of(best_first[i]);
		if (kernels && (!wanted || !strcmp(wanted, target_names[best_first[i]]))) {
			chosen_target = best_first[i];
			chosen_kernels = kernels;
			return;
		}
	}
	ferry_log(FERRY_LOG_WARN, "FERRY_REDUCE=%s: this CPU has no such target; portable code runs", wanted);
}

enum ferry_target ferry_reduce_target(void)
{
	pthread_once(&chosen, choose);
	return chosen_target;
}

static const struct ferry_reduce_kernels *best_kernels(void)
{
	pthread_once(&chosen, choose);
	return chosen_kernels;
}

/* ---- factors and divisors in the accumulator's type ---- */

static size_t element_size(ferryDataType_t type)
{
	static const uint8_t sizes[ferryNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
	return sizes[type];
}

static void convert_factor(const struct ferry_reduction *reduction, uint32_t source, void *factors)
{
	bool scaled = source < 64 && reduction->scaled >> source & 1;
	uint64_t bits = scaled ? reduction->scalars[source] : 0;
	float single = 1;
	uint32_t shifted = (uint32_t)bits << 16;
	switch (reduction->type) {
	case ferryInt8:
	case ferryUint8:
		((uint8_t *)factors)[source] = scaled ? (uint8_t)bits : 1;
		return;
	case ferryInt32:
	case ferryUint32:
		((uint32_t *)factors)[source] = scaled ? (uint32_t)bits : 1;
		return;
	case ferryInt64:
	case ferryUint64:
		((uint64_t *)factors)[source] = scaled ? bits : 1;
		return;
	case ferryFloat64:
		if (scaled)
			memcpy((double *)factors + source, &bits, 8);
		else
			((double *)factors)[source] = 1;
		return;
	case ferryFloat16:
		single = scaled ? half_to_float((uint16_t)bits) : 1;
		break;
	case ferryBfloat16:
		if (scaled)
			memcpy(&single, &shifted, 4);
		break;
	case ferryFloat8e4m3:
		single = scaled ? f8e4m3_to_float((uint8_t)bits) : 1;
		break;
	case ferryFloat8e5m2:
		single = scaled ? f8e5m2_to_float((uint8_t)bits) : 1;
		break;
	default:
		if (scaled)
			memcpy(&single, &bits, 4);
	}
	((float *)factors)[source] = single;
}

uint64_t ferry_reduce_reciprocal(ferryDataType_t type, uint32_t n)
{
	double wide = 1.0 / n;
	float single = (float)wide;
	uint32_t bits, mantissa, bias;
	uint64_t wide_bits;
	memcpy(&bits, &single, sizeof bits);
	memcpy(&wide_bits, &wide, sizeof wide_bits);
	switch (type) {
	case ferryFloat16:
		mantissa = 10, bias = 15;
		break;
	case ferryBfloat16:
		mantissa = 7, bias = 127;
		break;
	case ferryFloat8e4m3:
		mantissa = 3, bias = 7;
		break;
	case ferryFloat8e5m2:
		mantissa = 2, bias = 15;
		break;
	case ferryFloat32:
		return bits;
	case ferryFloat64:
		return wide_bits;
	default:
		return 0;
	}
	/* To nearest even. 1 / FERRY_MAX_RANKS is a normal number of each type: only the exponent's bias changes. */
	_Static_assert(FERRY_MAX_RANKS <= 64, "1 / 64 is the least normal number of e4m3");
	uint32_t drop = 23 - mantissa;
	return ((bits + ((1u << (drop - 1)) - 1) + (bits >> drop & 1)) >> drop) - ((127 - bias) << mantissa);
}

/* ---- the floating-point modes that the promise of equal bits rests on ---- */

/*
 * A rank may host the engine in a process that was linked with -ffast-math, which makes its threads flush subnormals,
 * or that rounds otherwise or traps. Kernels run in the default modes; the thread's own come back after.
 */
#if defined(__x86_64__)
#define MODE_BITS 0xffc0u     /* of MXCSR: all but the sticky flags */
#define DEFAULT_MODES 0x1f80u /* all exceptions masked, round to nearest, subnormals kept */

static uint64_t enter_default_modes(void)
{
	unsigned modes = _mm_getcsr();
	if ((modes & MODE_BITS) != DEFAULT_MODES)
		_mm_setcsr(DEFAULT_MODES);
	return modes;
}

static void leave_default_modes(uint64_t modes)
{
	if ((modes & MODE_BITS) != DEFAULT_MODES)
		_mm_setcsr((unsigned)modes);
}
#elif defined(__aarch64__)
static uint64_t enter_default_modes(void)
{
	uint64_t modes;
	__asm__ volatile("mrs %0, fpcr" : "=r"(modes));
	if (modes)
		__asm__ volatile("msr fpcr, %0" : : "r"(0ull) : "memory");
	return modes;
}

static void leave_default_modes(uint64_t modes)
{
	if (modes)
		__asm__ volatile("msr fpcr, %0" : : "r"(modes) : "memory");
}
#else
static uint64_t enter_default_modes(void)
{
	return 0;
}

static void leave_default_modes(uint64_t modes)
{
	(void)modes;
}
#endif

/* ---- edges ---- */

struct pass {
	const struct ferry_reduce_kernels *kernels;
	ferry_reduce_pass *run;
	const struct ferry_reduction *reduction;
	uint32_t nsources;
	size_t step; /* bytes that the kernel handles at once: two vectors of accumulators */
	bool plain;
	const void *factors;
	double divisor;
};

/* Fewer bytes than one step: through buffers. */
static void run_short(const struct pass *pass, char *to, const char *const *from, size_t at, size_t bytes)
{
	_Alignas(64) char buffers[MOST_SOURCES][128], result[128];
	const char *inputs[MOST_SOURCES];
	for (uint32_t i = 0; i < pass->nsources; i++) {
		memcpy(buffers[i], from[i] + at, bytes);
		memset(buffers[i] + bytes, 0, pass->step - bytes);
		inputs[i] = buffers[i];
	}
	pass->run(result, inputs, pass->nsources, 0, pass->step, (int)pass->reduction->op, pass->plain,
	          FERRY_STORE_ORDINARY, pass->factors, pass->divisor);
	memcpy(to + at, result, bytes);
}

static void run_whole(const struct pass *pass, char *to, const char *const *from, size_t bytes)
{
	enum ferry_store store = pass->reduction->store;
	size_t at = 0;
	if (store == FERRY_STORE_STREAM) {
		size_t before = -(uintptr_t)to % 64;
		/*
		 * 8-bit floats are stored as half vectors, which do not stream; and short results are better left in
		 * the cache.
		 */
		if (pass->step < pass->kernels->vector || bytes < STREAM_LEAST ||
		    before % element_size(pass->reduction->type))
			store = FERRY_STORE_ORDINARY;
		for (; store == FERRY_STORE_STREAM && at < before;
		     at += before - at < pass->step ? before - at : pass->step)
			run_short(pass, to, from, at, before - at < pass->step ? before - at : pass->step);
	}
	size_t end = at + (bytes - at) / pass->step * pass->step;
	pass->run(to, from, pass->nsources, at, end, (int)pass->reduction->op, pass->plain, store, pass->factors,
	          pass->divisor);
	if (end < bytes)
		run_short(pass, to, from, end, bytes - end);
#if defined(__x86_64__)
	if (store == FERRY_STORE_STREAM)
		__builtin_ia32_sfence();
#endif
}

static void reduce_with(const struct ferry_reduce_kernels *kernels, void *destination, const void *const *sources,
                        uint32_t nsources, size_t elements, const struct ferry_reduction *reduction)
{
	uint64_t factors[MOST_SOURCES];
	size_t element = element_size(reduction->type);
	size_t accumulator = reduction->type == ferryFloat16 || reduction->type == ferryBfloat16 ||
	                                     reduction->type == ferryFloat8e4m3 || reduction->type == ferryFloat8e5m2
	                             ? sizeof(float)
	                             : element;
	bool scaled = reduction->scalars && reduction->scaled;
	struct pass pass = {.kernels = kernels,
	                    .run = kernels->passes[reduction->type],
	                    .reduction = reduction,
	                    .nsources = nsources,
	                    .step = 2 * kernels->vector / accumulator * element,
	                    .plain = !scaled && reduction->divisor <= 1,
	                    .factors = scaled ? factors : NULL,
	                    .divisor = reduction->divisor ? reduction->divisor : 1};
	for (uint32_t i = 0; scaled && i < nsources; i++)
		convert_factor(reduction, i, factors);
	uint64_t modes = enter_default_modes();
	run_whole(&pass, destination, (const char *const *)sources, elements * element);
	leave_default_modes(modes);
}

void ferry_reduce(void *destination, const void *const *sources, uint32_t nsources, size_t elements,
                  const struct ferry_reduction *reduction)
{
	reduce_with(best_kernels(), destination, sources, nsources, elements, reduction);
}

ferryResult_t ferry_reduce_on(enum ferry_target target, void *destination, const void *const *sources,
                              uint32_t nsources, size_t elements, const struct ferry_reduction *reduction)
{
	const struct ferry_reduce_kernels *kernels = kernels_of(target);
	if (!kernels)
		return ferry_fail(ferryInvalidUsage, "this CPU or build has no %s kernels",
		                  ferry_reduce_target_name(target) ? ferry_reduce_target_name(target) : "such");
	reduce_with(kernels, destination, sources, nsources, elements, reduction);
	return ferrySuccess;
}

void ferry_copy(void *destination, const void *source, size_t bytes, enum ferry_store store)
{
	char *to = destination;
	const char *from = source;
	bool streams = store == FERRY_STORE_STREAM && bytes >= STREAM_LEAST;
	size_t before = bytes >= LOOP_LEAST ? -(uintptr_t)to % 64 : bytes, whole = (bytes - before) / 256 * 256;
	memcpy(to, from, before);
	if (whole)
		best_kernels()->copy(to + before, from + before, whole, streams);
	if (bytes - before - whole)
		memcpy(to + before + whole, from + before + whole, bytes - before - whole);
#if defined(__x86_64__)
	if (streams)
		__builtin_ia32_sfence();
#endif
	if (store == FERRY_STORE_DEMOTE && bytes)
		ferry_demote(to, bytes);
}
