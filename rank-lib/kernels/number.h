/* SPDX-License-Identifier: Apache-2.0 */
/**
 * One element type as the kernels compute with it: FERRY_NUMBER is its name (f32) and FERRY_NUMBER_f32 is defined.
 * Gives NAME(x) for all names of that type, and begin, add and end, which reduce the elements of 8-byte words to the
 * same bits as router/reduce does: in the order in which they are added, 16- and 8-bit floats in float32 with one
 * rounding, products with factors fused as NCCL's are. Compiled as C and as CUDA; included once per type.
 */
#include "rank-lib/kernels/lanes.h"

#undef NAME
#undef NUMBER
#undef WIDE
#undef BITS
#undef PER_WORD
#undef FLOATS
#undef FUSES
#undef NAME_1
#undef NAME_2
#define NAME_2(name, type) ferry_##name##_##type
#define NAME_1(name, type) NAME_2(name, type)
#define NAME(name)         NAME_1(name, FERRY_NUMBER)

/* WIDE: what elements are accumulated in; NUMBER: what they are in memory, as bits where that is narrower */
#if defined FERRY_NUMBER_i8
#define NUMBER int8_t
#define WIDE   int8_t
#define BITS   8
#elif defined FERRY_NUMBER_u8
#define NUMBER uint8_t
#define WIDE   uint8_t
#define BITS   8
#elif defined FERRY_NUMBER_i32
#define NUMBER int32_t
#define WIDE   int32_t
#define BITS   32
#elif defined FERRY_NUMBER_u32
#define NUMBER uint32_t
#define WIDE   uint32_t
#define BITS   32
#elif defined FERRY_NUMBER_i64
#define NUMBER int64_t
#define WIDE   int64_t
#define BITS   64
#elif defined FERRY_NUMBER_u64
#define NUMBER uint64_t
#define WIDE   uint64_t
#define BITS   64
#elif defined FERRY_NUMBER_f16
#define WIDE   float
#define BITS   16
#define FLOATS 1
#define FUSES  1
#elif defined FERRY_NUMBER_bf16
#define WIDE   float
#define BITS   16
#define FLOATS 1
#define FUSES  1
#elif defined FERRY_NUMBER_f32
#define WIDE   float
#define BITS   32
#define FLOATS 1
#define FUSES  1
#elif defined FERRY_NUMBER_f64
#define WIDE   double
#define BITS   64
#define FLOATS 1
#define FUSES  1
#elif defined FERRY_NUMBER_f8e4m3
#define WIDE   float
#define BITS   8
#define FLOATS 1
#elif defined FERRY_NUMBER_f8e5m2
#define WIDE   float
#define BITS   8
#define FLOATS 1
#endif
#ifndef FLOATS
#define FLOATS 0
#endif
#ifndef FUSES
#define FUSES 0
#endif
#define PER_WORD (64 / BITS)
#undef CONVERSION
#if FLOATS && BITS == 8
#define CONVERSION APART
#else
#define CONVERSION DEVICE
#endif

/* ---- between memory and accumulators: the element in the low bits ---- */

CONVERSION WIDE NAME(widen)(uint64_t bits)
{
#if defined FERRY_NUMBER_f16
	return ferry_half_to_float((uint32_t)bits & 0xffffu);
#elif defined FERRY_NUMBER_bf16
	return ferry_as_float((uint32_t)bits << 16);
#elif defined FERRY_NUMBER_f32
	return ferry_as_float((uint32_t)bits);
#elif defined FERRY_NUMBER_f64
	return ferry_as_double(bits);
#elif defined FERRY_NUMBER_f8e4m3
	uint32_t byte = (uint32_t)bits & 0xffu;
	return (byte & 0x7fu) == 0x7fu ? ferry_as_float(0x7fc00000u)
	                               : ferry_half_to_float((byte & 0x80u) << 8 | (byte & 0x7fu) << 7) * 256;
#elif defined FERRY_NUMBER_f8e5m2
	return ferry_half_to_float(((uint32_t)bits & 0xffu) << 8);
#else
	return (NUMBER)bits;
#endif
}

