/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels for any CPU: 16-byte vectors, which every 64-bit target has. */
#include <math.h>
#include <string.h>

#define FERRY_KERNEL ferry_kernels_portable
#define VECTOR_BYTES 16
#define stream_store(to, vector) memcpy(to, vector, VECTOR_BYTES)
#define HALF_CONVERSIONS                                                                                               \
	INLINE vfloat half_to_float(vhalf bits)                                                                        \
	{                                                                                                              \
		vu32 word = __builtin_convertvector(bits, vu32), magnitude = (word & 0x7fffu) << 13;                   \
		vu32 finite = (vu32)((vfloat)magnitude * 0x1p112f),                                                    \
		     value = SELECT(magnitude < 0x0f800000u, finite, magnitude | 0x7f800000u, vu32, vu32);             \
		return (vfloat)(value | (word & 0x8000u) << 16);                                                       \
	}                                                                                                              \
	INLINE vhalf float_to_half(vfloat value)                                                                       \
	{                                                                                                              \
		return __builtin_convertvector(narrow(value, 10, 15, 0x7bff, 0x7c00, 0x7e00, 0x8000), vhalf);          \
	}                                                                                                              \
	INLINE vu8 join_halves(vhalf low, vhalf high)                                                                  \
	{                                                                                                              \
		const vhalf both[2] = {low, high};                                                                     \
		vu8 whole;                                                                                             \
		memcpy(&whole, both, sizeof whole);                                                                    \
		return whole;                                                                                          \
	}                                                                                                              \
	INLINE vfloat fused_float(vfloat a, vfloat b, vfloat c)                                                        \
	{                                                                                                              \
		for (size_t i = 0; i < LANES(float); i++)                                                              \
			c[i] = fmaf(a[i], b[i], c[i]);                                                                 \
		return c;                                                                                              \
	}                                                                                                              \
	INLINE vdouble fused_double(vdouble a, vdouble b, vdouble c)                                                   \
	{                                                                                                              \
		for (size_t i = 0; i < LANES(double); i++)                                                             \
			c[i] = fma(a[i], b[i], c[i]);                                                                  \
		return c;                                                                                              \
	}

#include "router/reduce/kernels.h"
