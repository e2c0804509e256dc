/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels for 64-bit Arm; compiled to nothing elsewhere. Its streaming store is the non-temporal pair. */
#if defined(__aarch64__)
#include <arm_neon.h>

#define FERRY_KERNEL ferry_kernels_neon
#define VECTOR_BYTES 16
#define stream_store(to, vector) vst1q_u8((uint8_t *)(to), *(const uint8x16_t *)(const void *)(vector))
#define HALF_CONVERSIONS                                                                                                        \
	INLINE vfloat half_to_float(vhalf bits)                                                                                 \
	{                                                                                                                       \
		return (vfloat)vcvt_f32_f16(vreinterpret_f16_u16((uint16x4_t)bits));                                            \
	}                                                                                                                       \
	INLINE vhalf float_to_half(vfloat value)                                                                                \
	{                                                                                                                       \
		return (vhalf)vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)value));                                           \
	}                                                                                                                       \
	INLINE vu8 join_halves(vhalf low, vhalf high)                                                                           \
	{                                                                                                                       \
		return (vu8)vcombine_u16((uint16x4_t)low, (uint16x4_t)high);                                                    \
	}

#include "router/reduce_kernels.h"
#endif
typedef int ferry_not_empty_neon; /* ISO C wants a declaration where the target is another */
