/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels for any CPU: 16-byte vectors, which every 64-bit target has. */
#include <string.h>

#define FERRY_KERNEL ferry_kernels_portable
#define VECTOR_BYTES 16
#define stream_store(to, vector) memcpy(to, vector, VECTOR_BYTES)
#define HALF_CONVERSIONS                                                                                                        \
	INLINE vfloat half_to_float(vhalf bits)                                                                                 \
	{                                                                                                                       \
		vfloat value;                                                                                                   \
		for (size_t i = 0; i < FLOAT_LANES; i++)                                                                        \
			value[i] = ferry_half_to_float(bits[i]);                                                                \
		return value;                                                                                                   \
	}                                                                                                                       \
	INLINE vhalf float_to_half(vfloat value)                                                                                \
	{                                                                                                                       \
		vhalf bits;                                                                                                     \
		for (size_t i = 0; i < FLOAT_LANES; i++)                                                                        \
			bits[i] = ferry_float_to_half(value[i]);                                                                \
		return bits;                                                                                                    \
	}

#include "router/reduce_kernels.h"
