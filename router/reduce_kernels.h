/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels, once for every target: included by reduce_<target>.c, which defines
 *   FERRY_KERNEL   the name of the table to define
 *   VECTOR_BYTES   16, 32 or 64
 *   half_to_float, float_to_half   vectors of float <-> vectors of half's bits, to nearest even
 *   stream_store                    a vector past the caches to an aligned address
 * and is compiled with that target's flags. Everything else is GCC's vector extension: element by element, no reassociation,
 * no contraction (-ffp-contract=off), hence the same bits on every target. A NaN result is always the canonical quiet NaN,
 * because which payload survives an addition depends on the order of its operands, which compilers may change.
 */
#include "router/reduce_targets.h"

#include <stdbool.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define LANES(type) (VECTOR_BYTES / sizeof(type))
#define FLOAT_LANES LANES(float)

typedef float vfloat __attribute__((vector_size(VECTOR_BYTES)));
typedef double vdouble __attribute__((vector_size(VECTOR_BYTES)));
typedef int32_t vi32 __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t vu32 __attribute__((vector_size(VECTOR_BYTES)));
typedef int64_t vi64 __attribute__((vector_size(VECTOR_BYTES)));
typedef uint64_t vu64 __attribute__((vector_size(VECTOR_BYTES)));
typedef int8_t vi8 __attribute__((vector_size(VECTOR_BYTES)));
typedef uint8_t vu8 __attribute__((vector_size(VECTOR_BYTES)));
typedef uint16_t vhalf __attribute__((vector_size(VECTOR_BYTES / 2)));

HALF_CONVERSIONS

/* ---- between memory and accumulators ---- */

#define DEFINE_DIRECT(name, vector)                                                                                             \
	INLINE vector load_##name(const char *from)                                                                             \
	{                                                                                                                       \
		vector value;                                                                                                   \
		memcpy(&value, from, sizeof value);                                                                             \
		return value;                                                                                                   \
	}                                                                                                                       \
	INLINE void store_##name(char *to, vector value, enum ferry_store store)                                                \
	{                                                                                                                       \
		if (store == FERRY_STORE_STREAM)                                                                                \
			stream_store(to, &value);                                                                               \
		else                                                                                                            \
			memcpy(to, &value, sizeof value);                                                                       \
	}

DEFINE_DIRECT(i8, vi8)
DEFINE_DIRECT(u8, vu8)
DEFINE_DIRECT(i32, vi32)
DEFINE_DIRECT(u32, vu32)
DEFINE_DIRECT(i64, vi64)
DEFINE_DIRECT(u64, vu64)
DEFINE_DIRECT(f32, vfloat)
DEFINE_DIRECT(f64, vdouble)

INLINE vfloat load_bf16(const char *from)
{
	vhalf bits;
	memcpy(&bits, from, sizeof bits);
	return (vfloat)(__builtin_convertvector(bits, vu32) << 16);
}

INLINE void store_bf16(char *to, vfloat value, enum ferry_store store)
{
	(void)store; /* half a vector: the streaming path runs on whole ones only */
	vu32 bits = (vu32)value;
	vu32 rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
	vhalf half = __builtin_convertvector(rounded, vhalf);
	memcpy(to, &half, sizeof half);
}

INLINE vfloat load_f16(const char *from)
{
	vhalf bits;
	memcpy(&bits, from, sizeof bits);
	return half_to_float(bits);
}

INLINE void store_f16(char *to, vfloat value, enum ferry_store store)
{
	(void)store;
	vhalf half = float_to_half(value);
	memcpy(to, &half, sizeof half);
}

#define DEFINE_FLOAT8(name)                                                                                                     \
	INLINE vfloat load_##name(const char *from)                                                                             \
	{                                                                                                                       \
		vfloat value;                                                                                                   \
		for (size_t i = 0; i < FLOAT_LANES; i++)                                                                        \
			value[i] = ferry_##name##_values[(unsigned char)from[i]];                                               \
		return value;                                                                                                   \
	}                                                                                                                       \
	INLINE void store_##name(char *to, vfloat value, enum ferry_store store)                                                \
	{                                                                                                                       \
		(void)store;                                                                                                    \
		for (size_t i = 0; i < FLOAT_LANES; i++)                                                                        \
			to[i] = (char)ferry_##name##_round(value[i]);                                                           \
	}

