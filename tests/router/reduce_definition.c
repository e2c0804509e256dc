/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reduction kernels against a reference that shares nothing with them: one element at a time, small floats decoded
 * by ldexp and rounded by searching the list of all values of the type.
 */
#include "ipc/collective.h"
#include "router/reduce/reduce.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <cmocka.h>

#define MOST_SOURCES (FERRY_MAX_RANKS + FERRY_MAX_DOMAINS)
#define MOST_ELEMENTS 4200
#define ROOM (MOST_ELEMENTS * 8 + 256)
#define GUARD 0xa5

static const ferryRedOp_t operations[] = {ferrySum, ferryProd, ferryMax, ferryMin, ferryAvg, ferryNumOps};
static const uint32_t source_counts[] = {1, 2, 3, 4, 5, 8, 17, 64, MOST_SOURCES};
static const size_t element_counts[] = {0, 1, 2, 3, 7, 15, 31, 63, 64, 65, 127, 129, 255, 257, 515, 1000, 4099};
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static uint64_t random_state = 0x9e3779b97f4a7c15;

static uint64_t next_random(void)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state * 0x2545f4914f6cdd1dull;
}

/* ---- small floats, by definition ---- */

struct format {
	int bits, mantissa, bias;
	bool has_infinity;
};

static bool format_of(ferryDataType_t type, struct format *format)
{
	switch (type) {
	case ferryFloat16:
		*format = (struct format){16, 10, 15, true};
		return true;
	case ferryBfloat16:
		*format = (struct format){16, 7, 127, true};
		return true;
	case ferryFloat8e4m3:
		*format = (struct format){8, 3, 7, false};
		return true;
	case ferryFloat8e5m2:
		*format = (struct format){8, 2, 15, true};
		return true;
	default:
		return false;
	}
}

static uint32_t largest_code(const struct format *format)
{
	uint32_t magnitudes = 1u << (format->bits - 1);
	return format->has_infinity ? magnitudes - (1u << format->mantissa) - 1 : magnitudes - 2;
}

static double decode(const struct format *format, uint32_t code)
{
	uint32_t sign = code >> (format->bits - 1) & 1, magnitude = code & ((1u << (format->bits - 1)) - 1);
	int exponent = (int)(magnitude >> format->mantissa);
	uint32_t fraction = magnitude & ((1u << format->mantissa) - 1);
	double value;
	if (magnitude > largest_code(format))
		value = format->has_infinity && !fraction ? INFINITY : NAN;
	else if (exponent)
		value = ldexp(1 + ldexp(fraction, -format->mantissa), exponent - format->bias);
	else
		value = ldexp(fraction, 1 - format->bias - format->mantissa);
	return sign ? -value : value;
}

/* Nearest, ties to the even code; past the largest: infinity for 16-bit floats, the largest for 8-bit ones. */
static uint32_t encode(const struct format *format, double value)
{
	uint32_t sign = signbit(value) ? 1u << (format->bits - 1) : 0, low = 0, high = largest_code(format);
	double magnitude = fabs(value);
	bool saturates = format->bits == 8;
	/* Where the next number would be, were the exponent unbounded: half way to it is where infinity begins. */
	double beyond = 2 * decode(format, high) - decode(format, high - 1);
	if (magnitude >= (decode(format, high) + beyond) / 2)
		return sign | (saturates ? high : high + 1);
	if (magnitude >= decode(format, high))
		return sign | high;
	while (high - low > 1) {
		uint32_t middle = (low + high) / 2;
		if (decode(format, middle) <= magnitude)
			low = middle;
		else
			high = middle;
	}
	double below = magnitude - decode(format, low), above = decode(format, high) - magnitude;
	return sign | (below < above || (below == above && !(low & 1)) ? low : high);
}

/* ---- one element of any type ---- */

static uint64_t bits_at(const void *from, size_t index, size_t size)
{
	uint64_t bits = 0;
	memcpy(&bits, (const char *)from + index * size, size);
	return bits;
}

static bool is_float(ferryDataType_t type)
{
	return type == ferryFloat32 || type == ferryFloat64 || type == ferryFloat16 || type >= ferryBfloat16;
}

static double float_value(ferryDataType_t type, uint64_t bits)
{
	struct format format;
	uint32_t word = (uint32_t)bits;
	float single;
	double wide;
	if (format_of(type, &format))
		return decode(&format, word);
	memcpy(&single, &word, sizeof single);
	memcpy(&wide, &bits, sizeof wide);
	return type == ferryFloat32 ? (double)single : wide;
}

