/* SPDX-License-Identifier: Apache-2.0 */
/* The structs of router/copy/cuda_types.h and the symbols of cuda_functions.def are those of this machine's cuda.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "router/copy/cuda_types.h"

#define SIZES sizes_of_ferry
static
#include "tests/fake_cuda/sizes.h"

extern const size_t sizes_of_header[];
extern const char *const ferry_cuda_symbols[][2];
extern const size_t ferry_cuda_symbols_count;

static void structs_are_those_of_the_header(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof sizes_of_ferry / sizeof *sizes_of_ferry; i++)
		if (sizes_of_ferry[i] != sizes_of_header[i])
			fail_msg("size or offset %zu of sizes.h is %zu, in cuda.h %zu", i, sizes_of_ferry[i],
			         sizes_of_header[i]);
}

static void symbols_are_those_of_the_header(void **state)
{
	(void)state;
	for (size_t i = 0; i < ferry_cuda_symbols_count; i++)
		assert_string_equal(ferry_cuda_symbols[i][1], ferry_cuda_symbols[i][0]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(structs_are_those_of_the_header),
	        cmocka_unit_test(symbols_are_those_of_the_header),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