DEFINE_FLOAT8(f8e4m3)
DEFINE_FLOAT8(f8e5m2)

/* ---- one step of each operation ---- */

#define SELECT(mask, yes, no, vector, bits) ((vector)(((bits)(yes) & (bits)(mask)) | ((bits)(no) & ~(bits)(mask))))

/* vector: the accumulator; bits: an integer vector of the same width; arithmetic: unsigned for signed integers, which wrap. */
#define DEFINE_STEP(name, vector, bits, arithmetic, is_float)                                                                   \
	INLINE vector step_##name(vector a, vector b, const int op)                                                             \
	{                                                                                                                       \
		if (op == ferrySum)                                                                                             \
			return (vector)((arithmetic)a + (arithmetic)b);                                                         \
		if (op == ferryProd)                                                                                            \
			return (vector)((arithmetic)a * (arithmetic)b);                                                         \
		vector chosen = op == ferryMax ? SELECT(b > a, b, a, vector, bits) : SELECT(b < a, b, a, vector, bits);         \
		return is_float ? SELECT(b != b, b, chosen, vector, bits) : chosen; /* a NaN in a stays: no comparison holds */  \
	}

DEFINE_STEP(i8, vi8, vi8, vu8, 0)
DEFINE_STEP(u8, vu8, vi8, vu8, 0)
DEFINE_STEP(i32, vi32, vi32, vu32, 0)
DEFINE_STEP(u32, vu32, vi32, vu32, 0)
DEFINE_STEP(i64, vi64, vi64, vu64, 0)
DEFINE_STEP(u64, vu64, vi64, vu64, 0)
DEFINE_STEP(float, vfloat, vi32, vfloat, 1)
DEFINE_STEP(double, vdouble, vi64, vdouble, 1)

#define SAME(value) (value)
#define CANONICAL_FLOAT(value) SELECT((value) != (value), (vi32){} + 0x7fc00000, value, vfloat, vi32)
#define CANONICAL_DOUBLE(value) SELECT((value) != (value), (vi64){} + 0x7ff8000000000000ll, value, vdouble, vi64)

/* ---- the pass ---- */

/*
 * Two vectors of the result at a time, their accumulators in registers, each source read once. plain: no factors, no divisor.
 * `count` is a constant where the pass is specialized for it.
 */
#define DEFINE_PASS(name, vector, memory_bytes, stepper, scalar, finish)                                                        \
	INLINE void pass_##name(char *to, const char *const *from, const uint32_t count, size_t begin, size_t end, const int op, \
	                        const bool plain, enum ferry_store store, const scalar *factors, scalar divisor)                \
	{                                                                                                                       \
		const size_t one = memory_bytes;                                                                                \
		size_t at = begin;                                                                                              \
		for (; at + 2 * one <= end; at += 2 * one) {                                                                    \
			vector a = load_##name(from[0] + at), b = load_##name(from[0] + at + one);                              \
			if (!plain && factors) {                                                                                \
				a = step_##stepper(a, factors[0] - (vector){}, ferryProd);                                      \
				b = step_##stepper(b, factors[0] - (vector){}, ferryProd);                                      \
			}                                                                                                       \
			for (uint32_t i = 1; i < count; i++) {                                                                  \
				vector c = load_##name(from[i] + at), d = load_##name(from[i] + at + one);                      \
				if (!plain && factors) {                                                                        \
					c = step_##stepper(c, factors[i] - (vector){}, ferryProd);                              \
					d = step_##stepper(d, factors[i] - (vector){}, ferryProd);                              \
				}                                                                                               \
				a = step_##stepper(a, c, op);                                                                   \
				b = step_##stepper(b, d, op);                                                                   \
			}                                                                                                       \
			if (!plain && divisor != 1) {                                                                           \
				a /= divisor;                                                                                   \
				b /= divisor;                                                                                   \
			}                                                                                                       \
			store_##name(to + at, finish(a), store);                                                                \
			store_##name(to + at + one, finish(b), store);                                                          \
			if (store == FERRY_STORE_DEMOTE)                                                                        \
				ferry_demote(to + at, 2 * one);                                                                 \
		}                                                                                                               \
	}                                                                                                                       \
	INLINE void op_##name(char *to, const char *const *from, uint32_t count, size_t begin, size_t end, const int op,        \
	                      bool plain, enum ferry_store store, const scalar *factors, scalar divisor)                        \
	{                                                                                                                       \
		if (!plain)                                                                                                     \
			pass_##name(to, from, count, begin, end, op, false, store, factors, divisor);                           \
		else if (count == 2)                                                                                            \
			pass_##name(to, from, 2, begin, end, op, true, store, NULL, 1);                                         \
		else if (count == 4)                                                                                            \
			pass_##name(to, from, 4, begin, end, op, true, store, NULL, 1);                                         \
		else                                                                                                            \
			pass_##name(to, from, count, begin, end, op, true, store, NULL, 1);                                     \
	}                                                                                                                       \
	static void run_##name(char *to, const char *const *from, uint32_t count, size_t begin, size_t end, int op, bool plain, \
	                       enum ferry_store store, const void *factors, double divisor)                                     \
	{                                                                                                                       \
		switch (op) {                                                                                                   \
		case ferryProd:                                                                                                 \
			op_##name(to, from, count, begin, end, ferryProd, plain, store, factors, (scalar)divisor);              \
			break;                                                                                                  \
		case ferryMax:                                                                                                  \
			op_##name(to, from, count, begin, end, ferryMax, plain, store, factors, (scalar)divisor);               \
			break;                                                                                                  \
		case ferryMin:                                                                                                  \
			op_##name(to, from, count, begin, end, ferryMin, plain, store, factors, (scalar)divisor);               \
			break;                                                                                                  \
		default:                                                                                                        \
			op_##name(to, from, count, begin, end, ferrySum, plain, store, factors, (scalar)divisor);               \
		}                                                                                                               \
	}

