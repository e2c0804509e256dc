/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels for 64-bit Arm; compiled to nothing elsewhere. Its streaming store is the non-temporal pair, of a
 * vector's halves.
 */
#if defined(__aarch64__)
#include <arm_neon.h>

static inline void store_pair(void *to, uint64x2_t vector)
{
	__asm__ volatile("stnp %d0, %d1, [%2]"
	                 :
	                 : "w"(vget_low_u64(vector)), "w"(vget_high_u64(vector)), "r"(to)
	                 : "memory");
}

#define FERRY_KERNEL ferry_kernels_neon
#define VECTOR_BYTES 16
#define stream_store(to, vector) store_pair(to, *(const uint64x2_t *)(const void *)(vector))
#define HALF_CONVERSIONS                                                                                               \
	INLINE vfloat half_to_float(vhalf bits)                                                                        \
	{                                                                                                              \
		return (vfloat)vcvt_f32_f16(vreinterpret_f16_u16((uint16x4_t)bits));                                   \
	}                                                                                                              \
	INLINE vhalf float_to_half(vfloat value)                                                                       \
	{                                                                                                              \
		return (vhalf)vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)value));                                  \
	}                                                                                                              \
	INLINE vu8 join_halves(vhalf low, vhalf high)                                                                  \
	{                                                                                                              \
		return (vu8)vcombine_u16((uint16x4_t)low, (uint16x4_t)high);                                           \
	}                                                                                                              \
	INLINE vfloat fused_float(vfloat a, vfloat b, vfloat c)                                                        \
	{                                                                                                              \
		return (vfloat)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);                              \
	}                                                                                                              \
	INLINE vdouble fused_double(vdouble a, vdouble b, vdouble c)                                                   \
	{                                                                                                              \
		return (vdouble)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);                             \
	}

#include "router/reduce/kernels.h"
#endif
typedef int ferry_not_empty_neon; /* ISO C wants a declaration where the target is another */