/*
 * In float32 but for f64: a step in double, rounded to float, is the step in float for +, x and / (double has 2p + 2
 * bits).
 */
static double rounded_step(ferryDataType_t type, double value)
{
	return type == ferryFloat64 ? value : (double)(float)value;
}

/* As a small float in memory holds it. */
static double held(ferryDataType_t type, double value)
{
	struct format format;
	return format_of(type, &format) && !isnan(value) ? decode(&format, encode(&format, value)) : value;
}

static double fused(ferryDataType_t type, double value, double factor, double total)
{
	if (type == ferryFloat64)
		return fma(value, factor, total);
	return (double)fmaf((float)value, (float)factor, (float)total);
}

/* A number rather than a NaN; +0 is above -0. */
static double picked(ferryRedOp_t op, double a, double b)
{
	if (isnan(a) || isnan(b))
		return isnan(a) ? b : a;
	if (a == b)
		return (op == ferryMax) == !signbit(a) ? a : b;
	return (op == ferryMax) == (a > b) ? a : b;
}

static double float_reference(ferryDataType_t type, ferryRedOp_t op, const uint64_t *elements, uint32_t nsources,
                              const struct ferry_reduction *reduction)
{
	double total = 0;
	for (uint32_t s = 0; s < nsources; s++) {
		double value = float_value(type, elements[s]);
		double factor = 1; /* of one that is not scaled */
		bool scales = op == ferryNumOps && reduction->scaled;
		if (scales && s < 64 && reduction->scaled >> s & 1)
			factor = float_value(type, reduction->scalars[s]);
		if (scales && s && ferry_type_size(type) > 1) {
			total = fused(type, value, factor, total);
			continue;
		}
		if (scales)
			value = held(type, rounded_step(type, value * factor));
		if (!s)
			total = value;
		else if (op == ferryMax || op == ferryMin)
			total = picked(op, total, value);
		else if (isnan(total) || isnan(value))
			total = NAN;
		else
			total = rounded_step(type, op == ferryProd ? total * value : total + value);
	}
	return total;
}

static uint64_t float_bits(ferryDataType_t type, double value)
{
	struct format format;
	float single = (float)value;
	uint64_t bits = 0;
	if (format_of(type, &format))
		return encode(&format, value);
	if (type == ferryFloat32)
		memcpy(&bits, &single, sizeof single);
	else
		memcpy(&bits, &value, sizeof value);
	return bits;
}

static int64_t as_signed(uint64_t bits, size_t size)
{
	unsigned unused = 64 - 8 * (unsigned)size;
	return (int64_t)(bits << unused) >> unused;
}

static uint64_t integer_reference(ferryDataType_t type, ferryRedOp_t op, const uint64_t *elements, uint32_t nsources,
                                  const struct ferry_reduction *reduction)
{
	size_t size = ferry_type_size(type);
	uint64_t mask = ~0ull >> (64 - 8 * size), total = 0;
	bool is_signed = type == ferryInt8 || type == ferryInt32 || type == ferryInt64;
	for (uint32_t s = 0; s < nsources; s++) {
		uint64_t value = elements[s];
		if (op == ferryNumOps && s < 64 && reduction->scaled >> s & 1)
			value *= reduction->scalars[s];
		bool less = is_signed ? as_signed(value, size) < as_signed(total, size) : value < total;
		if (!s || (op == ferryMin && less) || (op == ferryMax && !less))
			total = value;
		else if (op == ferryProd)
			total *= value;
		else if (op != ferryMin && op != ferryMax)
			total += value;
		total &= mask;
	}
	if (op == ferryAvg)
		total = is_signed ? (uint64_t)(as_signed(total, size) / (int64_t)reduction->divisor)
		                  : total / reduction->divisor;
	return total & mask;
}

/* ---- sources ---- */

/*
 * Any bits, or (tame) numbers whose sums and products stay interesting; every type's zeros, ends, NaNs and subnormals.
 */
static uint64_t random_element(ferryDataType_t type, bool tame)
{
	size_t size = ferry_type_size(type);
	uint64_t bits = next_random() >> (64 - 8 * size), sign = 1ull << (8 * size - 1), edge = next_random() % 8;
	if (edge == 0)
		return next_random() & sign; /* zeros, or the least integer */
	if (edge == 1)
		return (sign - 1) ^ (next_random() & sign); /* NaNs, or the ends of integers */
	if (!tame || !is_float(type) || size == 1)
		return bits;
	return float_bits(type, (double)(int64_t)(next_random() >> 40) / (1 << 20) - 8);
}