DEFINE_PASS(i8, vi8, VECTOR_BYTES, i8, int8_t, SAME)
DEFINE_PASS(u8, vu8, VECTOR_BYTES, u8, uint8_t, SAME)
DEFINE_PASS(i32, vi32, VECTOR_BYTES, i32, int32_t, SAME)
DEFINE_PASS(u32, vu32, VECTOR_BYTES, u32, uint32_t, SAME)
DEFINE_PASS(i64, vi64, VECTOR_BYTES, i64, int64_t, SAME)
DEFINE_PASS(u64, vu64, VECTOR_BYTES, u64, uint64_t, SAME)
DEFINE_PASS(f32, vfloat, VECTOR_BYTES, float, float, CANONICAL_FLOAT)
DEFINE_PASS(f64, vdouble, VECTOR_BYTES, double, double, CANONICAL_DOUBLE)
DEFINE_PASS(f16, vfloat, VECTOR_BYTES / 2, float, float, CANONICAL_FLOAT)
DEFINE_PASS(bf16, vfloat, VECTOR_BYTES / 2, float, float, CANONICAL_FLOAT)
DEFINE_PASS(f8e4m3, vfloat, VECTOR_BYTES / 4, float, float, CANONICAL_FLOAT)
DEFINE_PASS(f8e5m2, vfloat, VECTOR_BYTES / 4, float, float, CANONICAL_FLOAT)

static void copy_streaming(char *to, const char *from, size_t bytes)
{
	for (size_t at = 0; at < bytes; at += 4 * VECTOR_BYTES) {
		vu8 part[4];
		memcpy(part, from + at, sizeof part);
		for (int i = 0; i < 4; i++)
			stream_store(to + at + (size_t)i * VECTOR_BYTES, &part[i]);
	}
}

const struct ferry_reduce_kernels FERRY_KERNEL = {
	.vector = VECTOR_BYTES,
	.passes = {[ferryInt8] = run_i8, [ferryUint8] = run_u8, [ferryInt32] = run_i32, [ferryUint32] = run_u32,
	           [ferryInt64] = run_i64, [ferryUint64] = run_u64, [ferryFloat16] = run_f16, [ferryFloat32] = run_f32,
	           [ferryFloat64] = run_f64, [ferryBfloat16] = run_bf16, [ferryFloat8e4m3] = run_f8e4m3,
	           [ferryFloat8e5m2] = run_f8e5m2},
	.copy_streaming = copy_streaming,
};
