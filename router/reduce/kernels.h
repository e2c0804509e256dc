/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reduction kernels, once for every target. Included by a file per target (avx2.c, ...), which defines
 *   FERRY_KERNEL   the name of the table to define
 *   VECTOR_BYTES   16, 32 or 64
 *   half_to_float, float_to_half   vectors of float <-> vectors of half's bits, to nearest even
 *   join_halves                     two vectors of half's bits, the first of them first
 *   fused_float, fused_double       a * b + c, rounded once
 *   stream_store                    a vector past the caches to an aligned address
 * and is compiled with that target's flags. Everything else is GCC's vector extension: element by element, no
 * reassociation, no contraction (-ffp-contract=off) but where it is asked for, hence the same bits on every target. A
 * NaN result is always the canonical quiet NaN, because which payload survives an addition depends on the order of its
 * operands, which compilers may change.
 */
#include "router/reduce/targets.h"

#include <stdbool.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define LANES(type) (VECTOR_BYTES / sizeof(type))

typedef float vfloat __attribute__((vector_size(VECTOR_BYTES)));
typedef double vdouble __attribute__((vector_size(VECTOR_BYTES)));
typedef int32_t vi32 __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t vu32 __attribute__((vector_size(VECTOR_BYTES)));
typedef int64_t vi64 __attribute__((vector_size(VECTOR_BYTES)));
typedef uint64_t vu64 __attribute__((vector_size(VECTOR_BYTES)));
typedef int8_t vi8 __attribute__((vector_size(VECTOR_BYTES)));
typedef uint8_t vu8 __attribute__((vector_size(VECTOR_BYTES)));
typedef uint16_t vhalf __attribute__((vector_size(VECTOR_BYTES / 2)));

#define SELECT(mask, yes, no, vector, bits) ((vector)(((bits)(yes) & (bits)(mask)) | ((bits)(no) & ~(bits)(mask))))

/*
 * Rounds floats to numbers with `mantissa` bits of fraction and that bias of the exponent, in the low bits, to nearest
 * even; values above `largest` become `beyond`. Below the least normal number: adding a power of two whose last place
 * is the least subnormal leaves the number of subnormals in the sum's last places.
 */
INLINE vu32 narrow(vfloat value, const uint32_t mantissa, const uint32_t bias, const uint32_t largest,
                   const uint32_t beyond, const uint32_t nan, const uint32_t sign_bit)
{
	const uint32_t drop = 23 - mantissa, normal = (128 - bias) << 23, whole = (151 - mantissa - bias) << 23;
	vu32 magnitude = (vu32)value & 0x7fffffffu, sign = ((vu32)value >> 31) * sign_bit;
	vu32 rounded = (magnitude + ((1u << (drop - 1)) - 1) + (magnitude >> drop & 1u)) >> drop;
	vu32 code = rounded - ((127 - bias) << mantissa);
	vu32 small = (vu32)((vfloat)magnitude + (vfloat)((vu32){} + whole)) - whole;
	code = SELECT(magnitude < normal, small, code, vu32, vu32);
	code = SELECT(code > largest, (vu32){} + beyond, code, vu32, vu32);
	code = SELECT(magnitude > 0x7f800000u, (vu32){} + nan, code, vu32, vu32);
	return sign | code;
}

HALF_CONVERSIONS

/* ---- between memory and accumulators, two vectors of these at a time ---- */

INLINE void store_whole(char *to, const void *vector, enum ferry_store store)
{
	if (store == FERRY_STORE_STREAM)
		stream_store(to, vector);
	else
		memcpy(to, vector, VECTOR_BYTES);
}

#define DEFINE_DIRECT(name, vector)                                                                                    \
	INLINE void load_##name(const char *from, vector *a, vector *b)                                                \
	{                                                                                                              \
		memcpy(a, from, sizeof *a);                                                                            \
		memcpy(b, from + sizeof *a, sizeof *b);                                                                \
	}                                                                                                              \
	INLINE void store_##name(char *to, vector a, vector b, enum ferry_store store)                                 \
	{                                                                                                              \
		store_whole(to, &a, store);                                                                            \
		store_whole(to + sizeof a, &b, store);                                                                 \
	}

DEFINE_DIRECT(i8, vi8)
DEFINE_DIRECT(u8, vu8)
DEFINE_DIRECT(i32, vi32)
DEFINE_DIRECT(u32, vu32)
DEFINE_DIRECT(i64, vi64)
DEFINE_DIRECT(u64, vu64)
DEFINE_DIRECT(f32, vfloat)
DEFINE_DIRECT(f64, vdouble)