struct sources {
	char *memory[MOST_SOURCES];
	const void *at[MOST_SOURCES];
	uint64_t scalars[MOST_SOURCES];
};

static void fill(struct sources *sources, ferryDataType_t type, uint32_t nsources, bool tame)
{
	size_t size = ferry_type_size(type);
	for (uint32_t s = 0; s < nsources; s++) {
		size_t offset = next_random() % 64 / size * size;
		sources->at[s] = sources->memory[s] + offset;
		sources->scalars[s] = random_element(type, true);
		for (size_t i = 0; i < MOST_ELEMENTS; i++) {
			uint64_t bits = random_element(type, tame);
			memcpy(sources->memory[s] + offset + i * size, &bits, size);
		}
	}
}

static int make_sources(void **state)
{
	struct sources *sources = calloc(1, sizeof *sources);
	assert_non_null(sources);
	for (uint32_t s = 0; s < MOST_SOURCES; s++) {
		sources->memory[s] = aligned_alloc(64, ROOM);
		assert_non_null(sources->memory[s]);
	}
	*state = sources;
	return 0;
}

static int free_sources(void **state)
{
	struct sources *sources = *state;
	for (uint32_t s = 0; s < MOST_SOURCES; s++)
		free(sources->memory[s]);
	free(sources);
	return 0;
}

static struct ferry_reduction reduction_of(ferryDataType_t type, ferryRedOp_t op, enum ferry_store store,
                                           const struct sources *sources, uint32_t nsources)
{
	static const uint32_t divisors[] = {1, 2, 3, 7, 10, 63, FERRY_MAX_RANKS};
	if (op == ferryAvg && is_float(type))
		op = ferryNumOps;
	return (struct ferry_reduction){.type = type,
	                                .op = op,
	                                .store = store,
	                                .divisor = op == ferryAvg ? divisors[next_random() % COUNT(divisors)] : 1,
	                                .scalars = op == ferryNumOps ? sources->scalars : NULL,
	                                .scaled = next_random() & (nsources < 64 ? (1ull << nsources) - 1 : ~0ull)};
}

static bool has_target(enum ferry_target target)
{
	static char nothing[8];
	const void *source = nothing;
	struct ferry_reduction reduction = {.type = ferryInt8, .op = ferrySum, .divisor = 1};
	char result[8];
	return ferry_reduce_on(target, result, &source, 1, 1, &reduction) == ferrySuccess;
}

/* ---- promises ---- */

static void every_target_and_store_gives_same_bits_and_touches_nothing_else(void **state)
{
	struct sources *sources = *state;
	static _Alignas(64) unsigned char expected[ROOM], got[ROOM];
	for (int type = 0; type < ferryNumTypes; type++)
		for (size_t n = 0; n < COUNT(source_counts); n++) {
			fill(sources, (ferryDataType_t)type, source_counts[n], n % 2);
			for (size_t k = 0; k < COUNT(operations) * COUNT(element_counts); k++) {
				size_t size = ferry_type_size((ferryDataType_t)type),
				       offset = next_random() % 64 / size * size;
				size_t elements = element_counts[k % COUNT(element_counts)];
				struct ferry_reduction reduction =
					reduction_of((ferryDataType_t)type, operations[k / COUNT(element_counts)],
				                     FERRY_STORE_ORDINARY, sources, source_counts[n]);
				memset(expected, GUARD, ROOM);
				assert_int_equal(ferry_reduce_on(FERRY_TARGET_PORTABLE, expected + offset, sources->at,
				                                 source_counts[n], elements, &reduction),
				                 ferrySuccess);
				for (int target = 0; target < FERRY_NUM_TARGETS; target++) {
					reduction.store = (enum ferry_store)(next_random() % FERRY_NUM_STORES);
					if (!has_target((enum ferry_target)target))
						continue;
					memset(got, GUARD, ROOM);
					ferry_reduce_on((enum ferry_target)target, got + offset, sources->at,
					                source_counts[n], elements, &reduction);
					if (memcmp(got, expected, ROOM))
						fail_msg("%s of %s, %u sources, %zu elements at %zu, store %d: %s "
						         "differs from portable",
						         ferry_redop_name(reduction.op),
						         ferry_type_name(reduction.type), source_counts[n], elements,
						         offset, (int)reduction.store,
						         ferry_reduce_target_name((enum ferry_target)target));
				}
				for (size_t i = 0; i < ROOM; i++)
					if (i < offset || i >= offset + elements * size)
						assert_int_equal(expected[i], GUARD);
			}
		}
}