CONVERSION uint64_t NAME(narrow)(WIDE value)
{
#if defined FERRY_NUMBER_f16
	return value != value ? 0x7e00u : ferry_float_to_half(value);
#elif defined FERRY_NUMBER_bf16
	uint32_t bits = value != value ? 0x7fc00000u : ferry_float_bits(value);
	return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
#elif defined FERRY_NUMBER_f32
	return value != value ? 0x7fc00000u : ferry_float_bits(value);
#elif defined FERRY_NUMBER_f64
	return value != value ? 0x7ff8000000000000ull : ferry_double_bits(value);
#elif defined FERRY_NUMBER_f8e4m3
	return ferry_narrow_float(value != value ? ferry_as_float(0x7fc00000u) : value, 3, 7, 0x7eu, 0x7eu, 0x7fu,
	                          0x80u);
#elif defined FERRY_NUMBER_f8e5m2
	return ferry_narrow_float(value != value ? ferry_as_float(0x7fc00000u) : value, 2, 15, 0x7bu, 0x7bu, 0x7fu,
	                          0x80u);
#elif BITS == 64
	return (uint64_t)value;
#else
	return (uint64_t)value & ((1ull << BITS) - 1);
#endif
}

DEVICE uint64_t NAME(element)(uint64_t word, int i)
{
#if BITS == 64
	(void)i;
	return word;
#else
	return word >> (i * BITS) & ((1ull << BITS) - 1);
#endif
}

/* ---- one step of each operation ---- */

DEVICE WIDE NAME(sum)(WIDE a, WIDE b)
{
#if FLOATS
	return a + b;
#else
	return (WIDE)((uint64_t)a + (uint64_t)b);
#endif
}

DEVICE WIDE NAME(product)(WIDE a, WIDE b)
{
#if FLOATS
	return a * b;
#else
	return (WIDE)((uint64_t)a * (uint64_t)b);
#endif
}

/* Of a number and a NaN the number, and -0 is less than +0. */
DEVICE WIDE NAME(extreme)(WIDE a, WIDE b, bool most)
{
	WIDE chosen = most ? (b > a ? b : a) : (b < a ? b : a);
#if defined FERRY_NUMBER_f64
	uint64_t x = ferry_double_bits(a), y = ferry_double_bits(b);
	chosen = a == b ? ferry_as_double(most ? x & y : x | y) : chosen;
#elif FLOATS
	uint32_t x = ferry_float_bits(a), y = ferry_float_bits(b);
	chosen = a == b ? ferry_as_float(most ? x & y : x | y) : chosen;
#endif
#if FLOATS
	chosen = a != a ? b : chosen;
#endif
	return chosen;
}

/* The first source times its factor, rounded to the type. */
DEVICE WIDE NAME(scale)(WIDE value, WIDE factor)
{
	return NAME(widen)(NAME(narrow)(NAME(product)(value, factor)));
}

/* Any other one, added. */
DEVICE WIDE NAME(add_scaled)(WIDE total, WIDE value, WIDE factor)
{
#if defined FERRY_NUMBER_f64
	return ferry_fused_double(value, factor, total);
#elif FUSES
	return ferry_fused_float(value, factor, total);
#else
	return NAME(sum)(total, NAME(scale)(value, factor));
#endif
}

/* What is no plain sum. first: there is no total yet. */
APART WIDE NAME(step)(WIDE total, WIDE value, WIDE factor, uint32_t op, bool scaled, bool first)
{
	if (scaled)
		return first ? NAME(scale)(value, factor) : NAME(add_scaled)(total, value, factor);
	if (op == 1)
		return NAME(product)(total, value);
	return NAME(extreme)(total, value, op == 2);
}

/* ---- words ---- */

DEVICE void NAME(add)(WIDE *total, uint64_t word, const struct ferry_kernel_call *c, uint64_t factor, bool first)
{
	const bool plain = !c->scaled && (first || c->op == 0 || c->op > 3);
	UNROLL
	for (int i = 0; i < PER_WORD; i++) {
		WIDE value = NAME(widen)(NAME(element)(word, i));
		if (plain)
			total[i] = first ? value : NAME(sum)(total[i], value);
		else
			total[i] = NAME(step)(first ? value : total[i], value, NAME(widen)(factor), c->op, c->scaled,
			                      first);
	}
}

DEVICE uint64_t NAME(end)(const WIDE *total, const struct ferry_kernel_call *c)
{
	uint64_t word = 0;
	(void)c;
	UNROLL
	for (int i = 0; i < PER_WORD; i++) {
		WIDE value = total[i];
#if !FLOATS
		if (c->divisor != 1)
			value = (WIDE)(value / (WIDE)c->divisor);
#endif
		word |= NAME(narrow)(value) << (i * BITS % 64);
	}
	return word;
}