/*
 * A float is a bf16 and sixteen bits more. `a` has the elements of even number, `b` the odd ones: no lane ever moves.
 */
INLINE void load_bf16(const char *from, vfloat *a, vfloat *b)
{
	vu32 pairs;
	memcpy(&pairs, from, sizeof pairs);
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the element of even number is the low half of a pair"
#endif
	*a = (vfloat)(pairs << 16);
	*b = (vfloat)(pairs & 0xffff0000u);
}

/* To nearest even, in the upper half; the lower half has no meaning. */
INLINE vu32 round_bf16(vfloat value)
{
	vu32 bits = (vu32)value;
	return bits + 0x7fffu + (bits >> 16 & 1u);
}

INLINE void store_bf16(char *to, vfloat a, vfloat b, enum ferry_store store)
{
	vu32 pairs = round_bf16(a) >> 16 | (round_bf16(b) & 0xffff0000u);
	store_whole(to, &pairs, store);
}

INLINE void load_f16(const char *from, vfloat *a, vfloat *b)
{
	vhalf bits[2];
	memcpy(bits, from, sizeof bits);
	*a = half_to_float(bits[0]);
	*b = half_to_float(bits[1]);
}

INLINE void store_f16(char *to, vfloat a, vfloat b, enum ferry_store store)
{
	vhalf low = float_to_half(a), high = float_to_half(b);
	if (store == FERRY_STORE_STREAM) {
		vu8 whole = join_halves(low, high);
		stream_store(to, &whole);
	} else { /* moving `high` up costs more than a second store */
		memcpy(to, &low, sizeof low);
		memcpy(to + sizeof low, &high, sizeof high);
	}
}

/*
 * A byte whose fraction is shifted to where a half has it is a half with another bias of the exponent. The largest
 * magnitude of e4m3 is its NaN. `a` has the bytes of even number, `b` the odd ones.
 */
INLINE vfloat widen_f8e4m3(vhalf bits)
{
	vfloat value = half_to_float((bits & 0x80) << 8 | (bits & 0x7f) << 7) * 256;
	return SELECT(((vu32)value & 0x7fffffffu) == 0x43f00000u, (vi32){} + 0x7fc00000, value, vfloat, vi32);
}

INLINE vfloat widen_f8e5m2(vhalf bits)
{
	return half_to_float(bits << 8);
}

/* Stores half a vector, which does not stream: run_whole asks for streaming of whole vectors only. */
#define DEFINE_FLOAT8(name, mantissa, bias, largest)                                                                   \
	INLINE vhalf narrow_##name(vfloat value)                                                                       \
	{                                                                                                              \
		vu32 code = narrow(value, mantissa, bias, largest, largest, 0x7f, 0x80);                               \
		return __builtin_convertvector(code, vhalf);                                                           \
	}                                                                                                              \
	INLINE void load_##name(const char *from, vfloat *a, vfloat *b)                                                \
	{                                                                                                              \
		vhalf pairs;                                                                                           \
		memcpy(&pairs, from, sizeof pairs);                                                                    \
		*a = widen_##name(pairs & 0xff);                                                                       \
		*b = widen_##name(pairs >> 8);                                                                         \
	}                                                                                                              \
	INLINE void store_##name(char *to, vfloat a, vfloat b, enum ferry_store store)                                 \
	{                                                                                                              \
		vhalf bytes = narrow_##name(a) | narrow_##name(b) << 8;                                                \
		(void)store;                                                                                           \
		memcpy(to, &bytes, sizeof bytes);                                                                      \
	}

DEFINE_FLOAT8(f8e4m3, 3, 7, 0x7eu)
DEFINE_FLOAT8(f8e5m2, 2, 15, 0x7bu)

/* Demotes the lines that the bytes just written complete: a step may be less than a line, and half a line stays. */
INLINE void demote_whole_lines(const char *written, size_t bytes)
{
	if (bytes % FERRY_CACHE_LINE == 0)
		ferry_demote(written, bytes);
	else if ((uintptr_t)(written + bytes) % FERRY_CACHE_LINE == 0)
		ferry_demote(written + bytes - FERRY_CACHE_LINE, FERRY_CACHE_LINE);
}

/* ---- one step of each operation ---- */

/*
 * vector: the accumulator; bits: an integer vector of the same width; arithmetic: unsigned for signed integers, which
 * wrap.
 */