static void check_target(enum ferry_target target, const struct sources *sources, uint32_t nsources, size_t elements,
                         const struct ferry_reduction *reduction)
{
	static _Alignas(64) unsigned char got[ROOM];
	size_t size = ferry_type_size(reduction->type);
	assert_int_equal(ferry_reduce_on(target, got, sources->at, nsources, elements, reduction), ferrySuccess);
	for (size_t i = 0; i < elements; i++) {
		uint64_t inputs[MOST_SOURCES], bits = bits_at(got, i, size), wanted;
		for (uint32_t s = 0; s < nsources; s++)
			inputs[s] = bits_at(sources->at[s], i, size);
		if (is_float(reduction->type)) {
			double value = float_reference(reduction->type, reduction->op, inputs, nsources, reduction);
			double have = float_value(reduction->type, bits);
			wanted = float_bits(reduction->type, value);
			if (isnan(value) ? isnan(have) : bits == wanted)
				continue;
			/* Which zero min and max return is the same everywhere, which the test above checks. */
			if ((reduction->op == ferryMax || reduction->op == ferryMin) && !value && !have)
				continue;
			/* Infinite 8-bit floats: a min or max may keep them, a sum saturates them. */
			if (reduction->type == ferryFloat8e5m2 && isinf(value) && isinf(have) &&
			    signbit(value) == signbit(have))
				continue;
		} else {
			wanted = integer_reference(reduction->type, reduction->op, inputs, nsources, reduction);
			if (bits == wanted)
				continue;
		}
		fail_msg("%s: %s of %s, %u sources (first %llx), divisor %u, element %zu: %llx instead of %llx",
		         ferry_reduce_target_name(target), ferry_redop_name(reduction->op),
		         ferry_type_name(reduction->type), nsources, (unsigned long long)inputs[0], reduction->divisor,
		         i, (unsigned long long)bits, (unsigned long long)wanted);
	}
}

static void check_against_reference(const struct sources *sources, uint32_t nsources, size_t elements,
                                    const struct ferry_reduction *reduction)
{
	for (int target = 0; target < FERRY_NUM_TARGETS; target++)
		if (has_target((enum ferry_target)target))
			check_target((enum ferry_target)target, sources, nsources, elements, reduction);
}

static void results_follow_the_definition_in_rank_order_with_one_rounding(void **state)
{
	struct sources *sources = *state;
	for (int type = 0; type < ferryNumTypes; type++)
		for (size_t n = 1; n < COUNT(source_counts); n++)
			for (size_t k = 0; k < 2 * COUNT(operations); k++) {
				fill(sources, (ferryDataType_t)type, source_counts[n], k % 2);
				struct ferry_reduction reduction = reduction_of((ferryDataType_t)type,
				                                                operations[k / 2], FERRY_STORE_ORDINARY,
				                                                sources, source_counts[n]);
				check_against_reference(sources, source_counts[n], 300, &reduction);
			}
}

/* Every pair of codes for 8-bit types; for 16-bit ones each code with some others. */
static void small_floats_add_and_multiply_right_for_every_code(void **state)
{
	static const ferryDataType_t types[] = {ferryFloat16, ferryBfloat16, ferryFloat8e4m3, ferryFloat8e5m2};
	struct sources *sources = *state;
	for (size_t t = 0; t < COUNT(types); t++) {
		size_t size = ferry_type_size(types[t]), codes = 1u << 8 * size;
		for (size_t first = 0; first < codes; first += 256)
			for (int op = ferrySum; op <= ferryProd; op++) {
				size_t elements = size == 1 ? 4096 : 256;
				struct ferry_reduction reduction = {.type = types[t],
				                                    .op = (ferryRedOp_t)op,
				                                    .divisor = 1};
				for (size_t round = 0; round < (size == 1 ? 16 : 2); round++) {
					for (size_t i = 0; i < elements; i++) {
						uint64_t a = first + i % 256,
						         b = size == 1 ? round * 16 + i / 256 : next_random();
						memcpy(sources->memory[0] + i * size, &a, size);
						memcpy(sources->memory[1] + i * size, &b, size);
					}
					sources->at[0] = sources->memory[0];
					sources->at[1] = sources->memory[1];
					check_against_reference(sources, 2, elements, &reduction);
				}
			}
	}
}

