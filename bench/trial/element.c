/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/trial/element.h"

#include "ipc/collective.h"

#include <math.h>
#include <string.h>

/* Bits of the mantissa and bias of the exponent, as IEEE 754 and OCP's 8-bit formats have them. */
struct format {
	int mantissa, bias;
};

static const struct format formats[ferryNumTypes] = {
        [ferryFloat16] = {10, 15},   [ferryBfloat16] = {7, 127}, [ferryFloat32] = {23, 127},
        [ferryFloat64] = {52, 1023}, [ferryFloat8e4m3] = {3, 7}, [ferryFloat8e5m2] = {2, 15},
};

bool ferry_element_is_float(ferryDataType_t type)
{
	return formats[type].mantissa != 0;
}

bool ferry_element_is_signed(ferryDataType_t type)
{
	return type != ferryUint8 && type != ferryUint32 && type != ferryUint64;
}

double ferry_element_roundoff(ferryDataType_t type)
{
	return ldexp(0.5, -formats[type].mantissa);
}

double ferry_element_tiny(ferryDataType_t type)
{
	return ldexp(0.5, 1 - formats[type].bias - formats[type].mantissa);
}

static uint64_t load_bits(const void *base, size_t i, size_t size)
{
	uint64_t bits = 0; /* little-endian hosts only, as the rest of Ferry */
	memcpy(&bits, (const char *)base + i * size, size);
	return bits;
}

static void store_bits(void *base, size_t i, size_t size, uint64_t bits)
{
	memcpy((char *)base + i * size, &bits, size);
}

static double decode(ferryDataType_t type, uint64_t bits)
{
	const struct format format = formats[type];
	int width = (int)ferry_type_size(type) * 8, exponents = width - 1 - format.mantissa;
	double sign = bits >> (width - 1) & 1 ? -1 : 1;
	int exponent = (int)(bits >> format.mantissa & ((1u << exponents) - 1)), most = (1 << exponents) - 1;
	uint64_t mantissa = bits & ((1ull << format.mantissa) - 1);
	if (type == ferryFloat8e4m3) { /* no infinity, one NaN */
		if (exponent == most && mantissa == 7)
			return NAN;
	} else if (exponent == most) {
		return mantissa ? NAN : sign * INFINITY;
	}
	if (!exponent)
		return sign * ldexp((double)mantissa, 1 - format.bias - format.mantissa);
	return sign * ldexp((double)(mantissa + (1ull << format.mantissa)), exponent - format.bias - format.mantissa);
}

static uint64_t encode(ferryDataType_t type, double value)
{
	const struct format format = formats[type];
	int width = (int)ferry_type_size(type) * 8;
	uint64_t sign = signbit(value) ? 1ull << (width - 1) : 0;
	double magnitude = fabs(value);
	if (magnitude == 0)
		return sign;
	int exponent = ilogb(magnitude), least = 1 - format.bias;
	if (exponent < least)
		exponent = least;
	uint64_t units = (uint64_t)nearbyint(ldexp(magnitude, format.mantissa - exponent)); /* half to even */
	/* A subnormal's units are its bits; else they begin with the hidden one, and a carry is a step of the exponent.
	 */
	return sign + ((uint64_t)(exponent - least) << format.mantissa) + units;
}

double ferry_element_float(ferryDataType_t type, const void *base, size_t i)
{
	float single;
	double wide;
	/* The types that C has too: by far the most, and the fastest so. */
	if (type == ferryFloat32) {
		memcpy(&single, (const char *)base + i * sizeof single, sizeof single);
		return single;
	}
	if (type == ferryFloat64) {
		memcpy(&wide, (const char *)base + i * sizeof wide, sizeof wide);
		return wide;
	}
	return decode(type, load_bits(base, i, ferry_type_size(type)));
}

uint64_t ferry_element_wrap(ferryDataType_t type, uint64_t value)
{
	unsigned unused = 64 - 8 * (unsigned)ferry_type_size(type);
	if (ferry_element_is_signed(type))
		return (uint64_t)((int64_t)(value << unused) >> unused);
	return value << unused >> unused;
}

uint64_t ferry_element_integer(ferryDataType_t type, const void *base, size_t i)
{
	return ferry_element_wrap(type, load_bits(base, i, ferry_type_size(type)));
}

void ferry_element_set_float(ferryDataType_t type, void *base, size_t i, double value)
{
	store_bits(base, i, ferry_type_size(type), encode(type, value));
}

void ferry_element_set_integer(ferryDataType_t type, void *base, size_t i, uint64_t value)
{
	store_bits(base, i, ferry_type_size(type), value);
}

double ferry_element_round(ferryDataType_t type, double value)
{
	return decode(type, encode(type, value));
}