#define DEFINE_STEP(name, vector, bits, arithmetic, is_float)                                                          \
	INLINE vector step_##name(vector a, vector b, const int op)                                                    \
	{                                                                                                              \
		if (op == ferrySum)                                                                                    \
			return (vector)((arithmetic)a + (arithmetic)b);                                                \
		if (op == ferryProd)                                                                                   \
			return (vector)((arithmetic)a * (arithmetic)b);                                                \
		vector chosen = op == ferryMax ? SELECT(b > a, b, a, vector, bits)                                     \
		                               : SELECT(b < a, b, a, vector, bits);                                    \
		if (!is_float)                                                                                         \
			return chosen;                                                                                 \
		/* No comparison with a NaN holds: one in b has lost. Equal numbers differ in a zero's sign only. */   \
		bits equal = op == ferryMax ? (bits)a & (bits)b : (bits)a | (bits)b;                                   \
		chosen = SELECT(a == b, equal, chosen, vector, bits);                                                  \
		return SELECT(a != a, b, chosen, vector, bits);                                                        \
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
/* A value as the narrower type in memory holds it. */
#define ROUND_F16(value) half_to_float(float_to_half(value))
#define ROUND_BF16(value)                                                                                              \
	SELECT((value) != (value), value, (vi32)round_bf16(value) & (int32_t)0xffff0000, vfloat, vi32)
#define ROUND_F8E4M3(value) widen_f8e4m3(narrow_f8e4m3(value))
#define ROUND_F8E5M2(value) widen_f8e5m2(narrow_f8e5m2(value))

/*
 * total + value * factor as NCCL's kernels have it: wider floats in one operation that rounds once, 8-bit ones with the
 * product rounded to the type.
 */
#define FUSED(round, stepper, total, value, factor) fused_##stepper(value, factor, total)
#define APART(round, stepper, total, value, factor)                                                                    \
	step_##stepper(total, round(step_##stepper(value, factor, ferryProd)), ferrySum)

#define CANONICAL_FLOAT(value) SELECT((value) != (value), (vi32){} + 0x7fc00000, value, vfloat, vi32)
#define CANONICAL_DOUBLE(value) SELECT((value) != (value), (vi64){} + 0x7ff8000000000000ll, value, vdouble, vi64)

/* ---- the pass ---- */

/*
 * Two vectors of accumulators at a time, in registers, each source read once. step_bytes: their bytes in memory. plain:
 * no factors, no divisor; with factors the operation is a sum. round: what the first product is rounded to, the type in
 * memory. `count` is a constant where the pass is specialized for it, and the pointers then stay in registers: `to` may
 * be one of the sources, but may not overlap the list `from`.
 */
#define DEFINE_PASS(name, vector, step_bytes, stepper, scalar, round, add, finish)                                     \
	INLINE void pass_##name(char *to, const char *const *restrict from, const uint32_t count, size_t begin,        \
	                        size_t end, const int op, const bool plain, enum ferry_store store,                    \
	                        const scalar *factors, scalar divisor)                                                 \
	{                                                                                                              \
		const size_t step = step_bytes;                                                                        \
		for (size_t at = begin; at + step <= end; at += step) {                                                \
			vector a, b, c, d;                                                                             \
			load_##name(from[0] + at, &a, &b);                                                             \
			if (!plain && factors) {                                                                       \
				a = round(step_##stepper(a, factors[0] - (vector){}, ferryProd));                      \
				b = round(step_##stepper(b, factors[0] - (vector){}, ferryProd));                      \
			}                                                                                              \
			for (uint32_t i = 1; i < count; i++) {                                                         \
				load_##name(from[i] + at, &c, &d);                                                     \
				if (!plain && factors) {                                                               \
					a = add(round, stepper, a, c, factors[i] - (vector){});                        \
					b = add(round, stepper, b, d, factors[i] - (vector){});                        \
				} else {                                                                               \
					a = step_##stepper(a, c, op);                                                  \
					b = step_##stepper(b, d, op);                                                  \
				}                                                                                      \
			}                                                                                              \
			if (!plain && divisor != 1) {                                                                  \
				a /= divisor;                                                                          \
				b /= divisor;                                                                          \
			}                                                                                              \
			store_##name(to + at, finish(a), finish(b), store);                                            \
			if (store == FERRY_STORE_DEMOTE)                                                               \
				demote_whole_lines(to + at, step);                                                     \
		}                                                                                                      \
	}                                                                                                              \
	INLINE void op_##name(char *to, const char *const *from, uint32_t count, size_t begin, size_t end,             \
	                      const int op, bool plain, enum ferry_store store, const scalar *factors, scalar divisor) \
	{                                                                                                              \
		if (!plain)                                                                                            \
			pass_##name(to, from, count, begin, end, op, false, store, factors, divisor);                  \
		else if (count == 2)                                                                                   \
			pass_##name(to, from, 2, begin, end, op, true, store, NULL, 1);                                \
		else if (count == 4)                                                                                   \
			pass_##name(to, from, 4, begin, end, op, true, store, NULL, 1);                                \
		else                                                                                                   \
			pass_##name(to, from, count, begin, end, op, true, store, NULL, 1);                            \
	}                                                                                                              \
	static void run_##name(char *to, const char *const *from, uint32_t count, size_t begin, size_t end, int op,    \
	                       bool plain, enum ferry_store store, const void *factors, double divisor)                \
	{                                                                                                              \
		switch (op) {                                                                                          \
		case ferryProd:                                                                                        \
			op_##name(to, from, count, begin, end, ferryProd, plain, store, factors, (scalar)divisor);     \
			break;                                                                                         \
		case ferryMax:                                                                                         \
			op_##name(to, from, count, begin, end, ferryMax, plain, store, factors, (scalar)divisor);      \
			break;                                                                                         \
		case ferryMin:                                                                                         \
			op_##name(to, from, count, begin, end, ferryMin, plain, store, factors, (scalar)divisor);      \
			break;                                                                                         \
		default:                                                                                               \
			op_##name(to, from, count, begin, end, ferrySum, plain, store, factors, (scalar)divisor);      \
		}                                                                                                      \
	}