/* A source that the type has exactly, or false. */
static bool put(const struct sources *sources, uint32_t source, size_t at, const struct format *format, double value)
{
	uint16_t code = (uint16_t)encode(format, value);
	memcpy(sources->memory[source] + 2 * at, &code, 2);
	return decode(format, code) == value;
}

/*
 * The middle between a code and the next, and what is a little to either side of it: a sum that the accumulators have
 * exactly.
 */
static void sums_between_two_codes_go_to_the_nearer_and_from_the_middle_to_the_even_one(void **state)
{
	static const ferryDataType_t types[] = {ferryFloat16, ferryBfloat16};
	struct sources *sources = *state;
	size_t tried = 0;
	for (uint32_t s = 0; s < 3; s++)
		sources->at[s] = sources->memory[s];
	for (size_t t = 0; t < COUNT(types); t++)
		for (int aside = -1; aside <= 1; aside++) {
			struct ferry_reduction reduction = {.type = types[t], .op = ferrySum, .divisor = 1};
			struct format format;
			size_t elements = 0;
			assert_true(format_of(types[t], &format));
			for (uint32_t code = 0; code < largest_code(&format); code++) {
				double low = decode(&format, code), gap = decode(&format, code + 1) - low;
				bool exact = put(sources, 0, elements, &format, code % 3 ? low : -low);
				exact &= put(sources, 1, elements, &format, (code % 3 ? gap : -gap) / 2);
				exact &= put(sources, 2, elements, &format, (code % 3 ? aside : -aside) * gap / 1024);
				elements += exact;
				tried += exact;
				if (elements == MOST_ELEMENTS || code + 1 == largest_code(&format)) {
					check_against_reference(sources, 3, elements, &reduction);
					elements = 0;
				}
			}
		}
	assert_true(tried > 100000);
}

static void destination_may_be_any_one_of_the_sources(void **state)
{
	struct sources *sources = *state;
	static unsigned char expected[ROOM];
	for (int type = 0; type < ferryNumTypes; type++)
		for (int store = 0; store < FERRY_NUM_STORES; store++)
			for (uint32_t in_place = 0; in_place < 5; in_place++) {
				size_t bytes = 4099 * ferry_type_size((ferryDataType_t)type);
				fill(sources, (ferryDataType_t)type, 5, true);
				struct ferry_reduction reduction = reduction_of((ferryDataType_t)type,
				                                                operations[in_place],
				                                                (enum ferry_store)store, sources, 5);
				ferry_reduce(expected, sources->at, 5, 4099, &reduction);
				ferry_reduce((void *)(uintptr_t)sources->at[in_place], sources->at, 5, 4099,
				             &reduction);
				assert_memory_equal(sources->at[in_place], expected, bytes);
			}
}

static void nan_results_are_one_quiet_nan_whatever_the_sources_payloads(void **state)
{
	static const ferryDataType_t types[] = {ferryFloat32, ferryFloat64};
	static const uint64_t nans[][3] = {{0x7fc12345, 0xff812345, 0x7fc00000},
	                                   {0x7ff8123456789abc, 0xfff0123456789abc, 0x7ff8000000000000}};
	struct sources *sources = *state;
	char result[256];
	for (size_t t = 0; t < COUNT(types); t++)
		for (size_t k = 0; k < COUNT(operations) * 4; k++) {
			size_t size = ferry_type_size(types[t]);
			uint64_t one = float_bits(types[t], 1);
			struct ferry_reduction reduction = reduction_of(types[t], operations[k / 4],
			                                                FERRY_STORE_ORDINARY, sources, 0);
			for (size_t i = 0; i < 19; i++) {
				memcpy(sources->memory[0] + i * size, k & 1 ? &nans[t][0] : &one, size);
				memcpy(sources->memory[1] + i * size,
				       k & 2   ? &nans[t][1]
				       : k & 1 ? &one
				               : &nans[t][0],
				       size);
			}
			sources->at[0] = sources->memory[0];
			sources->at[1] = sources->memory[1];
			ferry_reduce(result, sources->at, 2, 19, &reduction);
			bool drops = reduction.op == ferryMax || reduction.op == ferryMin;
			for (size_t i = 0; i < 19; i++)
				assert_int_equal(bits_at(result, i, size), drops && k % 4 < 3 ? one : nans[t][2]);
		}
}

