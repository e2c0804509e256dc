/* SPDX-License-Identifier: Apache-2.0 */
/* What orchestrator/nccl_types.h says of NCCL is what this machine's nccl.h says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "orchestrator/config.h"
#include "orchestrator/nccl_types.h"

#include <string.h>

#define VALUES_OF values_of_ferry
#include "tests/nccl/values.h"

extern const struct value *nccl_header_values(size_t *count);
extern const void *nccl_header_policy(int policy);

static void values_and_sizes_are_those_of_the_header(void **state)
{
	(void)state;
	size_t count;
	const struct value *theirs = nccl_header_values(&count);
	assert_int_equal(count, sizeof values_of_ferry / sizeof *values_of_ferry);
	for (size_t i = 0; i < count; i++)
		if (strcmp(theirs[i].name, values_of_ferry[i].name) || theirs[i].value != values_of_ferry[i].value)
			fail_msg("%s is %lld, and not %lld", theirs[i].name, theirs[i].value, values_of_ferry[i].value);
}

static void the_policy_is_read_where_it_lies(void **state)
{
	(void)state;
	static const struct {
		int policy;
		bool copies;
	} cases[] = {{NCCL_UNDEFINED_INT, false}, {0, false}, {1, false}, {2, true}, {3, true}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		if (nccl_header_policy(cases[i].policy))
			assert_int_equal(ferry_nccl_config_copies(nccl_header_policy(cases[i].policy)),
			                 cases[i].copies);
	assert_false(ferry_nccl_config_copies(NULL));
	assert_false(ferry_nccl_config_copies(&(ncclConfig_t){.size = sizeof(ncclConfig_t)}));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(values_and_sizes_are_those_of_the_header),
	        cmocka_unit_test(the_policy_is_read_where_it_lies),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