DEFINE_PASS(i8, vi8, 2 * VECTOR_BYTES, i8, int8_t, SAME, APART, SAME)
DEFINE_PASS(u8, vu8, 2 * VECTOR_BYTES, u8, uint8_t, SAME, APART, SAME)
DEFINE_PASS(i32, vi32, 2 * VECTOR_BYTES, i32, int32_t, SAME, APART, SAME)
DEFINE_PASS(u32, vu32, 2 * VECTOR_BYTES, u32, uint32_t, SAME, APART, SAME)
DEFINE_PASS(i64, vi64, 2 * VECTOR_BYTES, i64, int64_t, SAME, APART, SAME)
DEFINE_PASS(u64, vu64, 2 * VECTOR_BYTES, u64, uint64_t, SAME, APART, SAME)
DEFINE_PASS(f32, vfloat, 2 * VECTOR_BYTES, float, float, SAME, FUSED, CANONICAL_FLOAT)
DEFINE_PASS(f64, vdouble, 2 * VECTOR_BYTES, double, double, SAME, FUSED, CANONICAL_DOUBLE)
DEFINE_PASS(f16, vfloat, VECTOR_BYTES, float, float, ROUND_F16, FUSED, CANONICAL_FLOAT)
DEFINE_PASS(bf16, vfloat, VECTOR_BYTES, float, float, ROUND_BF16, FUSED, CANONICAL_FLOAT)
DEFINE_PASS(f8e4m3, vfloat, VECTOR_BYTES / 2, float, float, ROUND_F8E4M3, APART, CANONICAL_FLOAT)
DEFINE_PASS(f8e5m2, vfloat, VECTOR_BYTES / 2, float, float, ROUND_F8E5M2, APART, CANONICAL_FLOAT)

INLINE void copy_with(char *to, const char *from, size_t bytes, enum ferry_store store)
{
	for (size_t at = 0; at < bytes; at += 4 * VECTOR_BYTES) {
		vu8 part[4];
		memcpy(part, from + at, sizeof part);
		for (int i = 0; i < 4; i++)
			store_whole(to + at + (size_t)i * VECTOR_BYTES, &part[i], store);
	}
}

static void copy(char *to, const char *from, size_t bytes, bool streams)
{
	if (streams)
		copy_with(to, from, bytes, FERRY_STORE_STREAM);
	else
		copy_with(to, from, bytes, FERRY_STORE_ORDINARY);
}

const struct ferry_reduce_kernels FERRY_KERNEL = {
	.vector = VECTOR_BYTES,
	.passes = {[ferryInt8] = run_i8, [ferryUint8] = run_u8, [ferryInt32] = run_i32, [ferryUint32] = run_u32,
	           [ferryInt64] = run_i64, [ferryUint64] = run_u64, [ferryFloat16] = run_f16, [ferryFloat32] = run_f32,
	           [ferryFloat64] = run_f64, [ferryBfloat16] = run_bf16, [ferryFloat8e4m3] = run_f8e4m3,
	           [ferryFloat8e5m2] = run_f8e5m2},
	.copy = copy,
};