#if defined(__x86_64__)
static void bits_do_not_depend_on_the_callers_rounding_and_subnormal_modes(void **state)
{
	static const unsigned modes[] = {0x8040 /* flush subnormals, as -ffast-math sets */, 0x2000 /* round down */,
	                                 0x6000 /* cut */};
	struct sources *sources = *state;
	static unsigned char expected[ROOM], got[ROOM];
	for (int type = 0; type < ferryNumTypes; type++)
		for (size_t k = 0; k < COUNT(operations) * COUNT(modes); k++) {
			size_t size = ferry_type_size((ferryDataType_t)type), bytes = 515 * size;
			fill(sources, (ferryDataType_t)type, 3, true);
			for (size_t i = 0; i < 256 && size > 1; i++) /* subnormals of f16, bf16, f32 and f64 */
				for (uint32_t s = 0; s < 3; s++)
					((char *)(uintptr_t)sources->at[s])[(i + 1) * size - 1] = 0;
			struct ferry_reduction reduction = reduction_of((ferryDataType_t)type,
			                                                operations[k / COUNT(modes)],
			                                                FERRY_STORE_ORDINARY, sources, 3);
			ferry_reduce(expected, sources->at, 3, 515, &reduction);
			unsigned before = _mm_getcsr(), changed = before | modes[k % COUNT(modes)];
			_mm_setcsr(changed);
			ferry_reduce(got, sources->at, 3, 515, &reduction);
			unsigned after = _mm_getcsr();
			_mm_setcsr(before);
			assert_memory_equal(got, expected, bytes);
			assert_int_equal(after & 0xffc0, changed & 0xffc0);
		}
}
#endif

static void copies_are_exact_at_any_length_and_alignment_with_every_store(void **state)
{
	struct sources *sources = *state;
	static _Alignas(64) unsigned char got[ROOM];
	fill(sources, ferryUint64, 1, false);
	for (int k = 0; k < 3000; k++) {
		size_t offset = next_random() % 130, skip = next_random() % 130;
		size_t bytes = k < 400 ? (size_t)k : next_random() % (ROOM - 300);
		memset(got, GUARD, ROOM);
		ferry_copy(got + offset, sources->memory[0] + skip, bytes, (enum ferry_store)(k % FERRY_NUM_STORES));
		assert_memory_equal(got + offset, sources->memory[0] + skip, bytes);
		for (size_t i = 0; i < ROOM; i++)
			if (i < offset || i >= offset + bytes)
				assert_int_equal(got[i], GUARD);
	}
}

static void targets_that_the_cpu_lacks_are_refused_and_the_one_chosen_is_there(void **state)
{
	(void)state;
	assert_true(has_target(FERRY_TARGET_PORTABLE));
	assert_true(has_target(ferry_reduce_target()));
	assert_string_equal(ferry_reduce_target_name(FERRY_TARGET_AVX512), "avx512");
#if defined(__x86_64__)
	assert_false(has_target(FERRY_TARGET_NEON));
#elif defined(__aarch64__)
	assert_true(has_target(FERRY_TARGET_NEON));
	assert_false(has_target(FERRY_TARGET_AVX2));
#endif
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_target_and_store_gives_same_bits_and_touches_nothing_else),
		cmocka_unit_test(results_follow_the_definition_in_rank_order_with_one_rounding),
		cmocka_unit_test(small_floats_add_and_multiply_right_for_every_code),
		cmocka_unit_test(sums_between_two_codes_go_to_the_nearer_and_from_the_middle_to_the_even_one),
		cmocka_unit_test(destination_may_be_any_one_of_the_sources),
		cmocka_unit_test(nan_results_are_one_quiet_nan_whatever_the_sources_payloads),
#if defined(__x86_64__)
		cmocka_unit_test(bits_do_not_depend_on_the_callers_rounding_and_subnormal_modes),
#endif
		cmocka_unit_test(copies_are_exact_at_any_length_and_alignment_with_every_store),
		cmocka_unit_test(targets_that_the_cpu_lacks_are_refused_and_the_one_chosen_is_there),
	};
	return cmocka_run_group_tests(tests, make_sources, free_sources);
}
