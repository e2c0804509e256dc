/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of the reduction: the definition's result, the same bits on every target and with every store, nothing
 * beyond.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "ipc/collective.h"
#include "router/reduce/cache.h"
#include "router/reduce/reduce.h"
#include "router/reduce/targets.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MOST 2100 /* elements: past the threshold of streaming stores for every width that streams */
#define SOURCES 64
#define GUARD 128

static uint64_t state_ = 88172645463325252ull;

static uint64_t random_bits(void)
{
	state_ ^= state_ << 13;
	state_ ^= state_ >> 7;
	return state_ ^= state_ << 17;
}

static char sources[SOURCES][MOST * 8 + 64];
static char first[MOST * 8 + 2 * GUARD], other[MOST * 8 + 2 * GUARD];

/* Any bits: NaNs with payloads, infinities and subnormals among them. */
static void fill_with_bits(void)
{
	for (int i = 0; i < SOURCES; i++)
		for (size_t at = 0; at < sizeof sources[i]; at += 8) {
			uint64_t bits = random_bits();
			memcpy(sources[i] + at, &bits, 8);
		}
}

static void run(enum ferry_target target, char *out, const struct ferry_reduction *reduction, uint32_t count,
                size_t elements)
{
	const void *pointers[SOURCES];
	size_t element = ferry_type_size(reduction->type);
	for (uint32_t i = 0; i < count; i++)
		pointers[i] = sources[i] + element * (i % 3); /* aligned to the element and no more */
	memset(out, 0x55, MOST * 8 + 2 * GUARD);
	assert_int_equal(ferry_reduce_on(target, out + GUARD, pointers, count, elements, reduction), ferrySuccess);
	for (size_t i = 0; i < GUARD; i++) {
		assert_int_equal(out[i], 0x55);
		assert_int_equal(out[GUARD + elements * element + i], 0x55);
	}
}

static bool has(enum ferry_target target)
{
	char byte = 0;
	const void *source = &byte;
	struct ferry_reduction reduction = {.type = ferryInt8, .divisor = 1};
	return ferry_reduce_on(target, &byte, &source, 1, 1, &reduction) == ferrySuccess;
}

static void every_target_and_store_gives_the_same_bits(void **state)
{
	(void)state;
	static const uint32_t counts[] = {1, 2, 3, 4, 7, 64};
	static const size_t sizes[] = {1, 2, 15, 16, 17, 63, 129, 1000, MOST - 3};
	uint64_t scalars[SOURCES];
	unsigned compared = 0;
	fill_with_bits();
	for (int i = 0; i < SOURCES; i++)
		scalars[i] = random_bits();
	for (int type = 0; type < ferryNumTypes; type++)
		for (int op = 0; op <= ferryNumOps; op++)
			for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
				for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
					struct ferry_reduction reduction = {.type = (ferryDataType_t)type,
					                                    .op = (ferryRedOp_t)op,
					                                    .divisor = op == ferryAvg ? counts[c] : 1,
					                                    .scalars = op == ferryNumOps ? scalars
					                                                                 : NULL,
					                                    .scaled = op == ferryNumOps
					                                                      ? 0xaaaaaaaaaaaaaaabull
					                                                      : 0};
					run(FERRY_TARGET_PORTABLE, first, &reduction, counts[c], sizes[s]);
					for (int target = 0; target < FERRY_NUM_TARGETS; target++)
						for (int store = 0;
						     has((enum ferry_target)target) && store < FERRY_NUM_STORES;
						     store++) {
							reduction.store = (enum ferry_store)store;
							run((enum ferry_target)target, other, &reduction, counts[c],
							    sizes[s]);
							if (memcmp(first, other, sizeof first))
								fail_msg("%s, %s of %u sources, %zu elements: %s with "
								         "store %d differs from portable",
								         ferry_type_name((ferryDataType_t)type),
								         ferry_redop_name((ferryRedOp_t)op), counts[c],
								         sizes[s],
								         ferry_reduce_target_name(
								                 (enum ferry_target)target),
								         store);
							compared++;
						}
				}
	print_message("%u results compared\n", compared);
}

static void float32_sums_are_taken_in_rank_order_one_by_one(void **state)
{
	(void)state;
	struct ferry_reduction reduction = {.type = ferryFloat32, .op = ferrySum, .divisor = 1};
	for (int i = 0; i < SOURCES; i++)
		for (size_t k = 0; k < MOST; k++) {
			float value = ldexpf((float)(int32_t)random_bits(), (int)(random_bits() % 40) - 50);
			memcpy(sources[i] + 4 * k, &value, 4);
		}
	for (uint32_t count = 1; count <= SOURCES; count++) {
		const void *pointers[SOURCES];
		for (uint32_t i = 0; i < count; i++)
			pointers[i] = sources[i];
		ferry_reduce(first, pointers, count, MOST, &reduction);
		for (size_t k = 0; k < MOST; k++) {
			volatile float sum = 0, value;
			for (uint32_t i = 0; i < count; i++) {
				float term;
				memcpy(&term, sources[i] + 4 * k, 4);
				sum = i ? sum + term : term;
			}
			memcpy((float *)&value, first + 4 * k, 4);
			assert_true(value == sum);
		}
	}
}

