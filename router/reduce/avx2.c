/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels for AVX2 and F16C; compiled to nothing elsewhere. */
#if defined(__AVX2__) && defined(__F16C__)
#include <immintrin.h>

#define FERRY_KERNEL ferry_kernels_avx2
#define VECTOR_BYTES 32
#define stream_store(to, vector) _mm256_stream_si256((__m256i *)(void *)(to), *(const __m256i *)(const void *)(vector))
#define HALF_CONVERSIONS                                                                                               \
	INLINE vfloat half_to_float(vhalf bits)                                                                        \
	{                                                                                                              \
		return (vfloat)_mm256_cvtph_ps((__m128i)bits);                                                         \
	}                                                                                                              \
	INLINE vhalf float_to_half(vfloat value)                                                                       \
	{                                                                                                              \
		return (vhalf)_mm256_cvtps_ph((__m256)value, _MM_FROUND_TO_NEAREST_INT);                               \
	}                                                                                                              \
	INLINE vu8 join_halves(vhalf low, vhalf high)                                                                  \
	{                                                                                                              \
		return (vu8)_mm256_set_m128i((__m128i)high, (__m128i)low);                                             \
	}                                                                                                              \
	INLINE vfloat fused_float(vfloat a, vfloat b, vfloat c)                                                        \
	{                                                                                                              \
		return (vfloat)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);                                       \
	}                                                                                                              \
	INLINE vdouble fused_double(vdouble a, vdouble b, vdouble c)                                                   \
	{                                                                                                              \
		return (vdouble)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);                                   \
	}

#include "router/reduce/kernels.h"
#endif
typedef int ferry_not_empty_avx2; /* ISO C wants a declaration where the target is another */
