/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Single elements of every type, converted by arithmetic on doubles and nothing of the reduction kernels, so that
 * benchmarks and tests can judge the kernels by them. Pure; slow; for references only.
 */
#ifndef FERRY_BENCH_ELEMENT_H
#define FERRY_BENCH_ELEMENT_H

#include "ipc/ferry_types.h"

#include <stdbool.h>

bool ferry_element_is_float(ferryDataType_t type);
bool ferry_element_is_signed(ferryDataType_t type);

/** Element i of a float type, exactly. */
double ferry_element_float(ferryDataType_t type, const void *base, size_t i);
/** Element i of an integer type; signed ones sign-extended to 64 bits. */
uint64_t ferry_element_integer(ferryDataType_t type, const void *base, size_t i);

/** Stores value rounded to nearest even; it must not overflow the type. */
void ferry_element_set_float(ferryDataType_t type, void *base, size_t i, double value);
/** Stores the low bits. */
void ferry_element_set_integer(ferryDataType_t type, void *base, size_t i, uint64_t value);

/** value as the type would hold it. */
double ferry_element_round(ferryDataType_t type, double value);
uint64_t ferry_element_wrap(ferryDataType_t type, uint64_t value);

/** Unit roundoff: half the distance from 1 to the next value. */
double ferry_element_roundoff(ferryDataType_t type);
/** Half the smallest positive value: the largest error of rounding to a subnormal. */
double ferry_element_tiny(ferryDataType_t type);

#endif