static void integers_wrap_and_average_towards_zero(void **state)
{
	(void)state;
	int32_t a[3] = {INT32_MAX, -7, 5}, b[3] = {1, -2, 6}, out[3];
	const void *pointers[] = {a, b};
	struct ferry_reduction reduction = {.type = ferryInt32, .op = ferrySum, .divisor = 1};
	ferry_reduce(out, pointers, 2, 3, &reduction);
	assert_int_equal(out[0], INT32_MIN);
	reduction.op = ferryAvg;
	reduction.divisor = 2;
	ferry_reduce(out, pointers, 2, 3, &reduction);
	assert_int_equal(out[1], -4);
	assert_int_equal(out[2], 5);
}

static void sixteen_bit_floats_are_rounded_once(void **state)
{
	(void)state;
	/* 2048 + 1 + 1 + ... : each step rounded to float16 would stay at 2048. */
	uint16_t out, big = 0x6800 /* 2048 */, one = 0x3c00;
	const void *pointers[9];
	struct ferry_reduction reduction = {.type = ferryFloat16, .op = ferrySum, .divisor = 1};
	for (int i = 0; i < 9; i++)
		pointers[i] = i ? &one : &big;
	ferry_reduce(&out, pointers, 9, 1, &reduction);
	assert_int_equal(out, 0x6804); /* 2056 */
}

static void min_and_max_drop_nans_and_order_zeros(void **state)
{
	(void)state;
	static const float cases[][5] = {
		/* three sources, their maximum, their minimum */
		{NAN, 2, 3, 3, 2},   {1, NAN, 3, 3, 1},   {1, 2, NAN, 2, 1},     {NAN, 2, NAN, 2, 2},
		{0.f, -0.f, 0.f, 0.f, -0.f}, {-0.f, 0.f, -0.f, 0.f, -0.f}, {NAN, NAN, NAN, NAN, NAN},
		{-INFINITY, NAN, INFINITY, INFINITY, -INFINITY}};
	for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
		for (int op = ferryMax; op <= ferryMin; op++) {
			float out, expected = cases[c][op == ferryMax ? 3 : 4];
			const void *pointers[] = {&cases[c][0], &cases[c][1], &cases[c][2]};
			struct ferry_reduction reduction = {.type = ferryFloat32, .op = (ferryRedOp_t)op, .divisor = 1};
			ferry_reduce(&out, pointers, 3, 1, &reduction);
			if (isnan(expected) ? !isnan(out) : out != expected || signbit(out) != signbit(expected))
				fail_msg("case %zu, %s: %g, and not %g", c, ferry_redop_name((ferryRedOp_t)op),
				         (double)out, (double)expected);
		}
}

static void averages_of_large_values_are_finite(void **state)
{
	(void)state;
	uint16_t large = 0x78e2 /* 40000 */, out, factor = (uint16_t)ferry_reduce_reciprocal(ferryFloat16, 4);
	const void *pointers[4] = {&large, &large, &large, &large};
	uint64_t factors[4] = {factor, factor, factor, factor};
	struct ferry_reduction reduction = {
		.type = ferryFloat16, .op = ferryAvg, .divisor = 1, .scalars = factors, .scaled = 3};
	/* In two passes, as two domains do it: the partial sum is a float16. */
	ferry_reduce(&out, pointers, 2, 1, &reduction);
	assert_int_equal(out, 0x74e2); /* 20000 */
	pointers[2] = &out;
	ferry_reduce(&out, pointers, 3, 1, &reduction);
	assert_int_equal(out, 0x78e2);
}

static void copies_of_every_store_are_exact_and_stay_inside(void **state)
{
	(void)state;
	static const size_t sizes[] = {0, 1, 63, 64, 4095, 4096, 5001, 16000};
	fill_with_bits();
	for (int store = 0; store < FERRY_NUM_STORES; store++)
		for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
			for (size_t shift = 0; shift < 70; shift += 23) {
				memset(first, 0x55, sizeof first);
				ferry_copy(first + GUARD + shift, sources[0] + shift / 2, sizes[s],
				           (enum ferry_store)store);
				assert_memory_equal(first + GUARD + shift, sources[0] + shift / 2, sizes[s]);
				assert_int_equal(first[GUARD + shift - 1], 0x55);
				assert_int_equal(first[GUARD + shift + sizes[s]], 0x55);
			}
}

/* A message at the end of a page, and none behind it: what is kept of it ends with it, on every lap. */
static void keeping_a_message_in_cache_reads_no_more_than_the_message(void **state)
{
	(void)state;
	const size_t page = (size_t)sysconf(_SC_PAGESIZE), lengths[] = {0, 1, 64, 1000, 1024, 1536, page};
	char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(pages != MAP_FAILED);
	assert_int_equal(mprotect(pages + page, page, PROT_NONE), 0);
	for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
		for (uint64_t lap = 0; lap < 40; lap++)
			ferry_keep_part(pages + page - lengths[i], lengths[i], lap);
	munmap(pages, 2 * page);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_target_and_store_gives_the_same_bits),
		cmocka_unit_test(float32_sums_are_taken_in_rank_order_one_by_one),
		cmocka_unit_test(integers_wrap_and_average_towards_zero),
		cmocka_unit_test(sixteen_bit_floats_are_rounded_once),
		cmocka_unit_test(min_and_max_drop_nans_and_order_zeros),
	        cmocka_unit_test(averages_of_large_values_are_finite),
		cmocka_unit_test(copies_of_every_store_are_exact_and_stay_inside),
		cmocka_unit_test(keeping_a_message_in_cache_reads_no_more_than_the_message),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
