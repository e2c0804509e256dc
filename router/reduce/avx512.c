/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels for AVX-512 (F, BW, VL, DQ); compiled to nothing elsewhere. */
#if defined(__AVX512F__) && defined(__AVX512BW__)
#include <immintrin.h>

#define FERRY_KERNEL ferry_kernels_avx512
#define VECTOR_BYTES 64
#define stream_store(to, vector) _mm512_stream_si512((__m512i *)(void *)(to), *(const __m512i *)(const void *)(vector))
#define HALF_CONVERSIONS                                                                                               \
	INLINE vfloat half_to_float(vhalf bits)                                                                        \
	{                                                                                                              \
		return (vfloat)_mm512_cvtph_ps((__m256i)bits);                                                         \
	}                                                                                                              \
	INLINE vhalf float_to_half(vfloat value)                                                                       \
	{                                                                                                              \
		return (vhalf)_mm512_cvtps_ph((__m512)value, _MM_FROUND_TO_NEAREST_INT);                               \
	}                                                                                                              \
	INLINE vu8 join_halves(vhalf low, vhalf high)                                                                  \
	{                                                                                                              \
		return (vu8)_mm512_inserti64x4(_mm512_castsi256_si512((__m256i)low), (__m256i)high, 1);                \
	}                                                                                                              \
	INLINE vfloat fused_float(vfloat a, vfloat b, vfloat c)                                                        \
	{                                                                                                              \
		return (vfloat)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);                                       \
	}                                                                                                              \
	INLINE vdouble fused_double(vdouble a, vdouble b, vdouble c)                                                   \
	{                                                                                                              \
		return (vdouble)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);                                   \
	}

#include "router/reduce/kernels.h"
#endif
typedef int ferry_not_empty_avx512; /* ISO C wants a declaration where the target is another */
